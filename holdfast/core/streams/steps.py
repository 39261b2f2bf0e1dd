"""`Map`, `Filter`, `Branch`, `Merge` and `Rekey`: steps that keep no rows, only their position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

import msgspec

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.processor import EmitsFrom, OnError, Processor
from holdfast.core.engine.declared.serdes import (
    KEY_ID,
    VALUE_ID,
    Bytes,
    Framing,
    Serde,
    alike,
    decode_all,
    framing,
    without_ids,
)
from holdfast.core.engine.declared.sources import (
    SKIPPED,
    FoldWith,
    Input,
    RawSource,
    Readable,
    Source,
    Time,
    require_source,
)
from holdfast.core.engine.declared.streams import Internal, Stream, tells_origins
from holdfast.core.engine.emit_columns import Carried, EmitColumns, Emitted, headers_of
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.event_times import TimeWithin, limit_of, unlimited
from holdfast.core.engine.origins import (
    ORIGIN,
    UNHEARD,
    StepClock,
    all_told,
    early,
    is_mark,
    mark_of,
    unclaimed,
)
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.emitting import check_topics
from holdfast.errors import ConfigError, DecodeError

S = TypeVar("S")
T = TypeVar("T")

Record = tuple[Any, bytes | None, bytes | None, Headers, int | None]
"""The record as a step gets it: the event, then value, key, headers and partition as they are in the topic.
"""


Columns = Sequence[Sequence[Any]]
"""The columns of records as a step gets them: values, keys, headers, partitions."""
Reads = Callable[[Columns], tuple[list[Any], Sequence[Headers]]]
"""Returns the events of records in columns, and the headers that they are sent on with."""
SendAll = Callable[[list[Any], Columns, Sequence[Carried]], EmitColumns]
"""Sends records, given their events, columns, and the headers that they are sent with."""


class NoRow(msgspec.Struct, frozen=True):
    """The row type of processors that keep no rows."""


_INPUTS: tuple[Input, ...] = ("value", "key", "headers", "partition")


class Step(Processor[Any, NoRow], Generic[T]):
    """A processor that keeps no rows: it sends records on, exactly once, and its changelog holds its position
    alone.

    `to` is where it sends them: the topic it was given or else an internal one, named by the step and its
    version.
    """

    __slots__ = ()

    @property
    def to(self) -> Stream[T]:
        """Return the topic that records are sent to; of branches, the first."""
        first: Stream[T] = self.emits[0]  # type: ignore[assignment]  # steps declare streams
        return first

    @property
    def serde(self) -> Serde[T]:
        """Return the serde of the values that it sends."""
        return self.to.serde

    @property
    def stateless(self) -> bool:
        """Return True: it has no table to query or to restore."""
        return True

    @property
    def takes_marks(self) -> bool:
        """Return whether it follows watermarks through an internal topic."""
        return self._tells and self.meets_marks

    @property
    def _tells(self) -> bool:
        """Return whether its records carry their origins: its topics have them, and event time is known."""
        if not all(map(tells_origins, self.emits)):
            return False
        return any(time is not None for time in self.own_times) or any(map(tells_origins, self._sources))

    @property
    def told_topics(self) -> tuple[str, ...]:
        return tuple(map(str, self.emits)) if self._tells else ()

    @property
    def own_times(self) -> tuple[Callable[[Any], int] | None, ...]:
        of_decoder = getattr(self.decode, "time", None)
        return tuple(of_decoder if time is None else _of_read(time) for time in super().own_times)

    def origin_clock(self, stored: bytes | None = None) -> StepClock | None:
        """Return the clock that follows the sources' watermarks; None where no event time is known."""
        if not self._tells:
            return None
        return StepClock(self.own_times, stored, [*map(tells_origins, self._sources)])

    def told_by(self, clock: StepClock, append_ms: int, *columns: Any) -> Any:
        """Return a record, with the header of its origin; SKIPPED for a mark."""
        if self.meets_marks and is_mark(columns[2]):
            clock.mark(0, mark_of(columns[2]))
            return SKIPPED
        event, value, key, headers, partition = self.decode(*columns)
        return event, value, key, clock.told(0, event, headers, partition, append_ms), partition

    def send_all(
        self,
        columns: Sequence[Sequence[Any]],
        clock: StepClock | None = None,
        append_times: Sequence[int] = (),
    ) -> Emitted:
        """Return the records that the step sends for records in columns; *clock* needs *append_times*."""
        _, _, headers, partitions = columns
        told = all_told(headers) if clock is not None and self.meets_marks else None
        send: SendAll | None = getattr(self.fold, "send_all", None)
        if send is None or (clock is not None and self.meets_marks and told is None):
            return self._send_each(columns, clock, append_times)
        reads: Reads = self.decode.in_columns  # type: ignore[attr-defined]  # see _record_of
        events, headers = reads(columns)
        carried: Sequence[Carried] = headers
        if clock is not None and told is not None:
            carried = clock.passed_all(told, partitions)
        elif clock is not None:
            carried = clock.told_all(events, headers, partitions, append_times)
        return send(events, columns, carried)

    def _send_each(
        self, columns: Sequence[Sequence[Any]], clock: StepClock | None, append_times: Sequence[int]
    ) -> list[Emit]:
        fold, none = self.fold, cast("Rows[NoRow]", None)  # there are none, and it looks at none
        # Zipped with a column: a decoder that raises StopIteration would otherwise silently drop the rest.
        if clock is None:
            read = zip(map(self.decode, *columns), columns[0], strict=True)
            return [emit for record, _ in read for emit in fold(none, record, -1) or ()]
        if not self.meets_marks:
            records = [*map(self.decode, *columns)]
            events = [record[0] for record in records]
            told_of = clock.told_all(events, [record[3] for record in records], columns[3], append_times)
            return [
                emit
                for (event, value, key, _, partition), carried in zip(records, told_of, strict=True)
                for emit in fold(none, (event, value, key, headers_of(carried), partition), -1) or ()
            ]
        told = zip(map(partial(self.told_by, clock), append_times, *columns), columns[0], strict=True)
        return [emit for record, _ in told if record is not SKIPPED for emit in fold(none, record, -1) or ()]

    def _declare(self, **declared: Any) -> None:
        read = (declared["source"],) if "source" in declared else [each.topic for each in declared["on"]]
        check_topics(f"processor {declared['name']}", read, *declared["emits"])
        Processor.__init__(self, row=NoRow, **declared)


class Map(Step[T], Generic[S, T]):
    """Each record of *source* with another value: what *each* makes of the event, as *serde* or *to* writes
    it. *time* reads the event time of such a value, for windows and joins of it.

    Key and headers stay, and so does the partition if the topic is internal: without *to*, the records go to
    the internal topic `<name>.v<version>`, which `holdfast topics create` makes with as many partitions as
    the source. A record for which *each* raises is quarantined.

    >>> from holdfast import Json, Source
    >>> from holdfast.testing import Topology
    >>> euros = Map(name="euros", source=Source("cents", Json(int)), each=lambda cents: cents / 100, serde=Json(float))
    >>> with Topology([euros]) as topology:
    ...     _ = topology.pipe("cents", 250, key="ada")
    ...     topology.values(euros.to)
    [('ada', 2.5)]
    """  # noqa: E501

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str,
        source: Readable[S],
        each: Callable[[S], T],
        serde: Serde[T] | None = None,
        to: Stream[T] | None = None,
        time: Time[T] = None,
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose, read = _checked(name, source, each=each)
        if (serde is None) == (to is None):
            raise ConfigError(f"{whose}: give serde= for an internal topic, or to=Stream(topic, serde)")
        sent = Internal(name, serde, read.key, version=version) if serde else _stream(whose, to)
        out: Stream[T] = sent.written_by(name, time, mixed=tells_origins(read.topic), tells=_tells(read))
        encode, topic, stays = out.serde.encode, str(out), to is None

        def fold(rows: Rows[NoRow], record: Record, at_ms: int) -> Emits:
            event, _, key, headers, partition = record
            kept = without_ids(headers, VALUE_ID)
            return (Emit(topic, key, encode(each(event)), kept, partition if stays else None),)

        def send_all(events: list[Any], columns: Columns, carried: Sequence[Carried]) -> EmitColumns:
            values = [encode(each(event)) for event in events]
            _, keys, _, partitions = columns
            sent = EmitColumns()
            sent.add(topic, keys, values, _without(carried, VALUE_ID, columns), partitions if stays else None)
            return sent

        fold.send_all = send_all  # type: ignore[attr-defined]  # see Step.send_all
        self._declare(
            name=name,
            version=version,
            on_error=on_error,
            emits_from=emits_from,
            fold=fold,
            **_one(read, stays, out),
        )


class Filter(Step[T]):
    """The records of *source* for whose event *keep* is true, as they are: value, key and headers, byte for
    byte.

    Without *to*, they go to the internal topic `<name>.v<version>`, into the partition they came by.

    >>> from holdfast import Json, Source
    >>> from holdfast.testing import Topology
    >>> large = Filter(name="large", source=Source("cents", Json(int)), keep=lambda cents: cents >= 100)
    >>> with Topology([large]) as topology:
    ...     for cents in (250, 99):
    ...         _ = topology.pipe("cents", cents, key="ada")
    ...     topology.values(large.to)
    [('ada', 250)]
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str,
        source: Readable[T],
        keep: Callable[[T], object],
        to: Stream[T] | None = None,
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose, read = _checked(name, source, keep=keep)
        out, stays = _same(whose, name, read, to, version), to is None
        topic = str(out)

        def fold(rows: Rows[NoRow], record: Record, at_ms: int) -> Emits:
            event, value, key, headers, partition = record
            return (Emit(topic, key, value, headers, partition if stays else None),) if keep(event) else None

        def send_all(events: list[Any], columns: Columns, carried: Sequence[Carried]) -> EmitColumns:
            kept = [bool(keep(event)) for event in events]
            values, keys, _, partitions = columns
            every = keys, values, carried, partitions
            keys, values, carried, partitions = ([*compress(each, kept)] for each in every)
            sent = EmitColumns()
            sent.add(topic, keys, values, carried, partitions if stays else None)
            return sent

        fold.send_all = send_all  # type: ignore[attr-defined]  # see Step.send_all
        self._declare(
            name=name,
            version=version,
            on_error=on_error,
            emits_from=emits_from,
            fold=fold,
            **_one(read, stays, out),
        )


class Branch(Step[T]):
    """Each record of *source*, unchanged, in the first of the branches *into* whose test is true of its
    event.

    *into* names branches: `into={"paid": is_paid, "open": lambda order: True}` sends to the internal topics
    `<name>-paid.v<version>` and so on, which `branch["paid"]` returns. A `Stream` instead of a name is
    a topic of your own. A record of which no test is true is not sent.

    >>> from holdfast import Json, Source
    >>> from holdfast.testing import Topology
    >>> sizes = Branch(name="sizes", source=Source("cents", Json(int)), into={"large": lambda cents: cents >= 100,
    ...     "small": lambda cents: True})
    >>> with Topology([sizes]) as topology:
    ...     for cents in (250, 99):
    ...         _ = topology.pipe("cents", cents, key="ada")
    ...     topology.values(sizes["large"]), topology.values(sizes["small"])
    ([('ada', 250)], [('ada', 99)])
    """  # noqa: E501

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str,
        source: Readable[T],
        into: Mapping[Any, Callable[[T], object]],
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose, read = _checked(name, source)
        if not isinstance(into, Mapping) or not into:
            raise ConfigError(f"{whose}: into is {into!r:.200}; write a dict: {{'paid': is_paid, ...}}")
        branches: dict[str, Stream[T]] = {}
        tests: list[tuple[Callable[[Any], object], str, bool]] = []
        tells = _tells(read) and not any(type(branch) is Stream for branch in into)
        for branch, test in into.items():
            if not isinstance(branch, str):
                raise ConfigError(f"{whose}: branch {branch!r:.200}; write a name, or Stream(topic, serde)")
            if (why := why_uncallable(test, ("event",))) is not None:
                raise ConfigError(f"{whose}: the test of branch {str(branch)!r:.200} {why}")
            given = branch if isinstance(branch, Stream) else None
            out = _same(whose, name, read, given, version, f"-{branch}", tells=tells)
            if str(out) in (str(each) for each in branches.values()):
                raise ConfigError(f"{whose}: two branches send to {str(out)!r}: give one another name")
            branches[str(branch)] = out
            tests.append((test, str(out), given is None))

        def fold(rows: Rows[NoRow], record: Record, at_ms: int) -> Emits:
            event, value, key, headers, partition = record
            for test, topic, stays in tests:
                if test(event):
                    return (Emit(topic, key, value, headers, partition if stays else None),)
            return None

        stay = all(stays for _, _, stays in tests)
        declared = {**_one(read, stay, *branches.values())}
        self._declare(
            name=name, version=version, on_error=on_error, emits_from=emits_from, fold=fold, **declared
        )

    def __getitem__(self, branch: str) -> Stream[T]:
        """Return the topic of a branch."""
        for each in self.emits:
            if each in (branch, f"{self.name}-{branch}.v{self.version}"):
                return each  # type: ignore[return-value]  # steps declare streams
        raise ConfigError(
            f"processor {self.name} has no branch {branch!r:.200}; it sends to {', '.join(self.emits)}"
        )


class Merge(Step[T]):
    """The records of several co-partitioned *sources* in one topic, unchanged.

    They are in the order of any processor of several sources: by append time; where a worker chose another
    order, that is recorded. Without *to*, they go to the internal topic `<name>.v<version>`, into the
    partition they came by.

    >>> from holdfast import Json, Source
    >>> from holdfast.testing import Topology
    >>> shop, web = Source("shop", Json(int)), Source("web", Json(int))
    >>> sales = Merge(name="sales", sources=[shop, web])
    >>> with Topology([sales]) as topology:
    ...     _ = topology.pipe(shop, 1, key="ada"), topology.pipe(web, 2, key="ada")
    ...     topology.values(sales.to)
    [('ada', 1), ('ada', 2)]
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str,
        sources: Sequence[Readable[T]],
        to: Stream[T] | None = None,
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose = f"processor {name}"
        if not isinstance(sources, Sequence) or isinstance(sources, str) or len(sources) < 2:
            raise ConfigError(f"{whose}: sources is {sources!r:.200}; write a list of two or more Source")
        read = [_checked(name, each)[1] for each in sources]
        for each in read:
            _check_alike(whose, each, read[0].serde, f"{str(read[0].topic)!r}")
        out = _same(whose, name, read[0], to, version, mixed=True, tells=_tells(*read))
        stays = to is None
        topic = str(out)

        def fold(
            rows: Rows[NoRow],
            value: _Read,
            at_ms: int,
            key: bytes | None,
            headers: Headers,
            partition: int,
        ) -> Emits:
            return (Emit(topic, key, value.value, headers, partition if stays else None),)

        asked = FoldWith(fold, ("key", "headers", "partition"), marks=tells_origins(out))
        self._declare(
            name=name,
            version=version,
            on_error=on_error,
            emits_from=emits_from,
            on={
                RawSource(
                    each.topic, _as_is(each.serde), each.time, Bytes(), each.retention, idle=each.idle
                ): asked
                for each in read
            },
            emits=(out,),
            in_place=stays,
        )


class Rekey(Step[T], Generic[S, T]):
    """The records of *source* under other keys, so that all records of a key are in one partition of `to`.

    With *by*, each record is sent unchanged under the key that *by* returns; for None it is not sent. With
    *pairs*, each record becomes any number of pairs of a key and a value; *serde* or *to* writes the values,
    and *time* reads their event times. Headers are kept.

    Without *to*, they go to the internal topic `<name>.v<version>`; `holdfast topics create` makes it with as
    many partitions as the source, or as those it is joined with.

    >>> from holdfast import Source, Text
    >>> from holdfast.testing import Topology
    >>> words = Rekey(name="words", source=Source("lines", Text()), pairs=lambda line: [(word, word) for word in line.split()],
    ...     serde=Text())
    >>> with Topology([words]) as topology:
    ...     _ = topology.pipe("lines", "to be")
    ...     topology.values(words.to)
    [('to', 'to'), ('be', 'be')]
    """  # noqa: E501

    __slots__ = ()

    @overload
    def __init__(
        self: Rekey[S, S],
        *,
        name: str,
        source: Readable[S],
        by: Callable[[S], Any],
        to: Stream[S] | None = None,
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
        key: Serde[Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        name: str,
        source: Readable[S],
        pairs: Callable[[S], Iterable[tuple[Any, T]]],
        serde: Serde[T] | None = None,
        to: Stream[T] | None = None,
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
        key: Serde[Any] | None = None,
        time: Time[T] = None,
    ) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        source: Readable[S],
        by: Callable[[S], Any] | None = None,
        pairs: Callable[[S], Iterable[tuple[Any, Any]]] | None = None,
        serde: Serde[Any] | None = None,
        to: Stream[Any] | None = None,
        version: int = 1,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
        key: Serde[Any] | None = None,
        time: Time[Any] = None,
    ) -> None:
        if (by is None) == (pairs is None):
            raise ConfigError(f"processor {name}: give by= or pairs=, one of them")
        whose, read = _checked(name, source, **{"by": by} if pairs is None else {"pairs": pairs})
        if to is not None and (serde is not None or key is not None):
            raise ConfigError(f"{whose}: to= says what lies in it: leave out serde= and key=")
        out: Stream[Any]
        if by is not None:
            if serde is not None or time is not None:
                raise ConfigError(
                    f"{whose}: with by= records go on as they are: leave out serde= and time=, which are"
                    " those of the source"
                )
            out = _same(whose, name, read, to, version, key=key)
            fold: Fold = _By(out, by)
        else:
            if serde is None and to is None:
                raise ConfigError(
                    f"{whose}: with pairs= give serde= for an internal topic, or to=Stream(...)"
                )
            sent = _stream(whose, to) if serde is None else Internal(name, serde, key, version=version)
            out = sent.written_by(name, time, mixed=tells_origins(read.topic), tells=_tells(read))
            assert pairs is not None
            fold = _pairs(out, pairs)
        self._declare(
            name=name,
            version=version,
            on_error=on_error,
            emits_from=emits_from,
            fold=fold,
            **_one(read, False, out),
        )


Fold = Callable[[Rows[NoRow], Record, int], Emits]


class _By:
    """The fold of `Rekey(by=...)`, one record at a time or, four times as fast, whole columns."""

    __slots__ = ("_by", "_encode_key", "_topic")

    def __init__(self, out: Stream[Any], by: Callable[[Any], Any]) -> None:
        self._topic, self._encode_key, self._by = str(out), out.key.encode, by

    def __call__(self, rows: Rows[NoRow], record: Record, at_ms: int) -> Emits:
        event, value, _, headers, _ = record
        key = self._by(event)
        if key is None:
            return None
        return (Emit(self._topic, self._encode_key(key), value, without_ids(headers, KEY_ID)),)

    def send_all(self, events: list[Any], columns: Columns, carried: Sequence[Carried]) -> EmitColumns:
        encode_key, by = self._encode_key, self._by
        keys: list[Any] = [_UNSENT if (key := by(event)) is None else encode_key(key) for event in events]
        values: Iterable[Any] = columns[0]
        carried = _without(carried, KEY_ID, columns)
        if _UNSENT in keys:
            is_sent = [key is not _UNSENT for key in keys]
            keys, values, carried = ([*compress(each, is_sent)] for each in (keys, values, carried))
        sent = EmitColumns()
        sent.add(self._topic, keys, values, carried)
        return sent


_UNSENT: Any = object()


def _without(carried: Sequence[Carried], name: str, columns: Columns) -> Sequence[Carried]:
    """Return the headers of records in *columns* without the schema id *name*."""
    if not any(columns[2]):
        return carried
    return [each if isinstance(each, bytes) else without_ids(each, name) for each in carried]


def _pairs(out: Stream[Any], pairs: Callable[[Any], Iterable[tuple[Any, Any]]]) -> Fold:
    topic, encode_key, encode = str(out), out.key.encode, out.serde.encode

    def fold(rows: Rows[NoRow], record: Record, at_ms: int) -> Emits:
        headers = without_ids(record[3], KEY_ID, VALUE_ID)
        made = [Emit(topic, encode_key(key), encode(value), headers) for key, value in pairs(record[0])]
        if len(made) > 1 and headers and headers[-1][0] == ORIGIN:
            before = (*headers[:-1], early(headers[-1]))
            made[:-1] = [Emit(topic, each.key, each.value, before) for each in made[:-1]]
        return made

    return fold


class _Read(NamedTuple):
    """A value as it is in the topic, and the event that its serde reads from it."""

    value: bytes | None
    event: Any


class _AsIs:
    """Sends values unchanged, and refuses those that *serde* cannot read."""

    def __init__(self, serde: Serde[Any]) -> None:
        self.serde = serde  # where its schema is looked for
        self._decode, frames = serde.decode, framing(serde)
        if frames is not None:
            self.framed = partial(_both, frames)

    def decode(self, value: Any) -> _Read:
        raw, framed = value if value.__class__ is tuple else (value, value)
        return _Read(raw, self._decode(framed))

    def encode(self, value: _Read) -> bytes | None:
        return value.value


def _both(frames: Framing, value: bytes | None, headers: Headers) -> tuple[bytes | None, bytes | None]:
    """Return a value as it is in the topic, and the value that its serde reads."""
    return value, frames(value, headers)


@dataclass(frozen=True, slots=True)
class _OfRead:
    """Reads the event time of the event that `_AsIs` has decoded."""

    time: Callable[[Any], int]

    def __call__(self, read: _Read) -> int:
        return UNHEARD if read.event is None else self.time(read.event)


def _of_read(time: Callable[[Any], int]) -> Callable[[Any], int]:
    limit_ms, holds = limit_of(time)
    return TimeWithin(_OfRead(getattr(time, "read", time)), limit_ms, holds=holds)


def _as_is(serde: Serde[Any]) -> Any:
    return _AsIs(serde)


def _one(source: Source[Any], stays: bool, *out: Stream[Any]) -> dict[str, Any]:
    """Return the declaration of a step of one source but for its fold."""
    return {
        "source": source.declared,
        "decode": _record_of(source, claims=_claims(source, *out)),
        "inputs": _INPUTS,
        "emits": out,
        "in_place": stays,
    }


def _claims(source: Source[Any], *out: Stream[Any]) -> bool:
    """Return whether a record of *source* may have headers of strangers that readers of *out* would believe:
    those that steps alone write.
    """
    return not tells_origins(source.topic) and any(map(tells_origins, out))


def _record_of(source: Source[Any], *, claims: bool) -> Callable[..., Record]:
    """Return the function that makes a step's record of a source's columns; with *claims* it has no headers
    of steps.
    """
    read, frames = source.serde.decode, framing(source.serde)

    def decode(value: bytes | None, key: bytes | None, headers: Headers, partition: int) -> Record:
        event = read(value if frames is None else frames(value, headers))
        return event, value, key, unclaimed(headers) if claims else headers, partition

    def in_columns(columns: Columns) -> tuple[list[Any], Sequence[Headers]]:
        values, _, headers, _ = columns
        if frames is None:
            events = [*decode_all(source.serde, values)]
            if len(events) < len(values):
                raise DecodeError("its decoder raised StopIteration")
        else:
            events = [read(frames(value, each)) for value, each in zip(values, headers, strict=True)]
        return events, [*map(unclaimed, headers)] if claims and any(headers) else headers

    decode.in_columns = in_columns  # type: ignore[attr-defined]  # see Step.send_all
    decode.time = source.reads_time  # type: ignore[attr-defined]  # see Step._times
    return decode


def _checked(name: str, source: object, **calls: object) -> tuple[str, Source[Any]]:
    """Return the step's name in errors, and its source; ConfigError for a source or function that does not
    fit.
    """
    whose = f"processor {name}"
    found = require_source(whose, "source", source)
    for what, call in calls.items():
        if (why := why_uncallable(call, ("event",))) is not None:
            raise ConfigError(f"{whose}: {what} {why}")
    return whose, found


def _stream(whose: str, to: object) -> Stream[Any]:
    if not isinstance(to, Stream):
        raise ConfigError(f"{whose}: to is {to!r:.200}; write Stream(topic, serde)")
    return to


def _same(
    whose: str,
    name: str,
    source: Source[T],
    to: Stream[T] | None,
    version: int,
    suffix: str = "",
    key: Serde[Any] | None = None,
    *,
    mixed: bool = False,
    tells: bool | None = None,
) -> Stream[T]:
    """Return the topic to which records are sent unchanged, with the source's event time; ConfigError when it
    is declared with other values. *tells* is that of the step, None for a step of this source alone.
    """
    if to is None:
        sent_key = source.key if key is None else key
        out: Stream[T] = Internal(name + suffix, source.serde, sent_key, version=version)
    else:
        out = _stream(whose, to)
        _check_alike(whose, source, out.serde, repr(str(to)))
    # The step checks event times against its source's limit: downstream of it there is none.
    time: Any = "append" if source.by_append else unlimited(source.reads_time)
    return out.written_by(
        name,
        time,
        mixed=mixed or tells_origins(source.topic),
        tells=_tells(source) if tells is None else tells,
    )


def _tells(*sources: Source[Any]) -> bool:
    """Return whether a step of *sources* reports how far they have come: it knows the event time of at least
    one, or the step before it reports that.
    """
    return any(
        each.reads_time is not None or (isinstance(each.topic, Stream) and each.topic.tells)
        for each in sources
    )


def _check_alike(whose: str, source: Source[Any], serde: Serde[Any], where: str) -> None:
    """Raise ConfigError when *serde* has other values than *source*."""
    if not alike(source.serde, serde):
        raise ConfigError(
            f"{whose}: records go on as they are, but {str(source.topic)!r} holds {source.serde!r} and"
            f" {where} {serde!r}: declare them alike, or use Map"
        )
