"""`Windowed`: a processor whose rows are the windows of each key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import DecoderInput, EmitsFrom, FoldAll, OnError, Processor
from holdfast.core.engine.declared.serdes import Bytes
from holdfast.core.engine.declared.sources import FoldColumns, RawSource, Readable, Source, Time
from holdfast.core.engine.declared.streams import tells_origins
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.origins import (
    HeldBack,
    StepReached,
    is_mark,
    mark_of,
    plain,
    quickly_told_of,
    told_of,
)
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.emitting import Final, Updates, check_topics, encode_json
from holdfast.core.streams.reading import reading, warn_of_append_time, warn_of_unsaid_time
from holdfast.core.streams.windowing.fold import Arrived, ToldArrived, WindowFold
from holdfast.core.streams.windowing.kinds import HoppingFold, SessionFold, SlidingFold, TumblingFold
from holdfast.core.streams.windowing.lateness import Lateness
from holdfast.core.streams.windowing.ordered import Ordered
from holdfast.core.streams.windowing.origins import origins_of
from holdfast.core.streams.windowing.rows import routed, row_type
from holdfast.core.streams.windowing.runs import RunReader
from holdfast.core.streams.windowing.windows import Hopping, Session, Sliding, Tumbling, Window
from holdfast.errors import ConfigError

E = TypeVar("E")
A = TypeVar("A")


class Windowed(Processor[Any, Any], Generic[E, A]):
    """An aggregate of the records of each key in each window.

    *source* is a `Source`, a step or a `Stream`, which bring serde and event time, or the name of a topic
    with *decode* and *time*. *by* returns an event's key, *time* its event time in ms since 1970. Without
    *time*, append time counts, so no record is out of order or late, and a warning says so; `time="append"`
    silences it. *fold* gets the aggregate so far, None at first, and the event, and returns the new
    aggregate, of type *row*. Sessions also need *merge*, which gets the aggregates of an earlier and a later
    session.

    **Stream time** is the highest event time seen in a partition. A window is closed when stream time >= end
    + grace, and then takes no more records. A record that none of its windows takes is **late**: it is sent
    to the topic *late* as it came (key, value, headers), and counted in the row `stream_key(partition)`, a
    `StreamRow`, in any case. A record whose event time is far in the future closes all windows of its
    partition; have *decode* or *time* raise for a time that cannot be, and it goes to quarantine.

    A record is refused if it makes a result that could not be encoded, or would be larger than a record may
    be. A result that fails all the same when its time comes is quarantined alone, at the stage "close", and
    counted as *failed* in the `StreamRow`.

    **Downstream of a step** that knows event time, stream time is the least watermark of the partitions that
    the step reads, without those that stay at the ends of their logs; and a record is late by the highest
    event time before it in its own source partition. So windows hold the same records at whatever pace the
    sources are read. Sessions stay open for a gap longer. `OriginRow` rows hold how far each of these
    partitions has come, and how many of its records were late.

    *emit* is `updates(topic)`, `final(topic)` or None; results are `WindowResult`s, and their keys are those
    of the rows. With *in_place* they go to the partition of the record that caused them.

    **Windows of windows.** Final results to an `Internal` topic, or to a `Stream` with `watermarks=True`,
    carry their origins as the records of a step do: each partition of this processor is one. Its watermark is
    the stream time less grace and the length of a window (for sessions, the gap): no later result has an
    earlier time, be it the start or the last ms of its window. So windows of these results are the same at
    any pace, too. For sessions, use the end as event time: sessions that start more than a gap before it are
    late by the rest, unless grace covers it. A partition does not let go while a window is open there whose
    result is still to come.

    **Ordered.** With *ordered*, a window's records are kept in rows, and folded by event time, origin, offset
    when it closes: for folds whose result depends on the order. Downstream of several steps, records of one
    origin and time are folded in the order of their bytes, since the order of arrival depends on pace. Before
    it closes, a window cannot be queried, and there are no `updates`. Sessions then need no *merge*. A record
    for which *fold* raises is quarantined alone, at the stage "close", and counted as *failed*.

    Rows are `WindowRow`s under `window_key(key, start_ms)`; `TableClient.windows` reads them. They are
    removed when stream time >= end + grace + *retention* (a duration such as "1d", or ms; of sliding windows,
    at least their difference + 1 ms). A record closes and removes at most 100,000 windows; if more are due,
    later records, or ticks, continue.

    **Idle.** Stream time does not pass in a partition without traffic. With *idle* (a duration; None for
    never), the worker's clock advances it once it has not moved for that long, but only to the next due time:
    a window that ends then sends its final result *idle* after its end and grace, by the append times, and is
    removed in its time. Such a processor is declared with `on=`, of one source: its ticks are recorded as
    choices, and replayed.

    Raises ConfigError, at the declaration, for parameters that do not fit together.

    >>> from holdfast.core.streams.emitting import final
    >>> views = Windowed(
    ...     name="views", source="clicks", decode=bytes.decode, by=str, window=Tumbling("1h", grace="5m"),
    ...     fold=lambda count, page: (count or 0) + 1, row=int, emit=final("hourly-views"),
    ... )
    >>> views.table, views.emits
    ('views.v1', ('hourly-views',))
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str,
        source: str | Readable[E],
        decode: Callable[..., E] | None = None,
        by: Callable[[E], str],
        window: Window,
        fold: Callable[[A | None, E], A],
        row: type[A] | Any,
        time: Time[E] = None,
        merge: Callable[[A, A], A] | None = None,
        emit: Updates | Final | None = None,
        late: str | None = None,
        retention: str | int = "1d",
        idle: str | int | None = None,
        ordered: bool = False,
        version: int = 1,
        inputs: tuple[DecoderInput, ...] = ("value",),
        route: Callable[[str, int], int | None] | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose = f"processor {name}"
        _check_inputs(whose, inputs)
        topic, reads_event, inputs, declared = reading(whose, source, decode, inputs)
        reads_time = _event_time(whose, topic, declared, time)
        _check_calls(whose, inputs, decode=reads_event, by=by, time=reads_time, fold=fold, merge=merge)
        if not isinstance(emit, Updates | Final | None):
            raise ConfigError(f"{whose}: emit {emit!r:.100}: write updates(topic) or final(topic)")
        if late is not None and not isinstance(late, str):
            raise ConfigError(f"{whose}: late {late!r:.100}: give the name of a topic")
        check_topics(whose, (topic,), None if emit is None else emit.topic, late)
        retention_ms = duration_ms(retention, f"{whose}: retention", least_ms=0)
        idle_ms = None if idle is None else duration_ms(idle, f"{whose}: idle")
        by_origin = tells_origins(topic) and reads_time is not None
        if type(ordered) is not bool:
            raise ConfigError(f"{whose}: ordered is {ordered!r:.100}; write True or False")
        kept = _ordered(whose, topic, reads_event, inputs, emit, merge) if ordered else None
        windows = _fold_of(
            whose,
            window,
            merge,
            ordered=kept,
            by=by,
            time=reads_time,
            aggregate=fold,
            emit=emit,
            late=late,
            retention_ms=retention_ms,
            idle_ms=idle_ms,
            sent_later=_sent_later(emit, row),
            none_fits=_takes_none(row),
            by_origin=by_origin,
        )
        more: tuple[DecoderInput, ...] = (
            ("partition",) if late is None else ("key", "value", "headers", "partition")
        )
        if by_origin and late is None:
            more = (*more, "headers")
        carrying: Callable[..., Callable[..., Arrived | ToldArrived]] = (
            _carrying_origin if by_origin else _carrying
        )
        if kept is None:
            reads = carrying(reads_event, len(inputs), raw=late is not None)
        else:
            more = ("partition", "offset", "headers", *(() if late is None else ("key", "value")))
            reads = _carrying_kept(reads_event, len(inputs), kept, by_origin=by_origin)
        super().__init__(
            name=name,
            **_read_from(
                topic, windows, reads, (*inputs, *more), ticks=idle_ms is not None, by_origin=by_origin
            ),
            row=row_type(row, idle=idle_ms is not None, origins=by_origin, ordered=kept is not None),
            version=version,
            route=routed(route),
            emits=_topics(None if emit is None else emit.topic, late),
            in_place=in_place,
            on_error=on_error,
            emits_from=emits_from,
        )

    @property
    def passing(self) -> bool:
        return True

    @property
    def takes_marks(self) -> bool:
        return self.meets_marks and _folds_by_origin(self.fold)

    @property
    def fold_all(self) -> FoldAll | None:
        reader: RunReader | None = getattr(self.decode, "in_runs", None)
        if reader is None or not self._by_origin:
            return None
        fold_run = self._windows.by_origin_all

        def folded(
            rows: Rows[Any],
            columns: Sequence[Sequence[Any]],
            times_ms: Sequence[int],
            append_ms: int,
            emits: list[Emit],
        ) -> tuple[int, Emits] | None:
            run = reader.read(columns, times_ms, append_ms)
            return None if run is None else fold_run(rows, run, emits)

        return folded

    @property
    def final_emits(self) -> tuple[str, ...]:
        windows = self._windows
        is_said = windows.final_topic is not None and (self._by_origin or windows.tells)
        return (str(windows.final_topic),) if is_said else ()

    @property
    def told_topics(self) -> tuple[str, ...]:
        return (str(self._windows.final_topic),) if self._windows.tells else ()

    def origin_clock(self, stored: bytes | None = None) -> None:
        """Return None: the watermarks of its results follow from its rows."""

    def reached_in(
        self, rows: Rows[Any], partition: int, at_end: frozenset[int] = frozenset()
    ) -> StepReached | None:
        return self._windows.reached(rows, partition, at_end=bool(at_end), by_origin=self._by_origin)

    @property
    def _method(self) -> Any:
        """Return the method that folds a record, which may be traced."""
        fold: Any = self.folds[0].fold
        return getattr(fold, "fold", fold)

    @property
    def _windows(self) -> WindowFold:
        method = self._method
        found: WindowFold = getattr(method, "__self__", method)
        return found

    @property
    def _by_origin(self) -> bool:
        return _folds_by_origin(self._method)

    @property
    def lateness(self) -> Lateness:
        return self._windows.lateness

    def held_back(self, rows: Rows[Any], partition: int) -> list[HeldBack]:
        return origins_of(rows, partition).held_back if self._by_origin else []


def _folds_by_origin(fold: object) -> bool:
    """Return whether a fold of windows, which may be traced, follows the origins of its records."""
    return getattr(getattr(fold, "fold", fold), "__func__", None) is WindowFold.by_origin


def _event_time(whose: str, topic: str, source: Source[Any] | None, time: Time[Any]) -> Any:
    """Return the function that reads an event's time: *time*, else that of *source*; None for append time,
    with a warning unless it was declared.
    """
    if isinstance(time, str):
        if time != "append":
            raise ConfigError(f'{whose}: time is {time!r:.100}; write a function of the event, or "append"')
        return None
    if time is None and source is not None:
        warn_of_append_time(whose, source)
        return source.reads_time
    if time is None:
        warn_of_unsaid_time(whose, str(topic))
    return time


def _check_calls(whose: str, inputs: tuple[DecoderInput, ...], **given: Callable[..., Any] | None) -> None:
    """Raise ConfigError for a function that cannot take the arguments of its calls."""
    takes: dict[str, tuple[str, ...]] = {
        "decode": inputs,
        "by": ("event",),
        "time": ("event",),
        "fold": ("aggregate", "event"),
        "merge": ("earlier", "later"),
    }
    for what, call in given.items():
        may_lack = what in ("time", "merge") and call is None
        if not may_lack and (why := why_uncallable(call, takes[what])) is not None:
            raise ConfigError(f"{whose}: {what} {why}")


def _read_from(
    source: str,
    fold: WindowFold,
    decode: Callable[..., Arrived | ToldArrived],
    inputs: tuple[DecoderInput, ...],
    *,
    ticks: bool,
    by_origin: bool,
) -> dict[str, Any]:
    """Return the declaration of a processor's source; one that ticks has `on=`."""
    folds: Callable[..., Any] = fold.by_origin if by_origin else fold
    if ticks:
        raw: Source[Any] = RawSource(source, Bytes(), "append", Bytes())
        return {"on": {raw: FoldColumns(folds, decode, inputs, marks=by_origin)}, "on_tick": fold.tick}
    return {"source": source, "fold": folds, "decode": decode, "inputs": inputs}


def _takes_none(row: Any) -> bool:
    """Return whether None is of type *row*; a *row* that is no type is refused elsewhere."""
    try:
        msgspec.convert(None, row)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def _sent_later(emit: Updates | Final | None, row: Any) -> Callable[[Any], bytes | None] | None:
    """Return the encoder of the results that are sent later than they change, None if it cannot fail."""
    if emit is None or (isinstance(emit, Updates) and not emit.every_ms):
        return None
    return None if emit.encode is encode_json and row in (int, float, bool) else emit.encode


def _topics(*topics: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topic for topic in topics if topic is not None))


def _check_inputs(whose: str, inputs: object) -> None:
    if not isinstance(inputs, tuple | list):
        raise ConfigError(f"{whose}: inputs {inputs!r:.100}; write a tuple, as in ('value',)")


def _fold_of(
    whose: str,
    window: Window,
    merge: Callable[[Any, Any], Any] | None,
    *,
    retention_ms: int,
    by_origin: bool,
    **common: Any,
) -> WindowFold:
    if isinstance(window, Session) == (merge is None) and common["ordered"] is None:
        raise ConfigError(
            f"{whose}: sessions merge, so merge= must tell how: a function of (earlier, later)"
            if merge is None
            else f"{whose}: only sessions merge; leave out merge="
        )
    match window:
        case Tumbling():
            return TumblingFold(window, retention_ms=retention_ms, **common)
        case Hopping():
            return HoppingFold(window, retention_ms=retention_ms, **common)
        case Sliding():
            kept_ms = max(retention_ms, window.difference_ms + 1)  # new windows are made of those before them
            return SlidingFold(window, by_origin=by_origin, retention_ms=kept_ms, **common)
        case Session():
            # A record that is not late by its own origin may join a session that ended a gap before.
            held_ms = window.gap_ms if by_origin else 0
            return SessionFold(window, merge=merge, retention_ms=retention_ms, held_ms=held_ms, **common)
        case _:
            raise ConfigError(f"{whose}: window {window!r:.100}: take Tumbling, Hopping, Sliding or Session")


def _ordered(
    whose: str,
    topic: str,
    decode: Callable[..., Any],
    inputs: tuple[DecoderInput, ...],
    emit: Updates | Final | None,
    merge: Callable[[Any, Any], Any] | None,
) -> Ordered:
    """Return how records are kept; ConfigError for options that contradict folding when a window closes."""
    if isinstance(emit, Updates):
        raise ConfigError(
            f"{whose}: with ordered=True records are folded when their window closes, so there are no"
            f" intermediate results: write emit=final({str(emit.topic)!r}), or leave out ordered="
        )
    if merge is not None:
        raise ConfigError(
            f"{whose}: with ordered=True a session's records are folded when it closes, so aggregates are"
            " never merged: leave out merge="
        )
    return Ordered(decode, inputs, str(topic), mixed=_is_mixed(topic))


def _is_mixed(topic: str) -> bool:
    """Return whether the offsets of records of one origin depend on pace, as far as is known."""
    return tells_origins(topic) and (getattr(topic, "mixed", False) or not getattr(topic, "step", ""))


def _carrying_kept(
    decode: Callable[..., Any], inputs: int, ordered: Ordered, *, by_origin: bool
) -> Callable[..., Arrived | ToldArrived]:
    """Return a decoder that also returns the record as it is kept until its windows close."""

    def with_kept(*columns: Any) -> Arrived | ToldArrived:
        given, (partition, offset, headers, *raw) = columns[:inputs], columns[inputs:]
        if by_origin and is_mark(headers):
            return mark_of(headers), partition, None, None
        key, value = raw or (None, None)
        event, kept = decode(*given), (key, value, plain(headers), offset, ordered.kept(given))
        return (event, partition, kept, told_of(headers)) if by_origin else (event, partition, kept)

    return with_kept


def _carrying_origin(decode: Callable[..., Any], inputs: int, *, raw: bool) -> Callable[..., ToldArrived]:
    """Return a decoder that also returns the origin of a record that a step has written."""
    if raw:

        def with_record(*columns: Any) -> ToldArrived:
            key, value, headers, partition = columns[inputs:]
            if is_mark(headers):
                return mark_of(headers), partition, None, None
            event = decode(*columns[:inputs])
            return event, partition, (key, value, plain(headers)), told_of(headers)

        return _in_runs(with_record, RunReader(decode, inputs, raw=True))

    if inputs == 1:

        def with_one(column: Any, partition: int, headers: Headers) -> ToldArrived:
            told = quickly_told_of(headers)
            if told is not None:
                return decode(column), partition, None, told
            if is_mark(headers):
                return mark_of(headers), partition, None, None
            return decode(column), partition, None, told_of(headers)

        return _in_runs(with_one, RunReader(decode, inputs, raw=False))

    def with_origin(*columns: Any) -> ToldArrived:
        partition, headers = columns[inputs:]
        if is_mark(headers):
            return mark_of(headers), partition, None, None
        return decode(*columns[:inputs]), partition, None, told_of(headers)

    return _in_runs(with_origin, RunReader(decode, inputs, raw=False))


def _in_runs(decode: Callable[..., ToldArrived], reader: RunReader) -> Callable[..., ToldArrived]:
    decode.in_runs = reader  # type: ignore[attr-defined]  # see Windowed.fold_all
    return decode


def _carrying(decode: Callable[..., Any], inputs: int, *, raw: bool) -> Callable[..., Arrived]:
    """Return a decoder that returns the event with the other parts of its record that the fold needs."""
    if raw:

        def with_record(*columns: Any) -> Arrived:
            key, value, headers, partition = columns[inputs:]
            return decode(*columns[:inputs]), partition, (key, value, headers)

        return with_record
    if inputs == 1:

        def with_partition(column: Any, partition: int) -> Arrived:
            return decode(column), partition, None

        return with_partition

    def of_several(*columns: Any) -> Arrived:
        return decode(*columns[:inputs]), columns[inputs], None

    return of_several
