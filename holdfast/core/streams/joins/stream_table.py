"""`JoinStreamTable`: records of a stream with the row that a table has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, overload

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import EmitsFrom, OnError, Processor
from holdfast.core.engine.declared.sources import Asked, FoldWith, Readable, Source
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.core.engine.emits import Emits, Headers
from holdfast.core.engine.origins import Mark, plain
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.joins.joining import (
    Route,
    TableHow,
    check_apart,
    check_key,
    check_late,
    held_type,
    joined_sources,
    key_of,
    time_and_move,
)
from holdfast.core.streams.joins.table_history import (
    STREAM_SIDE,
    TABLE,
    TableHistory,
    history_routed,
    history_type,
)
from holdfast.core.streams.reading import warn_of_append_time
from holdfast.errors import ConfigError

S = TypeVar("S")
V = TypeVar("V")
J = TypeVar("J")


class JoinStreamTable(Processor[Any, Any], Generic[S, V, J]):
    """Each record of *stream* with the row that *table* has for it.

    A record of *table* sets the row of its key, one without value (a tombstone) removes it, and neither sends
    anything. For a record of *stream*, *join* gets its event and the row, and its result is sent to *to*
    under the record's key. *by* returns the key of the row that a record wants, if that is not the record's
    own; the record must be in that row's partition all the same. *how* is "inner", which passes over records
    without a row, or "left", which joins them with None. Records of *stream* without a value are passed over.
    One without a key is refused, but joined with None if *how* is "left".

    The row is the one that exists when the record is folded. Of the next records of both topics, the one with
    the least time is folded first: its event time where the source reads it, else its append time; at equal
    ms, that of the table.

    **Versioned.** With *history* (a duration such as "1d", or ms) the row is the one *as of the record's
    event time*, which the sources' `time` reads; without `time=` it is the append time. A tombstone has no
    event time: where the table has `time=`, it removes the row from table time on. A version of a row is kept
    as long as **table time**, the highest event time of the table in this partition, is less than *history*
    past its end. A record of *stream* that is more than *history* before table time finds no row. A record of
    *table* that is older is late: it changes nothing, is sent to *late* if that is given, and counted in the
    row `stream_key(partition)`, a `StreamRow`. A record of *table* whose event time is far in the future
    makes all records of its partition late and drops the history of every key; have the serde or *time* raise
    for an impossible time, and the record goes to quarantine.

    With history, the row of a key is its last `Version`, and each older one is a row of its own; without it,
    rows are the values of *table*. Raises ConfigError, at the declaration, for parameters that do not fit
    together.
    """

    __slots__ = ()

    @overload
    def __init__(
        self,
        *,
        name: str,
        stream: Readable[S | None],
        table: Readable[V | None],
        join: Callable[[S, V], J],
        to: Stream[J],
        how: Literal["inner"] = "inner",
        by: Callable[[S], str] | None = None,
        history: str | int | None = None,
        late: Stream[Any] | None = None,
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        name: str,
        stream: Readable[S | None],
        table: Readable[V | None],
        join: Callable[[S, V | None], J],
        to: Stream[J],
        how: TableHow,
        by: Callable[[S], str] | None = None,
        history: str | int | None = None,
        late: Stream[Any] | None = None,
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        stream: Readable[Any],
        table: Readable[Any],
        join: Callable[[Any, Any], J],
        to: Stream[J],
        how: TableHow = "inner",
        by: Callable[[S], str] | None = None,
        history: str | int | None = None,
        late: Stream[Any] | None = None,
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose = f"processor {name}"
        given = {"stream": stream, "table": table}
        events, states = joined_sources(whose, given, to, how, ("inner", "left"), join)
        check_apart(whose, {"stream": events, "table": states})
        if by is None:
            check_key(whose, events)
        elif (why := why_uncallable(by, ("event",))) is not None:
            raise ConfigError(f"{whose}: by {why}")
        by_origin = _is_by_origin(states), _is_by_origin(events)
        held, past = held_type(whose, states), _history(whose, states, history, by_origin)
        if past is not None:
            warn_of_append_time(whose, events, states)
        if late is not None and past is None:
            raise ConfigError(f"{whose}: late= needs history=: without it no record of the table is late")
        check_late(whose, late, to, (events.topic, states.topic))

        asked: tuple[Asked, ...] = ("key",) if past is None else ("key", "partition", "timestamp")
        told = past is not None and by_origin[STREAM_SIDE]
        joined = FoldWith(
            _joining(events, join, to, how=how, by=by, past=past),
            (*asked, "headers") if told else asked,
            marks=told,
        )
        super().__init__(
            name=name,
            on={states: _keeping(past, late, asked, by_origin[TABLE]), events: joined},
            row=held if past is None else history_type(held, by_origin),
            version=version,
            route=route if past is None else history_routed(route),
            emits=(to,) if late is None else (to, late),
            in_place=in_place,
            on_error=on_error,
            emits_from=emits_from,
        )


def _is_by_origin(source: Source[Any]) -> bool:
    return isinstance(source.topic, Internal) and source.reads_time is not None


def _history(
    whose: str, table: Source[Any], history: str | int | None, by_origin: tuple[bool, bool]
) -> TableHistory | None:
    if history is None:
        return None
    return TableHistory(table.reads_time, duration_ms(history, f"{whose}: history"), by_origin)


def _joining(
    stream: Source[Any],
    join: Callable[[Any, Any], J],
    to: Stream[J],
    *,
    how: TableHow,
    by: Callable[[Any], str] | None,
    past: TableHistory | None,
) -> Callable[..., Emits]:
    """Return the fold of *stream*: it sends the result of *join* for a record and its row; with a *past*, for
    the row as of the record's time.
    """

    def enrich(
        rows: Rows[Any],
        event: Any,
        at_ms: int,
        key: Any,
        partition: int = -1,
        timestamp: int = -1,
        headers: Headers = (),
    ) -> Emits:
        if event is None:
            return None
        if event.__class__ is Mark:
            assert past is not None
            past.mark(rows, STREAM_SIDE, event, partition)
            return None
        wanted = key if by is None else by(event)
        row = None
        if wanted is not None or how == "inner":
            of = key_of(wanted)
            if past is None:
                row = rows.get(of)
            else:
                time_ms, moves = time_and_move(stream, event, timestamp)
                row = past.asked(rows, of, time_ms, partition, headers, moves=moves)
        return None if row is None and how == "inner" else (to.emit(key, join(event, row)),)

    return enrich


def _keeping(
    past: TableHistory | None, late: Stream[Any] | None, asked: tuple[Asked, ...], by_origin: bool
) -> FoldWith:
    """Return the fold of the table: it sets rows, with a *past* one for each version, and sends late records
    to *late*.
    """
    if past is None:
        return FoldWith(_keep, ("key",))

    def keep(
        rows: Rows[Any],
        value: Any,
        at_ms: int,
        key: Any,
        partition: int,
        timestamp: int,
        headers: Headers = (),
    ) -> Emits:
        if value.__class__ is Mark:
            past.mark(rows, TABLE, value, partition)
            return None
        if past.keep(rows, key_of(key), value, timestamp, partition, headers) or late is None:
            return None
        return (late.emit(key, value, headers=plain(headers)),)

    has_headers = late is not None or by_origin
    return FoldWith(keep, (*asked, "headers") if has_headers else asked, marks=by_origin)


def _keep(rows: Rows[Any], value: Any, at_ms: int, key: Any) -> None:
    of = key_of(key)
    if value is not None:
        rows[of] = value
    elif of in rows:
        del rows[of]
