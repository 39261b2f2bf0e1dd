"""Processors: the user's declaration of a decoder and a fold, or of one pair for each source, and of the row
type.

This module runs none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, get_args, overload

from holdfast.core.engine.declared.declaring import is_topic, why_uncallable
from holdfast.core.engine.declared.global_tables import LIMIT_GLOBALS, Global
from holdfast.core.engine.declared.migrations import Migration, declared_migrations, why_wrong_migrations
from holdfast.core.engine.declared.named_tables import Table, declared_table, why_wrong_tables
from holdfast.core.engine.declared.retention import DeclaredTopic, retentions
from holdfast.core.engine.declared.serdes import Bytes, decoder_of
from holdfast.core.engine.declared.sources import (
    ASKED,
    DECODER_INPUTS,
    INPUTS,
    LIMIT_SOURCES,
    DecoderInput,
    FoldColumns,
    FoldWith,
    Input,
    RawSource,
    Readable,
    Source,
    SourceFold,
    columns_in,
    fingerprint,
    require_alike,
    source_of,
    timed,
)
from holdfast.core.engine.declared.streams import Internal, Stream, tells_origins
from holdfast.core.engine.emit_columns import Emitted
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.event_times import TimeWithin, limit_of
from holdfast.core.engine.origins import HeldBack, StepClock, StepReached
from holdfast.core.engine.state.row_types import why_unfit
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError

__all__ = ["INPUTS", "DecoderInput", "Emit", "Emits", "Headers", "Input", "Processor", "by_name"]

E = TypeVar("E")
R = TypeVar("R")

FoldAll = Callable[
    [Rows[Any], Sequence[Sequence[Any]], Sequence[int], int, list[Emit]], "tuple[int, Emits] | None"
]
"""Folds records in columns, given the rows, the columns, append times, the stream time before them, and the
emits to add to. It returns how many were folded, and the rest of the last one if that is `Paced`; None where
these records have to be folded one by one.
"""
EmitsFrom = Literal["beginning", "handover"]
"""The emits of a new version: all of them again, or only those that the version before has not sent."""
OnError = Literal["quarantine", "stop"]
"""The handling of a record that cannot be decoded or folded."""
ON_ERROR: tuple[str, ...] = get_args(OnError)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


class Declared(TypedDict, total=False):
    """The declarations of a processor of either form, except its name, rows, sources and folds."""

    version: int
    on_wake: Callable[[Rows[Any], str, int], Emits] | None
    on_tick: Callable[[Rows[Any], str, int], Emits] | None
    on_event: Callable[[Rows[Any], str, int], Emits] | None
    route: Callable[[str, int], int | None] | None
    emits: tuple[str, ...]
    in_place: bool
    on_error: OnError
    tables: Mapping[str, Any]
    reads: tuple[Global[Any], ...]
    emits_from: EmitsFrom
    migrate: Mapping[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor(Generic[E, R]):
    """A named, versioned fold of one source topic, or of several topics, into a table of rows.

    *decode* gets the *inputs* of a record in that order (its value; its key, headers, topic, partition,
    offset and timestamp too, if they are named; the timestamp is its append time in ms, -1 for none) and
    returns an event, or raises: then the record goes to quarantine. *fold* gets the rows of the record's
    partition, the event and the partition's stream time in ms (the highest append time so far); it changes
    rows and may return or yield what to emit. *on_wake* is called when stream time passes a time set with
    `rows.wake_at`. All three must be pure: no clock, no randomness, no input or output.

    *route* gives queries the source partition of a row key, given the partition count; without it, or if it
    returns None, a query asks every partition, since only the records' producer knows. `emits` names the
    topics the fold may emit to, or `Stream`s: a record whose fold emits to another is refused. With
    *in_place* the fold emits into the partition of the record it was given, so each of them needs as many
    partitions as the source.

    Rows of another *version* are never read: each version has its own table and changelog, built from the
    log's beginning. Within a version, a row type may change as long as it reads all rows that were written
    (fields with defaults may be added, and fields left out); another is refused when a worker starts.

    A `Source`, `Stream` or step as *source* brings its serde instead of *decode* (`source=by_user`).

    **Several sources.** `on={customers: keep, orders: enrich}` instead of *source*, *decode* and *fold*
    names up to 8 co-partitioned sources, each a `Source` with its own fold, or `FoldWith` for one that asks
    for more than the event. They share the rows and one stream time. Records are folded in order of append
    time; of those of one ms the source that is named first comes first. Where a worker had to fold in another
    order, or looked at its clock, that is recorded in the processor's *choices* (docs/DESIGN.md, "Choices"),
    which no version is part of: to add, remove or reorder sources, give the processor another name. *on_tick*
    is called for times set with `rows.wake_at(key, at_ms, clock="tick")` when the worker's clock passes them.

    **Event time.** *on_event* is called for times set with `rows.wake_at(key, at_ms, clock="event")` when
    event time passes them, before the record is folded that moves it. Event time is the highest time of the
    events folded so far, read by *time* or, with `on=`, by the `time` of each source; all sources share it. A
    source without `time` counts its stream time; a record without a value has none. A record is refused if
    *time* raises or returns no int, and then moves nothing. Event time is part of the position, so a
    processor needs another version when *on_event* is added or removed.

    **Failures.** A record that cannot be decoded or folded goes to the quarantine, and the next one is
    folded. With `on_error="stop"` the partition stops before it, and `holdfast quarantine skip` lets it go to
    the quarantine. Where what a fold needs is not there yet, it raises `errors.Later`: then the partition
    waits, and nothing is refused.

    **Several tables.** `tables={"sessions": Session}` declares named tables in addition to the processor's
    own, each with its type; a fold reads and sets the rows of one by `rows.table("sessions")`. They change in
    the same transaction and are stored in the same changelog. Queries name them PROCESSOR.TABLE.

    **Emits of a new version.** It folds its sources from the beginning, and emits all of it again. With
    `emits_from="handover"` it emits nothing up to the position of the versions before it at the time when it
    took a partition over; internal topics get everything all the same. That position is recorded with its
    first transaction, so it is the same after every restart; with `on=` a choice of the same transaction has
    all versions come through it. It is not for readers of internal topics, whose offsets begin at 0 with each
    version.

    **Migration.** With `migrate={1: function}` a table of this version begins with the rows of version 1, at
    the position that version 1 had then, and folds from there: it emits nothing of earlier records. The
    function is called with the new rows, and the key and the row of each of version 1's, in the order of
    keys; it sets the new rows and must be pure. The row has the type of the third parameter's annotation, or
    plain values without one. In a dict of functions by named table ("" for the processor's own), tables
    without a function keep their rows; timers stay. Without rows of version 1, the table begins at the
    beginning. Of several versions, the highest that has rows counts.

    **Global tables.** `reads=(rates,)`, with `on=`, lets folds look into a `Global`:
    `rows.globals[rates].get(key)`. What they see is as of a position that is recorded with the choices. To
    add, remove or reorder globals, give the processor another name.
    """

    name: str
    row: Any
    source: str = ""
    decode: Callable[..., E] = None  # type: ignore[assignment]  # needed with source, refused with on
    fold: Callable[[Rows[R], E, int], Emits] = None  # type: ignore[assignment]
    on: Mapping[Source[Any], Callable[[Rows[R], Any, int], Emits] | FoldWith | FoldColumns] | None = field(
        default=None, hash=False
    )
    version: int = 1
    inputs: tuple[DecoderInput, ...] = ("value",)
    time: Callable[[E], int] | None = None
    on_wake: Callable[[Rows[R], str, int], Emits] | None = None
    on_tick: Callable[[Rows[R], str, int], Emits] | None = None
    on_event: Callable[[Rows[R], str, int], Emits] | None = None
    route: Callable[[str, int], int | None] | None = None
    emits: tuple[str, ...] = ()
    in_place: bool = False
    on_error: OnError = "quarantine"
    tables: Mapping[str, Any] = field(default_factory=dict, hash=False)
    reads: tuple[Global[Any], ...] = ()
    emits_from: EmitsFrom = "beginning"
    migrate: Mapping[int, Any] = field(default_factory=dict, hash=False)

    if TYPE_CHECKING:
        # The arguments are wider than the fields: steps and streams become topics and sources.

        @overload
        def __init__(
            self: Processor[Any, R],
            *,
            name: str,
            row: type[R],
            on: Mapping[Any, Callable[..., Emits] | FoldWith | FoldColumns],
            **more: Unpack[Declared],
        ) -> None: ...

        @overload
        def __init__(
            self: Processor[Any, Any],
            *,
            name: str,
            row: Any,
            on: Mapping[Any, Callable[..., Emits] | FoldWith | FoldColumns],
            **more: Unpack[Declared],
        ) -> None: ...

        @overload
        def __init__(
            self: Processor[E, R],
            *,
            name: str,
            row: type[R],
            source: str,
            decode: Callable[..., E],
            fold: Callable[[Rows[R], E, int], Emits],
            inputs: tuple[DecoderInput, ...] = ("value",),
            time: Callable[[E], int] | None = None,
            **more: Unpack[Declared],
        ) -> None: ...

        @overload
        def __init__(
            self: Processor[E, Any],
            *,
            name: str,
            row: Any,
            source: str,
            decode: Callable[..., E],
            fold: Callable[[Rows[Any], E, int], Emits],
            inputs: tuple[DecoderInput, ...] = ("value",),
            time: Callable[[E], int] | None = None,
            **more: Unpack[Declared],
        ) -> None: ...

        @overload
        def __init__(
            self: Processor[E, R],
            *,
            name: str,
            row: type[R],
            source: Readable[E],
            fold: Callable[[Rows[R], E, int], Emits],
            time: Callable[[E], int] | None = None,
            **more: Unpack[Declared],
        ) -> None: ...

        @overload
        def __init__(
            self: Processor[E, Any],
            *,
            name: str,
            row: Any,
            source: Readable[E],
            fold: Callable[[Rows[Any], E, int], Emits],
            time: Callable[[E], int] | None = None,
            **more: Unpack[Declared],
        ) -> None: ...

        def __init__(self, **declared: Any) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"processor name {self.name!r:.200}: use 1 to 100 letters, digits, '_' or '-'; it becomes"
                " part of a topic's name"
            )
        self._read_source()
        if self.on is not None:
            object.__setattr__(self, "on", self._checked_sources(self.on))
        elif self.on_tick is not None:
            raise self._wrong(
                "on_tick needs on=: write on={Source(...): fold} in place of source, decode and fold"
            )
        self._check_topics()
        if type(self.version) is not int:
            raise self._wrong(f"version {self.version!r:.200} is not a whole number: write version=2, say")
        if self.version < 1:
            raise self._wrong(f"version {self.version}; versions start at 1")
        if isinstance(self.inputs, str):
            raise self._wrong(f"inputs {self.inputs!r:.200}; write a tuple: ({self.inputs!r:.200},)")
        if (
            not isinstance(self.inputs, tuple | list)
            or not self.inputs
            or any(name not in DECODER_INPUTS for name in self.inputs)
        ):
            raise self._wrong(f"inputs {self.inputs!r:.200}; choose from {', '.join(DECODER_INPUTS)}")
        if self.on_error not in ON_ERROR:
            raise self._wrong(f"on_error {self.on_error!r:.200}; write one of {', '.join(ON_ERROR)}")
        self._check_event_time()
        self._check_functions()
        if (why := why_unfit(self.row)) is not None:
            raise self._wrong(f"row type {self.row!r:.200}: {why}")
        if (why := why_wrong_tables(self.tables)) is not None:
            raise self._wrong(why)
        if type(self.in_place) is not bool:
            raise self._wrong(f"in_place {self.in_place!r:.200}; write True or False")
        self._check_globals()
        self._check_handover()
        self._check_migrations()
        retentions([self])

    def _check_migrations(self) -> None:
        if (why := why_wrong_migrations(self.migrate, self.version)) is not None:
            raise self._wrong(why)
        if self.migrate and self.stateless:
            raise self._wrong("migrate= on a step, which keeps no rows: leave it out")
        if self.migrate and (inner := [str(topic) for topic in self.emits if isinstance(topic, Internal)]):
            raise self._wrong(
                f"migrate= with the internal topic {inner[0]}: whoever reads that in this version would get"
                " nothing of what came before. Leave it out, which folds the source from the beginning"
            )

    def _check_handover(self) -> None:
        if self.emits_from not in ("beginning", "handover"):
            raise self._wrong(f'emits_from {self.emits_from!r:.100}; write "beginning" or "handover"')
        if not self.hands_over:
            return
        if self.version == 1:
            raise self._wrong(
                'emits_from="handover" needs a version before it: version 1 has none; leave it out'
            )
        if self.internal:
            raise self._wrong(
                f'emits_from="handover" with internal topic {self.internal[0]}: what the version before had'
                " folded lies in another topic, so nothing tells where it stood in this one: write"
                ' "beginning"'
            )
        if all(isinstance(topic, Internal) for topic in self.emits):
            raise self._wrong('emits_from="handover" with no topic of others to emit to: leave it out')

    def _check_globals(self) -> None:
        if not isinstance(self.reads, tuple) and self.reads != []:  # an empty list was always taken
            raise self._wrong(f"reads is {self.reads!r:.200}; write a tuple of Global: reads=(rates,)")
        if not self.reads:
            return
        if self.on is None:
            raise self._wrong(
                "reads needs on=: write on={Source(...): fold} in place of source, decode and fold"
            )
        if len(self.reads) > LIMIT_GLOBALS:
            raise self._wrong(f"reads names {len(self.reads)} globals, {LIMIT_GLOBALS} are the most")
        names: set[str] = set()
        for each in self.reads:
            if not isinstance(each, Global):
                raise self._wrong(
                    f"reads has {each!r:.200}; write Global(name, Source(...), fold=..., row=...)"
                )
            if each.name in names:
                raise self._wrong(f"reads names {each.name!r:.200} twice")
            names.add(each.name)
            try:
                Processor(name=each.name, on={each.source: each.fold}, row=each.row)
            except ConfigError as error:
                raise self._wrong(f"reads a global that is declared wrong: {error}") from error
            if isinstance(each.source.topic, Internal):
                raise self._wrong(
                    f"global {each.name} folds {each.topic}, an internal topic, which is trimmed and bears"
                    " its writer's version: emit to a Stream instead"
                )

    def _read_source(self) -> None:
        """Set topic, decoder and, for the event clock, time from a source, stream or step as *source*."""
        named_with_decoder = isinstance(self.source, str) and self.decode is not None
        found = None if named_with_decoder else source_of(self.source)
        if found is None:
            return
        if self.decode is not None or tuple(self.inputs) != ("value",):
            what = "inputs=" if self.decode is None else "decode="
            raise self._wrong(
                f"{str(found.topic)!r} has a serde, which decodes its values: leave out {what}, or name the"
                " topic as text"
            )
        object.__setattr__(self, "source", found.declared)
        decoder, takes = decoder_of(found.serde)
        if found.reads_time is not None and any(map(tells_origins, self.emits)):
            decoder = timed(decoder, found.reads_time)
        object.__setattr__(self, "decode", decoder)
        object.__setattr__(self, "inputs", takes)
        if self.time is None and self.on_event is not None:
            object.__setattr__(self, "time", found.reads_time)

    def _checked_sources(self, on: Mapping[Any, Any]) -> dict[Source[Any], Any]:
        """Return the folds by their sources; ConfigError unless they may be declared so."""
        mixed = [name for name in ("source", "decode", "fold", "time") if getattr(self, name)]
        if mixed or self.inputs != ("value",):
            what = ", ".join(mixed or ["inputs"])
            raise self._wrong(
                f"has both on= and {what}: with on= each source has a serde, a time and a fold of its own"
            )
        if not isinstance(on, Mapping):
            raise self._wrong(f"on is {on!r:.200}; write a dict: {{Source(...): fold}}")
        if not on:
            raise self._wrong("on names no source: write on={Source(...): fold}")
        if len(on) > LIMIT_SOURCES:
            raise self._wrong(
                f"on names {len(on)} sources, {LIMIT_SOURCES} are the most: fold some of them into one topic"
                " first"
            )
        folds: dict[Source[Any], Any] = {}
        for given, fold in on.items():
            source = source_of(given)
            if source is None:
                raise self._wrong(
                    f"on has {given!r:.200} for a source; write Source(topic, serde), a Stream or a step"
                )
            folds[source] = fold
            for part, name in ((source.serde, "serde"), (source.key, "key")):
                if not callable(getattr(part, "decode", None)):
                    raise self._wrong(
                        f"the {name} of {source.topic!r:.200} is {part!r:.200}; write Json(...), say"
                    )
        topics = [source.topic for source in folds]
        if twice := {topic for topic in topics if topics.count(topic) > 1}:
            raise self._wrong(f"on names {min(twice)} twice: a source has one fold")
        return folds

    def _check_topics(self) -> None:
        if not isinstance(self.source, str):
            raise self._wrong(
                f"source {self.source!r:.200} is not the name of a topic: a processor folds one; declare one"
                " for each topic, or on={Source(...): fold} for a table of several"
            )
        if isinstance(self.emits, str):
            raise self._wrong(f"emits {self.emits!r:.200}; write a tuple of topics: ({self.emits!r:.200},)")
        if not isinstance(self.emits, tuple | list):
            raise self._wrong(f"emits {self.emits!r:.200} is not a tuple of topics")
        named = [("source", topic) for topic in self._sources] + [("emits", topic) for topic in self.emits]
        for name, topic in named:
            if not is_topic(topic):
                hint = (
                    "use 1 to 249 letters, digits, '.', '_' and '-'"
                    if self.source or self.on
                    else "write source='...', or on={Source(...): fold} for several"
                )
                raise self._wrong(f"{name} {topic!r:.200} is not a valid Kafka topic name: {hint}")
        for topic in self.emits:
            if topic in self._sources and not isinstance(topic, Internal):
                raise self._wrong(
                    f"emits to {str(topic)!r:.200}, which it folds itself: whatever folds that anew, such as"
                    " a next version, would emit all of it again, and fold it twice. Emit to"
                    f" Internal('{topic}-again', serde, version={self.version}) instead, and fold that as one"
                    " more source of on="
                )
            if isinstance(topic, Internal) and topic.version != self.version:
                raise self._wrong(
                    f"version {self.version} emits to {str(topic)!r}, an internal topic of version"
                    f" {topic.version}: its name bears the version of its writer; write"
                    f" Internal({topic.base!r}, ..., version={self.version})"
                )

    def _check_event_time(self) -> None:
        if self.on is None and self.time is not None and self.on_event is None:
            raise self._wrong(
                "time tells event time to on_event, which is missing: declare it, or leave out time"
            )
        if self.on_event is None:
            return
        if self.on is None and self.time is None:
            raise self._wrong(
                "on_event needs time=, which tells an event's time: without it take clock='append'"
            )
        if self.on is not None and all(source.reads_time is None for source in self.on):
            raise self._wrong(
                "on_event needs Source(..., time=...), which tells an event's time: without it take"
                " clock='append'"
            )

    def _check_functions(self) -> None:
        timed = ("rows", "key", "at_ms")
        wanted = [*self._folds_wanted()]
        wanted += [
            (name, call, timed)
            for name in ("on_wake", "on_tick", "on_event")
            if (call := getattr(self, name)) is not None
        ]
        if self.route is not None:
            wanted.append(("route", self.route, ("key", "partitions")))
        for name, call, takes in wanted:
            if (why := why_uncallable(call, takes)) is not None:
                whence = "; its arguments are the inputs" if name == "decode" else ""
                raise self._wrong(f"{name} {why}{whence}")

    def _folds_wanted(self) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        """Yield (name, function, what it is called with) of all that is called for each record."""
        folded = ("rows", "event", "at_ms")
        if self.on is None:
            yield "decode", self.decode, tuple(self.inputs)
            yield "fold", self.fold, folded
            if self.time is not None:
                yield "time", self.time, ("event",)
        for source, fold in (self.on or {}).items():
            if isinstance(fold, FoldColumns):
                yield f"decode of {source.topic}", fold.decode, tuple(fold.inputs)
                yield f"fold of {source.topic}", fold.fold, folded
                continue
            asked: Any = fold.inputs if isinstance(fold, FoldWith) else ()
            if not isinstance(asked, tuple | list) or any(name not in ASKED for name in asked):
                raise self._wrong(f"inputs {asked!r:.200} of {source.topic}; choose from {', '.join(ASKED)}")
            if "event_ms" in asked and source.reads_time is None:
                raise self._wrong(
                    f"the fold of {source.topic} asks for event_ms: write Source(..., time=...), which"
                    " tells it"
                )
            if source.reads_time is not None:
                yield f"time of {source.topic}", source.reads_time, ("event",)
            yield (
                f"fold of {source.topic}",
                fold.fold if isinstance(fold, FoldWith) else fold,
                (*folded, *asked),
            )

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError(f"processor {self.name}: {text}")

    @property
    def columns(self) -> tuple[Input, ...]:
        """Return the columns that batches of the one source must have: those of `inputs`, without what each
        batch has; and headers, by which marks are known, if the source is an internal topic.
        """
        found = columns_in(self.inputs)
        return (*found, "headers") if self.meets_marks and "headers" not in found else found

    @property
    def meets_marks(self) -> bool:
        """Return whether marks lie among the records of the one source, as in internal topics."""
        return tells_origins(self.source)

    @property
    def takes_marks(self) -> bool:
        """Return whether decoder and fold are given marks, and headers with those of origins: of one source.

        Others are given neither.
        """
        return False

    def origin_clock(self, stored: bytes | None = None) -> StepClock | None:
        """Return the clock that follows the sources' watermarks for the records that are emitted; None where
        no event time is known, where no emits carry origins, and where these follow from rows.
        """
        if not self.told_topics:
            return None
        return StepClock(self.event_times, stored, [*map(tells_origins, self._sources)])

    @property
    def event_times(self) -> tuple[Callable[[Any], int] | None, ...]:
        """Return for each source the function that reads the time of what its decoder makes; None where it is
        not known. A time far ahead of its record's moves no watermark of the emits.
        """
        found = (self.time or getattr(self.decode, "time", None),) if self.on is None else self.own_times
        return tuple(
            time and TimeWithin(getattr(time, "read", time), limit_of(time)[0], holds=True) for time in found
        )

    @property
    def knows_time(self) -> bool:
        """Return whether it reads event times, or the origins of a step's records."""
        if any(map(tells_origins, self._sources)):
            return True
        return any(time is not None for time in self.event_times)

    @property
    def idle_ms(self) -> tuple[int | None, ...]:
        """Return for each source the ms that one of its partitions stays at its end before it stops holding
        others back; None where the source sets none.
        """
        return tuple(each.idle_ms for each in self.on or (RawSource(self.source, Bytes()),))

    @property
    def told_topics(self) -> tuple[str, ...]:
        """Return the emitted topics whose records carry their origins, and whose marks carry the progress of
        each partition of these; empty if it emits neither.
        """
        topics = tuple(str(topic) for topic in self.emits if tells_origins(topic))
        return topics if topics and self.knows_time else ()

    def reached_in(
        self, rows: Rows[Any], partition: int, at_end: frozenset[int] = frozenset()
    ) -> StepReached | None:
        """Return the progress of a partition of a processor with rows and `told_topics`, where the sources
        *at_end* stay at the ends of their logs; None for a processor that does not report it.
        """
        return None

    @property
    def hands_over(self) -> bool:
        """Return whether it emits nothing up to the position that the versions before it had reached."""
        return self.emits_from == "handover"

    @property
    def migrations(self) -> dict[int, Migration]:
        """Return the migrations by which its table may begin with rows of earlier versions, by version."""
        return declared_migrations(self.migrate)

    @property
    def has_event_time(self) -> bool:
        """Return whether its position has event time, and its folds may set timers of the event clock."""
        return self.on_event is not None

    @property
    def final_emits(self) -> tuple[str, ...]:
        """Return the topics whose records follow from the logs of the sources, at whatever pace these are
        read together.
        """
        return ()

    def held_back(self, rows: Rows[Any], partition: int) -> list[HeldBack]:
        """Return the origins that hold the event time of a partition back, as its rows have it."""
        return []

    @property
    def lateness(self) -> Any:
        """Return the `Lateness` that explains why its records are late; None where none can be late."""
        return None

    @property
    def stateless(self) -> bool:
        """Return whether this is a step that keeps no rows: all that its changelog holds is its position."""
        return False

    @property
    def ticks_at_ends(self) -> bool:
        """Return whether its ticks say that a source says nothing more: then a worker ticks when it has
        folded all there is, and not within a backlog, whose later records it would not wait for.
        """
        return False

    @property
    def passing(self) -> bool:
        """Return whether rows that are created and deleted within one transaction are not stored."""
        return False

    @property
    def exact(self) -> bool:
        """Return whether its folds are known to set rows of their declared types alone: those need not be
        read back.
        """
        return False

    def send_all(
        self,
        columns: Sequence[Sequence[Any]],
        clock: StepClock | None = None,
        append_times: Sequence[int] = (),
    ) -> Emitted:
        """Return the emits of a stateless step for records in columns, the same as its decoder and fold give
        one by one; with the header of the origin if there is a *clock*, for records of *append_times*.
        """
        raise NotImplementedError("only steps send without rows")

    @property
    def fold_all(self) -> FoldAll | None:
        """Return the function that folds records in columns, with the same result as its decoder and fold one
        by one; None without one.
        """
        return None

    def told_by(self, clock: StepClock, append_ms: int, *columns: Any) -> Any:
        """Return the event of one record of a step as its decoder does, with the header of its origin;
        SKIPPED for a mark.
        """
        raise NotImplementedError("only steps have a clock")

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics that are folded, in the order of their numbers."""
        return tuple(map(str, self._sources))

    @property
    def _sources(self) -> tuple[str, ...]:
        return (self.source,) if self.on is None else tuple(source.topic for source in self.on)

    @property
    def declared_topics(self) -> tuple[str, ...]:
        """Return every topic that the declaration names, as names that may carry a retention."""
        return (*self._sources, *self.emits, *(each.source.topic for each in self.reads))

    @property
    def kept_whole(self) -> tuple[str, ...]:
        """Return the topics of the globals that are read: of these no record may be deleted."""
        return tuple(each.topic for each in self.reads)

    @property
    def internal(self) -> tuple[Internal[Any], ...]:
        """Return the sources that are declared as internal topics."""
        return tuple(topic for topic in self._sources if isinstance(topic, Internal))

    @property
    def folds(self) -> tuple[SourceFold, ...]:
        """Return the sources with their folds, in the order of their numbers."""
        if self.on is not None:
            return tuple(SourceFold(at, source, fold) for at, (source, fold) in enumerate(self.on.items()))
        fold = FoldColumns(self.fold, self.decode, tuple(self.inputs), self.takes_marks)
        step = self if self.stateless else None
        return (SourceFold(0, RawSource(self.source, Bytes(), self.time), fold, step),)

    def refolded(self, change: Callable[[Any], FoldColumns | FoldWith]) -> Self:
        """Return a copy with the fold of each source as *change* makes it."""
        made, told = copy(self), dict[str, Any]()
        if self.on is not None:
            told["on"] = {source: change(fold) for source, fold in self.on.items()}
        else:
            columns: Any = change(FoldColumns(self.fold, self.decode, tuple(self.inputs)))
            told = {"fold": columns.fold, "decode": columns.decode, "inputs": columns.inputs}
        for name, value in told.items():
            object.__setattr__(made, name, value)
        return made

    @property
    def own_times(self) -> tuple[Callable[[Any], int] | None, ...]:
        """Return for each source the function from a decoded event to its time in ms; None where append time
        counts.
        """
        return (self.time,) if self.on is None else tuple(source.reads_time for source in self.on)

    @property
    def named_sources(self) -> tuple[str, ...]:
        """Return the topics by which users name offsets; none with `source=`, where an offset alone is one
        of its topic.
        """
        return () if self.on is None else self.topics

    @property
    def numbering(self) -> int:
        """Return a number that differs where the offsets of a position count other logs: the signature, or
        the lineage with `source=`.
        """
        return self.lineage if self.on is None else self.signature

    @property
    def lineage(self) -> int:
        """Return a number that distinguishes positions in internal topics of different versions; 0 without an
        internal source.
        """
        return fingerprint(self.topics) if self.internal else 0

    @property
    def signature(self) -> int:
        """Return the fingerprint of what positions and choices number: the sources, and the globals that are
        read.
        """
        return fingerprint((*self.topics, *(f"{each.name} {each.topic}" for each in self.reads)))

    @property
    def table(self) -> str:
        """Return the table's name: name and version, so that versions never share state."""
        return f"{self.name}.v{self.version}"

    def row_of(self, table: str) -> Any:
        """Return the type of the rows of a table; "" is the processor's own."""
        return self._declared(table).row if table else self.row

    def route_of(self, table: str) -> Callable[[str, int], int | None] | None:
        """Return the function from a row key of a table to its partition; "" is the processor's own table."""
        return self._declared(table).route if table else self.route

    def _declared(self, table: str) -> Table:
        if table not in self.tables:
            known = ", ".join(f"{self.name}.{name}" for name in self.tables) or "none besides its own"
            raise self._wrong(f"no table {table!r:.200}; its tables: {known}")
        return declared_table(self.tables[table])

    def changelog(self, app: str) -> str:
        """Return the changelog topic of this table in application *app* (Faust's naming)."""
        return f"{app}-{self.table}-changelog"

    def base(self, app: str) -> str:
        """Return the topic that keeps what this table began with, where that was not nothing."""
        return f"{app}-{self.table}-base"

    def choices(self, app: str) -> str:
        """Return the topic of the choices of a processor of several sources: one for all its versions, but
        another for other versions of its internal sources, which are other logs.
        """
        return f"{app}-{self.name}-choices{''.join(f'.v{each.version}' for each in self.internal)}"

    def choices_topics(self, app: str) -> tuple[str, ...]:
        """Return the topics in which choices are recorded: none with `source=`, whose log has the order."""
        return () if self.on is None else (self.choices(app),)

    def logs(self, app: str) -> tuple[str, ...]:
        """Return every topic that its rows are a function of: sources, choices, and those of the globals that
        it reads.
        """
        return (*self.topics, *self.choices_topics(app), *dict.fromkeys(each.topic for each in self.reads))

    @property
    def writes_alone(self) -> bool:
        """Return whether no other version writes to a topic that this one writes to: it emits to internal
        topics at most, which bear its version, and makes no choices. Then it can be folded at the same time
        as other versions.
        """
        return not self.named_sources and all(isinstance(topic, Internal) for topic in self.emits)

    def writer(self, app: str) -> str:
        """Return the common prefix of the transactional ids of all partitions. Versions that write to the
        same topics share it, so that they fence each other.
        """
        return f"{app}.{self.name}.v{self.version}" if self._is_apart else f"{app}.{self.name}"

    @property
    def _is_apart(self) -> bool:
        return self.version > 1 and self.writes_alone

    def transactional_id(self, app: str, partition: int) -> str:
        """Return the id whose epoch fences older owners; one for each partition of a writer."""
        return f"{self.writer(app)}.{partition}"

    def builder_id(self, app: str, partition: int) -> str:
        """Return the id under which this version's first state is written while workers of earlier versions
        run: none of them uses it.
        """
        return f"{app}.{self.name}.v{self.version}.{partition}"

    @property
    def builds_beside(self) -> bool:
        """Return whether its first state may be written while workers of earlier versions run: this version
        will not emit what they still emit.
        """
        return self.version > 1 and (self.writes_alone or self.hands_over)

    def common_id(self, app: str, partition: int) -> str | None:
        """Return the id by which 0.1.0 writes this version, as it does all versions; None where it is
        `transactional_id`.
        """
        return f"{app}.{self.name}.{partition}" if self._is_apart else None


def require_alike_steps(processors: Iterable[Processor[Any, Any]]) -> None:
    """Raise ConfigError where a source reads a step's topic with another serde or key than the step's."""
    processors = list(processors)
    written = {
        str(topic): topic
        for each in processors
        for topic in each.emits
        if isinstance(topic, Stream) and topic.step
    }
    for each in processors:
        sources = [source for source in each.on or () if not isinstance(source, RawSource)]
        names = (each.source, *(source.declared for source in sources), *each.kept_whole)
        for topic in names:
            if topic in written and isinstance(topic, DeclaredTopic):
                whose = f"processor {each.name}: source {str(topic)!r}"
                require_alike(whose, (topic.serde, topic.key), written[topic])


def table_name(processor: Processor[Any, Any], table: str = "") -> str:
    """Return the name of a table in queries: PROCESSOR, or PROCESSOR.TABLE for a named one."""
    return f"{processor.name}.{table}" if table else processor.name


def by_name(processors: Sequence[Processor[Any, Any]]) -> dict[str, Processor[Any, Any]]:
    """Return *processors* by their names; ConfigError when they are not a list of processors, or two share
    a name.
    """
    if isinstance(processors, Processor):
        raise ConfigError(
            f"processors is the processor {processors.name} alone; write a list: [{processors.name}]"
        )
    if not isinstance(processors, Sequence) or isinstance(processors, str | bytes):
        raise ConfigError(f"processors is {processors!r:.200}; write a list of Processor")
    found: dict[str, Processor[Any, Any]] = {}
    for each in processors:
        if isinstance(each, tuple) and each and all(isinstance(one, Processor) for one in each):
            raise ConfigError(
                f"processors holds the {len(each)} processors {', '.join(one.name for one in each)} in one"
                f" place: write [*{each[-1].name}], with a star, say"
            )
        if not isinstance(each, Processor):
            raise ConfigError(
                f"processors holds {each!r:.200}, which is not a Processor; write Processor(name=...,"
                " source=..., ...)"
            )
        if each.name in found:
            raise ConfigError(
                f"two processors share a name, {each.name} of {', '.join(found[each.name].topics)} and of"
                f" {', '.join(each.topics)}: give one another, since tables and topics are named after it"
            )
        found[each.name] = each
    return found
