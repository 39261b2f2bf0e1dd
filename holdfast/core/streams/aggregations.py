"""Aggregations of all records of a key: each function returns a processor."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import DecoderInput, Emit, Emits, EmitsFrom, OnError, Processor
from holdfast.core.engine.declared.sources import Readable, timed
from holdfast.core.engine.event_times import TimeWithin, limit_of
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.emitting import Updates, check_topics, updates
from holdfast.core.streams.reading import reading
from holdfast.errors import ConfigError, DecodeError

E = TypeVar("E")
V = TypeVar("V")
A = TypeVar("A")

Route = Callable[[str, int], int | None]


class Mean(msgspec.Struct, frozen=True, array_like=True):
    """A mean as it is kept: the number of values and their sum."""

    count: int
    total: int | float

    @property
    def mean(self) -> float:
        """The arithmetic mean of the values."""
        return self.total / self.count


class Ranked(msgspec.Struct, frozen=True, array_like=True):
    """An item of a `top` list, and the highest score it has had."""

    item: str
    score: int


class Aggregated(TypedDict, total=False):
    """Parameters that every short form of `aggregate` takes, besides name, source, decode and key."""

    version: int
    inputs: tuple[DecoderInput, ...]
    route: Route | None
    emits: str | Updates | None
    on_error: OnError
    emits_from: EmitsFrom


class _Results(NamedTuple):
    """The topic of an aggregation's results, and the function that encodes them."""

    topic: str
    encode: Callable[[Any], bytes | None]


def aggregate(
    *,
    name: str,
    source: str | Readable[E],
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    fold: Callable[[A | None, E], A],
    row: type[A] | Any,
    version: int = 1,
    inputs: tuple[DecoderInput, ...] = ("value",),
    route: Route | None = by_key,
    emits: str | Updates | None = None,
    on_error: OnError = "quarantine",
    emits_from: EmitsFrom = "beginning",
) -> Processor[E, A]:
    """Return a processor that keeps one aggregate of the records of each *key*. The functions below are its
    short forms.

    *source* is a `Source`, a step or a `Stream`, or the name of a topic with *decode*, which makes an event
    of the *inputs* of a record. *fold* gets the aggregate so far, None at first, and the event, and
    returns the aggregate with it, of type *row*, or None, which removes it. *emits* is a topic, a `Stream`,
    or `updates(topic, encode=...)`: each change of a row is sent there with its key, and a removal as a
    tombstone; a record that leaves the aggregate equal sends nothing.

    Raises ConfigError, at the declaration, for parameters that do not fit together.

    >>> longest = aggregate(
    ...     name="longest", source="words", decode=bytes.decode, key=lambda word: word[0], row=str,
    ...     fold=lambda best, word: max(best or "", word, key=len),
    ... )
    >>> longest.table
    'longest.v1'
    """
    _check(name, key=(key, "event"), fold=(fold, "aggregate", "event"))
    topic, decode, inputs, read = reading(f"processor {name}", source, decode, inputs)
    results = _results(name, emits)
    if results is not None and read is not None and read.reads_time is not None:
        decode = timed(decode, read.reads_time)
    check_topics(f"processor {name}", (topic,), None if results is None else results.topic)

    return Processor(
        name=name,
        source=topic,
        decode=decode,
        fold=_keeping(key, fold) if results is None else _telling(key, fold, results),
        row=row,
        version=version,
        inputs=inputs,
        route=route,
        emits=() if results is None else (results.topic,),
        on_error=on_error,
        emits_from=emits_from,
    )


def _keeping(key: Callable[[E], str], fold: Callable[[A | None, E], A]) -> Callable[[Rows[A], E, int], None]:
    def keep(rows: Rows[A], event: E, at_ms: int) -> None:
        of = key(event)
        rows[of] = fold(rows.get(of), event)

    return keep


def _telling(
    key: Callable[[E], str], fold: Callable[[A | None, E], A], results: _Results
) -> Callable[[Rows[A], E, int], Emits]:
    """Return the fold that sends each change of an aggregate to the topic of *results*."""

    def keep_and_tell(rows: Rows[A], event: E, at_ms: int) -> Emits:
        of = key(event)
        before = rows.get(of)
        after = fold(before, event)
        if after == before:
            return None
        rows[of] = after
        return (Emit(results.topic, of, None if after is None else results.encode(after)),)

    return keep_and_tell


def count(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    **declared: Unpack[Aggregated],
) -> Processor[E, int]:
    """Return a processor that counts the records of each key; its rows are ints.

    The other parameters are those of `aggregate`, without fold and row.

    >>> from holdfast.testing import Topology
    >>> words = count(name="words", source="lines", decode=bytes.decode, key=str.lower, emits="counts")
    >>> with Topology([words]) as topology:
    ...     for word in ("to", "be", "to"):
    ...         _ = topology.pipe("lines", word, key=word)
    ...     topology.table(words), [each.value for each in topology.read("counts")]
    ({'be': 1, 'to': 2}, [b'1', b'1', b'2'])
    """
    return _short("count", declared, name=name, source=source, decode=decode, key=key, fold=_count, row=int)


def _count(counted: int | None, event: object) -> int:
    return 1 if counted is None else counted + 1


def total(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    value: Callable[[E], Any],
    row: Any = int,
    **declared: Unpack[Aggregated],
) -> Processor[E, Any]:
    """Return a processor that adds up the *value*s of each key's events; *row* is their type.

    Sums of floats depend on the order of the records, which is that of the log: a replay gives the same.
    """
    return _reduced(
        "total", declared, name=name, source=source, decode=decode, key=key, value=value, by=_add, row=row
    )


def _add(one: Any, other: Any) -> Any:
    return one + other


def mean(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    value: Callable[[E], int | float],
    **declared: Unpack[Aggregated],
) -> Processor[E, Mean]:
    """Return a processor that keeps the mean of the *value*s of each key's events; its rows are `Mean`."""
    _check(name, value=(value, "event"))

    def fold(so_far: Mean | None, event: E) -> Mean:
        found = value(event)
        return Mean(1, found) if so_far is None else Mean(so_far.count + 1, so_far.total + found)

    return _short("mean", declared, name=name, source=source, decode=decode, key=key, fold=fold, row=Mean)


def minimum(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    value: Callable[[E], Any],
    row: Any = int,
    **declared: Unpack[Aggregated],
) -> Processor[E, Any]:
    """Return a processor that keeps the lowest *value* of each key's events; *row* is its type. Of equal
    ones, the first.
    """
    return _reduced(
        "minimum", declared, name=name, source=source, decode=decode, key=key, value=value, by=min, row=row
    )


def maximum(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    value: Callable[[E], Any],
    row: Any = int,
    **declared: Unpack[Aggregated],
) -> Processor[E, Any]:
    """Return a processor that keeps the highest *value* of each key's events; *row* is its type. Of equal
    ones, the first.
    """
    return _reduced(
        "maximum", declared, name=name, source=source, decode=decode, key=key, value=value, by=max, row=row
    )


def latest(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    value: Callable[[E], V],
    row: Any,
    **declared: Unpack[Aggregated],
) -> Processor[E, V]:
    """Return a processor that keeps the *value* of each key's last record in the log; *row* is its type.

    It makes a table of a stream, as `toTable()` does in Kafka Streams.
    """
    return _reduced(
        "latest", declared, name=name, source=source, decode=decode, key=key, value=value, by=_second, row=row
    )


def _second(one: Any, other: Any) -> Any:
    return other


def reduce(
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    value: Callable[[E], V],
    by: Callable[[V, V], V],
    row: Any,
    **declared: Unpack[Aggregated],
) -> Processor[E, V]:
    """Return a processor that combines the *value*s of each key's events: the first as it is, then *by(so
    far, value)*.

    *row* is the type of the values. The other parameters are those of `aggregate`.
    """
    return _reduced(
        "reduce", declared, name=name, source=source, decode=decode, key=key, value=value, by=by, row=row
    )


def _reduced(
    what: str,
    declared: Aggregated,
    *,
    name: str,
    value: Callable[[E], V],
    by: Callable[[V, V], V],
    **given: Any,
) -> Processor[E, V]:
    _check(name, value=(value, "event"), by=(by, "so_far", "value"))

    def fold(so_far: V | None, event: E) -> V:
        return value(event) if so_far is None else by(so_far, value(event))

    return _short(what, declared, name=name, fold=fold, **given)


def top(
    k: int,
    *,
    name: str = "",
    source: str | Readable[E] = "",
    decode: Callable[..., E] | None = None,
    key: Callable[[E], str],
    item: Callable[[E], str],
    score: Callable[[E], int],
    **declared: Unpack[Aggregated],
) -> Processor[E, tuple[Ranked, ...]]:
    """Return a processor that keeps, for each key, the *k* items with the highest scores; its rows are tuples
    of `Ranked`.

    Each item is listed with the highest *score* it has had, so a score that falls later changes nothing;
    counts and totals only grow. The highest comes first; of equal ones, the item that is first in the
    alphabet.

    >>> from holdfast.testing import Topology
    >>> best = top(2, name="best", source="scores", decode=msgspec.json.decode, key=lambda e: "all",
    ...     item=lambda e: e[0], score=lambda e: e[1], route=None)
    >>> with Topology([best]) as topology:
    ...     for each in (["ada", 3], ["bob", 5], ["cy", 4], ["ada", 9]):
    ...         _ = topology.pipe("scores", each)
    ...     topology.table(best)["all"]
    (Ranked(item='ada', score=9), Ranked(item='bob', score=5))
    """
    if type(k) is not int or not 1 <= k <= 10_000:
        raise ConfigError(f"processor {name}: top {k!r:.100}: a whole number from 1 to 10000")
    _check(name, item=(item, "event"), score=(score, "event"))

    def fold(so_far: tuple[Ranked, ...] | None, event: E) -> tuple[Ranked, ...]:
        new = Ranked(item(event), score(event))
        held = so_far or ()
        if len(held) == k and _rank(new) > _rank(held[-1]):
            return held
        kept = [each for each in held if each.item != new.item]
        if len(kept) < len(held):
            new = min(new, *(each for each in held if each.item == new.item), key=_rank)
        insort(kept, new, key=_rank)
        return (*kept[:k],)

    return _short(
        "top", declared, name=name, source=source, decode=decode, key=key, fold=fold, row=tuple[Ranked, ...]
    )


def _rank(ranked: Ranked) -> tuple[int, str]:
    return -ranked.score, ranked.item


class _Arrived(NamedTuple):
    """A record as `dedupe` decodes it."""

    id: str
    record: Emit
    event: Any


def _time_of_arrived(time: Callable[[Any], int]) -> TimeWithin:
    """Return a function that reads the event time of an arrived record, with the limit that *time* has."""
    read: Callable[[Any], int] = getattr(time, "read", time)
    limit_ms, holds = limit_of(time)

    def of(arrived: _Arrived) -> int:
        if arrived.event is None:
            raise DecodeError("a record without a value tells no event time, by which ids are forgotten")
        return read(arrived.event)

    return TimeWithin(of, limit_ms, holds=holds)


def _once_in(ttl_ms: int, time: Callable[[Any], int]) -> Callable[[Rows[int], _Arrived, int], Emits]:
    """Return the fold that passes on the first record of each id, by the events' own times."""
    read: Callable[[Any], int] = getattr(time, "read", time)

    def fold(rows: Rows[int], arrived: _Arrived, at_ms: int) -> Emits:
        time_ms, passed_ms = read(arrived.event), rows.get(arrived.id)
        if passed_ms is not None and abs(time_ms - passed_ms) < ttl_ms:
            return None
        if passed_ms is None or time_ms > passed_ms:
            rows[arrived.id] = time_ms
            rows.wake_at(arrived.id, time_ms + ttl_ms, clock="event")
        return (arrived.record,)

    return fold


def dedupe(
    *,
    name: str,
    source: str | Readable[E],
    to: str,
    key: Callable[[E], str],
    ttl: str | int,
    clock: Literal["append", "event"] = "append",
    decode: Callable[..., E] | None = None,
    version: int = 1,
    inputs: tuple[DecoderInput, ...] = ("value",),
    route: Route | None = by_key,
    in_place: bool = False,
    on_error: OnError = "quarantine",
    emits_from: EmitsFrom = "beginning",
) -> Processor[Any, int]:
    """Return a processor that passes the first record of each id on to the topic *to*, and drops its repeats.

    *key* returns an event's id. The record is sent unchanged: key, value and headers. An id is forgotten
    *ttl* (a duration such as "1h", or ms) after the append time of the record that was sent, by a timer; a
    repeat does not prolong that. Rows are those append times.

    With *clock* "event", event time counts, as the source's `time=` reads it. A record is a repeat if its
    time is less than *ttl* from that of the record that was sent, whenever it is read. An id is forgotten
    once event time has passed it by *ttl*; downstream of a step, once that of all origins has. So a backlog
    downstream of a step gives the results that live records gave, provided that the records of one id have
    one origin and are in order there. Rows are event times then, so a table that already has rows needs a
    higher version. A record without a value has no event time, and is refused.

    Repeats are found within a partition: all records of an id must be in one.
    """
    whose = f"processor {name}"
    topic, reads, inputs, read = reading(whose, source, decode, inputs)
    _check(name, decode=(reads, *inputs), key=(key, "event"))
    check_topics(whose, (topic,), to)
    ttl_ms = duration_ms(ttl, f"{whose}: ttl")
    columns = len(inputs)

    def arrive(*given: Any) -> _Arrived:
        record_key, value, headers = given[columns:]
        event = reads(*given[:columns])
        return _Arrived(key(event), Emit(to, record_key, value, headers), event)

    decoded: Callable[..., _Arrived] = arrive
    if read is not None and read.reads_time is not None:
        decoded = timed(arrive, _time_of_arrived(read.reads_time))

    def fold(rows: Rows[int], arrived: _Arrived, at_ms: int) -> Emits:
        if arrived.id in rows:
            return None
        rows[arrived.id] = at_ms
        rows.wake_at(arrived.id, at_ms + ttl_ms)
        return (arrived.record,)

    def forget(rows: Rows[int], of: str, at_ms: int) -> None:
        del rows[of]

    declared: dict[str, Any] = {"fold": fold, "on_wake": forget}
    if clock == "event":
        time = None if read is None else read.reads_time
        if time is None:
            raise ConfigError(f'{whose}: clock="event" needs source=Source(..., time=...), which tells it')
        declared = {"fold": _once_in(ttl_ms, time), "on_event": forget, "time": _time_of_arrived(time)}
    elif clock != "append":
        raise ConfigError(f'{whose}: clock {clock!r:.100}; write "append" or "event"')
    return Processor(
        name=name,
        source=topic,
        decode=decoded,
        row=int,
        **declared,
        version=version,
        inputs=(*inputs, "key", "value", "headers"),
        route=route,
        emits=(to,),
        in_place=in_place,
        on_error=on_error,
        emits_from=emits_from,
    )


def _short(
    what: str, declared: Aggregated, *, name: str, source: str | Readable[Any], **given: Any
) -> Processor[Any, Any]:
    """Return the aggregate of which *what* is a short form; ConfigError for unknown or missing parameters."""
    if wrong := sorted(set(declared) - set(Aggregated.__annotations__)):
        more = ", ".join(Aggregated.__annotations__)
        raise ConfigError(
            f"processor {name}: {what} takes no {', '.join(wrong)}; it takes besides name, source, {more}"
        )
    if lacks := [what for what, said in (("name", name), ("source", source)) if said == ""]:
        raise ConfigError(
            f"processor {name or None}: {what} lacks {' and '.join(lacks)}: write {lacks[0]}='...'"
        )
    return aggregate(name=name, source=source, **given, **declared)


def _results(name: str, emits: str | Updates | None) -> _Results | None:
    match emits:
        case None:
            return None
        case str():
            return _results(name, updates(emits))
        case Updates(every_ms=0):
            return _Results(emits.topic, emits.encode)
        case Updates():
            raise ConfigError(
                f"processor {name}: every= is for windows: other results have no stream time of their own"
            )
        case _:
            raise ConfigError(f"processor {name}: emits {emits!r:.100}: give a topic, or updates(topic, ...)")


def _check(name: object, **calls: tuple[Any, *tuple[str, ...]]) -> None:
    for what, (call, *takes) in calls.items():
        if (why := why_uncallable(call, (*takes,))) is not None:
            raise ConfigError(f"processor {name}: {what} {why}")
