"""The sources of a processor: topics with their serdes and times, and the inputs that each fold asks for.

The sources of a processor are co-partitioned: partition *n* of its table is folded from partition *n* of
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat, tee
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable
from zlib import crc32

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.declaring import is_serde, is_topic
from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.retention import DeclaredTopic, declared_ms, kept_ms
from holdfast.core.engine.declared.serdes import Serde, Text, alike, decode_all, framing, of_topic
from holdfast.core.engine.declared.streams import Internal, Stream, tells_origins
from holdfast.core.engine.emit_columns import Emitted
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.event_times import DEFAULT_AHEAD_MS, NO_LIMIT_MS, TimeWithin, check_ahead, limit_of
from holdfast.core.engine.origins import StepClock, is_mark, mark_of, plain
from holdfast.core.engine.state.rows import Rows
from holdfast.core.engine.state.timers import NEVER
from holdfast.errors import ConfigError, DecodeError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Input = Literal["value", "key", "headers", "offset", "partition"]
INPUTS: tuple[Input, ...] = get_args(Input)
"""The possible columns of a batch."""
DecoderInput = Literal["value", "key", "headers", "offset", "partition", "timestamp", "topic"]
DECODER_INPUTS: tuple[DecoderInput, ...] = get_args(DecoderInput)
"""The possible inputs of a decoder of one source: columns of a batch, the append times that each batch has,
and the topic.
"""
Asked = Literal["key", "headers", "offset", "partition", "timestamp", "topic", "event_ms"]
ASKED: tuple[Asked, ...] = get_args(Asked)
"""The inputs that a fold may ask for in addition to the event."""
LIMIT_SOURCES = 8
EventTime = Callable[[Any, int], int]
"""Gives the event time in ms of a decoded value, at a stream time; -NEVER for none."""


Time: TypeAlias = Callable[[T], int] | Literal["append"] | None
"""A function from an event to its own time in ms; "append" for the append time; None if undeclared."""


AheadPolicy = Literal["refuse", "hold"]
"""The handling of a record whose event time is too far ahead: it is refused, or it is folded and does not
move the watermark.
"""


def _within(
    whose: str, read: Callable[[Any], int] | None, ahead: str | int | None, policy: str
) -> Callable[[Any], int] | None:
    """Return *read* with the limit *ahead*, None for no limit; ConfigError for an invalid limit or policy.

    A function that has a limit keeps it where *ahead* is the default.
    """
    if policy not in get_args(AheadPolicy):
        raise ConfigError(f'{whose}: ahead_policy {policy!r:.100}; write "refuse" or "hold"')
    ahead_ms = NO_LIMIT_MS if ahead is None else duration_ms(ahead, f"{whose}: ahead", least_ms=0)
    if read is None or (ahead_ms == DEFAULT_AHEAD_MS and policy == "refuse"):
        return read
    return TimeWithin(getattr(read, "read", read), ahead_ms, holds=policy == "hold")


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[T]):
    """A topic to fold: `orders = Source("orders", Json(Order))`.

    *time* reads an event's own time in ms, for windows, joins, folds that ask for "event_ms", and the event
    clock. `time="append"` says that the append time is the event's time; windows and joins warn of a source
    that says neither. *key* reads the records' keys (text by default), for joins and for folds that ask for
    "key". ConfigError for an invalid topic name or serde.

    An event time more than *ahead* (a duration; None for no limit) after the append time comes from a wrong
    clock, and would make all other records late: with *ahead_policy* "refuse" its record is quarantined, with
    "hold" it is folded and moves no watermark.

    A partition that stays at the end of its log for *idle* (a duration; the setting `origin_idle_ms` without
    one) stops holding the others back, downstream of a step or in an interval join.

    A `Stream` as *topic* brings its key serde and its time. On an internal topic, which one step alone
    writes, another serde or key than the step's is a ConfigError. `source=step` is the short form.

    *retention* sets how long the topic keeps its records: a duration such as "7d", ms, or "forever", which is
    also the default. `holdfast topics create` makes the topic so, and `topics check` compares: a state
    cannot be built again from records that are gone. With "landed" `holdfast -A ... pipeline land` deletes
    what the lake and all tables have; a table then begins by `holdfast bootstrap --lake`. Without one, a
    topic that others made with a limit is only warned of. All declarations of one topic must agree. An
    internal topic has none, since holdfast keeps and trims it.
    """

    topic: str
    serde: Serde[T]
    time: Time[T] = None
    key: Serde[Any] = None  # type: ignore[assignment]  # text, or as the stream says: never None once it is made
    retention: str | int | None = None
    ahead: str | int | None = "1d"
    ahead_policy: AheadPolicy = "refuse"
    idle: str | int | None = None
    by_append: bool = field(default=False, init=False)
    """True if it was declared with `time="append"`."""

    def __post_init__(self) -> None:
        if not is_topic(self.topic):
            raise ConfigError(
                f"source {self.topic!r:.200} is not a valid Kafka topic name: write Source('orders',"
                " Json(Order)), say"
            )
        written = self.topic if isinstance(self.topic, Stream) else None
        if self.key is None:
            object.__setattr__(self, "key", Text() if written is None else written.key)
        for serde, name in ((self.serde, "serde"), (self.key, "key")):
            if not is_serde(serde, "decode"):
                raise ConfigError(
                    f"the {name} of source {self.topic!r:.200} is {serde!r:.200}; write Json(...), say"
                )
        if isinstance(written, Internal) and self.retention is not None:
            raise ConfigError(
                f"source {str(written)!r} is an internal topic, which holdfast keeps until it is trimmed:"
                " leave out retention="
            )
        if isinstance(written, Internal) and self.idle is not None:
            raise ConfigError(
                f"source {str(written)!r} is an internal topic, whose writer tells when it is at the end of"
                " its log: write idle= on the source that the writer reads"
            )
        if self.idle is not None:
            object.__setattr__(self, "idle", duration_ms(self.idle, f"source {str(self.topic)!r}: idle"))
        if written is not None and written.step:
            self._check_written(written)
        if self.time is None and written is not None:
            object.__setattr__(self, "time", written.time)
            object.__setattr__(self, "by_append", written.by_append)
        if isinstance(self.time, str):
            if self.time != "append":
                raise ConfigError(
                    f"source {str(self.topic)!r}: time is {self.time!r:.100}; write a function of the event,"
                    ' or "append" for the append time'
                )
            object.__setattr__(self, "time", None)
            object.__setattr__(self, "by_append", True)
        whose = f"source {str(self.topic)!r}"
        object.__setattr__(self, "time", _within(whose, self.reads_time, self.ahead, self.ahead_policy))
        name, keeps_ms = str(self.topic), kept_ms(self.topic, self.retention, whose)
        object.__setattr__(self, "serde", of_topic(self.serde, name, "value"))
        object.__setattr__(self, "key", of_topic(self.key, name, "key"))
        if written is None:
            tells, kept = tells_origins(self.topic), name
            if keeps_ms is not None or tells or self.idle_ms is not None:
                kept = DeclaredTopic(name, self.serde, self.key, keeps_ms, tells, self.idle_ms)
            object.__setattr__(self, "topic", kept)

    @property
    def declared(self) -> str:
        """Return the topic's name, with what the source says of it where it is no internal topic."""
        if isinstance(self.topic, Internal):
            return self.topic
        keeps_ms = declared_ms(self.topic)
        told = tells_origins(self.topic), self.idle_ms
        return DeclaredTopic(str(self.topic), self.serde, self.key, keeps_ms, *told)

    @property
    def reads_time(self) -> Callable[[T], int] | None:
        """Return the function that reads an event's own time in ms; None where append time counts."""
        return self.time  # type: ignore[return-value]  # "append" is kept as None

    @property
    def idle_ms(self) -> int | None:
        """Return *idle* in ms; None if it is not set."""
        return self.idle if isinstance(self.idle, int) else getattr(self.topic, "idle_ms", None)

    def _check_written(self, written: Stream[Any]) -> None:
        require_alike(f"source {str(written)!r}", (self.serde, self.key), written)


class RawSource(Source[T]):
    """A source whose columns are read as they lie in the topic, whatever its stream says of them."""

    __slots__ = ()

    def _check_written(self, written: Stream[Any]) -> None:
        pass


class Decoder(Protocol[T_co]):
    """Turns bytes into values of one type."""

    def decode(self, value: bytes | None) -> T_co: ...


class Readable(Protocol[T_co]):
    """A source that a declaration can name: a `Source`, or a `Stream` or step with serde, key and event
    time.
    """

    @property
    def serde(self) -> Decoder[T_co]:
        """Return the decoder of its values."""
        ...


@runtime_checkable
class Sender(Protocol[T_co]):
    """A step, which sends all that it gives to one stream."""

    @property
    def to(self) -> Stream[Any]:
        """Return the stream that it sends to."""
        ...

    @property
    def serde(self) -> Decoder[T_co]:
        """Return the decoder of the values that it sends."""
        ...


def source_of(given: object) -> Source[Any] | None:
    """Return the source that *given* stands for: itself, or that of a stream or step; None for anything else.

    ConfigError for a step with several branches, since it does not say which.
    """
    if isinstance(given, Source):
        return given
    if isinstance(given, Stream):
        return Source(given, given.serde)
    if not getattr(given, "stateless", False) or not isinstance(given, Sender):
        return None
    emits: tuple[str, ...] = getattr(given, "emits", ())
    if len(emits) > 1:
        name = getattr(given, "name", "step")
        raise ConfigError(
            f"step {name} sends to {', '.join(map(str, emits))}: name the branch that is read, as in"
            f" source={name}[...]"
        )
    return source_of(given.to)


def require_alike(whose: str, read: tuple[Serde[Any], Serde[Any]], written: Stream[Any]) -> None:
    """Raise ConfigError where values or keys are read with another serde than their step writes."""
    for part, reads, writes in zip(("values", "keys"), read, (written.serde, written.key), strict=True):
        if not alike(reads, writes):
            raise ConfigError(
                f"{whose} reads {part} with {reads!r:.200}, but step {written.step} writes them with"
                f" {writes!r:.200}: write source=<the step>, which brings the step's own"
            )


def require_source(whose: str, what: str, given: object) -> Source[Any]:
    """Return the source that *given* stands for; ConfigError, with *whose* and *what*, where it is none."""
    if (found := source_of(given)) is not None:
        return found
    raise ConfigError(f"{whose}: {what} is {given!r:.200}; write Source(topic, serde), a Stream or a step")


@dataclass(frozen=True, slots=True)
class FoldWith:
    """A fold that is called with more than the event: *inputs* follow its three arguments, in that order.

    `on={orders: FoldWith(enrich, ("key", "timestamp"))}` has `enrich(rows, event, at_ms, key, timestamp)`
    called. It is a declaration, not an object with everything in it, so that nothing is read, shipped to
    Spark or made for a record but what its fold looks at.

    | | |
    |---|---|
    | `key` | the record's key, read by the source's `key` (text, or None for none) |
    | `headers` | pairs of name and bytes |
    | `timestamp` | the record's own append time in ms, which may lie before *at_ms*, the stream time; -1 for none |
    | `topic`, `partition`, `offset` | where it lies |
    | `event_ms` | what the source's `time` makes of the event; of a record without a value, its append time |
    """  # noqa: E501

    fold: Callable[..., Emits]
    inputs: tuple[Asked, ...]
    marks: bool = False
    """True if it is also called with marks instead of events, and headers with those of origins."""


@dataclass(frozen=True, slots=True)
class FoldColumns:
    """A fold of events that *decode* makes of the columns *inputs* of a record, as processors of one source
    do; the serde of the source is not asked.
    """

    fold: Callable[[Rows[Any], Any, int], Emits]
    decode: Callable[..., Any]
    inputs: tuple[DecoderInput, ...]
    marks: bool = False
    """True if *decode* is also called with the columns of marks, and headers with those of origins."""


def columns_in(inputs: Sequence[DecoderInput]) -> tuple[Input, ...]:
    """Return those of *inputs* that are columns of a batch; append times and the topic are with every batch.

    >>> columns_in(("value", "timestamp", "key"))
    ('value', 'key')
    """
    return tuple(name for name in inputs if name in INPUTS)


def decoder_columns(inputs: Sequence[DecoderInput], topic: str, batch: Batch) -> tuple[Sequence[Any], ...]:
    """Return the columns that a decoder of *inputs* takes, of a batch that has those of `columns_in`.

    >>> decoder_columns(("topic", "value", "timestamp"), "clicks", Batch([7], [99], ([b"x"],)))
    (('clicks',), [b'x'], [99])
    """
    if len(inputs) == len(batch.columns):
        return batch.columns
    columns, topics = iter(batch.columns), (topic,) * len(batch.offsets)
    told = {"timestamp": batch.times_ms, "topic": topics}
    return tuple(told[name] if name in told else next(columns) for name in inputs)


class SendsAll(Protocol):
    """A step of one source, see `Processor.send_all` and `Processor.told_by`."""

    def send_all(
        self, columns: Sequence[Sequence[Any]], clock: StepClock | None, append_times: Sequence[int]
    ) -> Emitted: ...

    def told_by(self, clock: StepClock, append_ms: int, *columns: Any) -> Any: ...


class SourceFold:
    """A source and its fold as folders call them: with rows, an event, the stream time, and then what the
    fold asks for.

    *inputs* are the columns that batches of this source must have. *step* sends all records of a batch at
    once, where the fold needs no rows.
    """

    __slots__ = (
        "_asked",
        "_frames",
        "_frames_key",
        "_takes",
        "decode",
        "fold",
        "inputs",
        "marks",
        "meets_marks",
        "number",
        "source",
        "step",
    )

    def __init__(
        self,
        number: int,
        source: Source[Any],
        fold: Callable[..., Emits] | FoldWith | FoldColumns,
        step: SendsAll | None = None,
    ) -> None:
        self.number, self.source, self.step = number, source, step
        self._takes: tuple[DecoderInput, ...] = ()
        self._asked: tuple[Asked, ...] = ()
        self.inputs: tuple[Input, ...] = ("value",)
        self.decode: Callable[..., Any] = source.serde.decode
        self.fold: Callable[..., Emits] = fold.fold if isinstance(fold, FoldWith | FoldColumns) else fold
        if isinstance(fold, FoldWith):
            self._asked = tuple(fold.inputs)
            self.inputs = ("value", *dict.fromkeys(name for name in fold.inputs if name in INPUTS))
        self._frames, self._frames_key = framing(source.serde), framing(source.key)
        if isinstance(fold, FoldColumns):
            self._frames = None
            self.inputs, self.decode, self._takes = columns_in(fold.inputs), fold.decode, tuple(fold.inputs)
        self.meets_marks = tells_origins(source.topic)
        self.marks = self.meets_marks and isinstance(fold, FoldWith | FoldColumns) and fold.marks
        framed = self._frames or (self._frames_key and "key" in self.inputs)
        if (self.meets_marks or (framed and not self._takes)) and "headers" not in self.inputs:
            self.inputs = (*self.inputs, "headers")  # a decoder may take another column twice

    @property
    def asks(self) -> bool:
        """Return whether the fold is called with more than rows, event and time."""
        return bool(self._asked)

    def told(
        self, batch: Batch, *, quickly: bool = False, events: Sequence[Any] | None = None
    ) -> list[Iterable[Any]]:
        """Return the events of *batch*, then of each thing that the fold asks for the values, all in step
        with its records and read as they are taken.

        With *quickly*, a value that cannot be read may raise another error than the serde's own. At a mark
        the event is a `Mark` for a fold that takes marks, else SKIPPED. With *events*, all values of *batch*
        are read already, and it has no mark.
        """
        headers = self._headers_of(batch)
        batch, marks = self._shown(batch, headers)
        if True not in marks or (self.marks and self._takes):
            return self._told(batch, quickly, events)
        rest = self._told(_unmarked(batch, marks), quickly)
        told: list[Iterable[Any]] = [_woven(marks, rest[0], headers, takes=self.marks)]
        for name, each in zip(self._asked, rest[1:], strict=True):
            known: Sequence[Any] | None = None
            if name in ("headers", "partition", "offset"):
                known = batch.columns[self.inputs.index(name)] if name != "offset" else batch.offsets
            told.append(known if known is not None else _spread(marks, each))
        return told

    def told_by(self, batch: Batch, clock: StepClock) -> list[Iterable[Any]]:
        """Return the events of *batch* as `step` reads them by *clock*."""
        assert self.step is not None
        columns = decoder_columns(self._takes, self.source.topic, batch)
        return [map(partial(self.step.told_by, clock), batch.times_ms, *columns)]

    def send_all(self, batch: Batch, clock: StepClock | None) -> Emitted:
        """Return the records that `step` sends for *batch*."""
        assert self.step is not None
        batch, marks = self._shown(batch, self._headers_of(batch))
        if True in marks and not self.marks:
            batch = _unmarked(batch, marks)
        columns = decoder_columns(self._takes, self.source.topic, batch)
        return self.step.send_all(columns, clock, batch.times_ms)

    def columns(self, batch: Batch) -> tuple[Sequence[Any], ...]:
        """Return the columns of *batch* that the decoder takes, those of marks included."""
        return decoder_columns(self._takes, self.source.topic, self._shown(batch, self._headers_of(batch))[0])

    def _headers_of(self, batch: Batch) -> Sequence[Any]:
        """Return the headers by which marks are known; none of a batch that was made without them."""
        if not self.meets_marks or len(batch.columns) < len(self.inputs):
            return ()
        return batch.columns[self.inputs.index("headers")]

    def _shown(self, batch: Batch, headers: Sequence[Any]) -> tuple[Batch, Sequence[bool]]:
        """Return *batch* with the columns that a decoder takes, and which records are marks. Headers of
        origins are for folds that take marks.
        """
        if not headers:
            return batch, ()
        marks: Sequence[bool] = ()
        columns = batch.columns
        if any(headers):
            marks = [*map(is_mark, headers)]
            if not self.marks:
                at = self.inputs.index("headers")
                columns = (*columns[:at], [*map(plain, headers)], *columns[at + 1 :])
        if self._takes and "headers" not in self._takes:
            columns = columns[:-1]
        return Batch(batch.offsets, batch.times_ms, columns), marks

    def _told(self, batch: Batch, quickly: bool, known: Sequence[Any] | None = None) -> list[Iterable[Any]]:
        if self._takes:
            return [map(self.decode, *decoder_columns(self._takes, self.source.topic, batch))]
        decoded = decode_all if quickly else _decode_each
        columns = dict(zip(self.inputs, batch.columns, strict=False))  # headers may be left out
        headers = columns.get("headers", ())
        for name, frames in (("value", self._frames), ("key", self._frames_key)):
            if frames is not None and name in columns and any(headers):
                columns[name] = list(map(frames, columns[name], headers))
        events = iter(decoded(self.source.serde, columns["value"]) if known is None else known)
        told: list[Iterable[Any]] = [events]
        for name in self._asked:
            match name:
                case "topic":  # a fold may keep it in a row: no subclass
                    told.append(repeat(str(self.source.topic), batch.records))
                case "timestamp":
                    told.append(batch.times_ms)
                case "event_ms":
                    told[0], again = tee(told[0])
                    told.append(map(partial(_event_ms, self.source), again, batch.times_ms))
                case "key":
                    told.append(decoded(self.source.key, columns[name]))
                case _:
                    told.append(columns[name])
        return told

    def event_ms(self, event: Any, stream_ms: int) -> int:
        """Return the event time in ms of a decoded event, see `event_time`."""
        return event_time(self.source.topic, self.source.reads_time, event, stream_ms)


class SkippedMark:
    """A stand-in for a mark where a fold takes none."""

    __slots__ = ()


SKIPPED = SkippedMark()


def _unmarked(batch: Batch, marks: Sequence[bool]) -> Batch:
    """Return the records of *batch* that are no marks."""

    def of(column: Sequence[Any]) -> list[Any]:
        return [each for each, mark in zip(column, marks, strict=True) if not mark]

    return Batch(of(batch.offsets), of(batch.times_ms), tuple(map(of, batch.columns)))


def _woven(
    marks: Sequence[bool], events: Iterable[Any], headers: Sequence[Any], *, takes: bool
) -> Iterable[Any]:
    """Yield *events*, and what stands for marks where they lie."""
    left = iter(events)
    for at, mark in enumerate(marks):
        if mark:
            yield mark_of(headers[at]) if takes else SKIPPED
        else:
            yield from islice(left, 1)


def _spread(marks: Sequence[bool], values: Iterable[Any]) -> Iterable[Any]:
    left = iter(values)
    for mark in marks:
        if mark:
            yield None
        else:
            yield from islice(left, 1)


def _decode_each(serde: Serde[Any], values: Sequence[bytes | None]) -> Iterable[Any]:
    return map(serde.decode, values)


def _event_ms(source: Source[Any], event: Any, timestamp: int) -> int:
    read = source.reads_time
    assert read is not None
    at_ms = timestamp if event is None else read(event)
    if type(at_ms) is not int:
        raise DecodeError(f"time of {source.topic} gives {at_ms!r:.100}, which is not a time in whole ms")
    if at_ms > timestamp:
        limit_ms, holds = limit_of(read)
        check_ahead(str(source.topic), at_ms, timestamp, limit_ms, holds=holds)
    return at_ms


def event_time(topic: str, time: Callable[[Any], int] | None, event: Any, stream_ms: int) -> int:
    """Return the event time in ms of an event: what *time* gives or, without it, the stream time, if there is
    one. An event of None, of a record without a value, has none: -NEVER.

    Raises DecodeError if the time is not whole ms.
    """
    if time is None:
        return stream_ms if stream_ms >= 0 else -NEVER
    if event is None:
        return -NEVER
    at_ms = time(event)
    if type(at_ms) is not int or not -NEVER < at_ms < NEVER:
        raise DecodeError(f"time of {topic} gives {at_ms!r:.100}, which is not a time in whole ms")
    if at_ms > stream_ms:
        limit_ms, holds = limit_of(time)
        if not check_ahead(topic, at_ms, stream_ms, limit_ms, holds=holds):
            return -NEVER
    return at_ms


def timed(decode: Callable[..., Any], time: Callable[[Any], int]) -> Callable[..., Any]:
    """Return *decode* as a function whose attribute `time` reads the event time of what it returns: for
    processors of one source, whose emits carry origins.
    """
    made = partial(decode)
    made.time = time  # type: ignore[attr-defined]  # see Processor.event_times
    return made


def fingerprint(topics: Sequence[str]) -> int:
    """Return a number that differs for other topics, or the same in another order: positions and choices
    number the sources.

    >>> fingerprint(["a", "b"]) == fingerprint(["b", "a"])
    False
    """
    return crc32("\0".join(topics).encode())
