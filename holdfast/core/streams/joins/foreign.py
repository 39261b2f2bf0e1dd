"""`JoinForeign`: each row of a table with the row of another table that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import OnError, Processor
from holdfast.core.engine.declared.serdes import Msgpack, framing
from holdfast.core.engine.declared.sources import FoldWith, Input, Readable, Source, timed
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.event_times import TimeWithin, limit_of
from holdfast.core.engine.origins import UNHEARD
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.joins.joining import (
    Route,
    TableHow,
    check_result_key,
    check_tombstones,
    held_type,
    joined_sources,
    key_of,
)
from holdfast.errors import ConfigError

L = TypeVar("L")
R = TypeVar("R")
J = TypeVar("J")


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """A row of the left table, sent to the foreign key it refers to; *value* is None once it refers
    elsewhere.

    *offset* is that of its record, which orders the subscriptions of one left row.
    """

    key: str
    offset: int
    value: bytes | None


class ForeignAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A result for the left row that was at *offset*; None for none."""

    offset: int
    value: bytes | None


_decode_answer = msgspec.msgpack.Decoder(ForeignAnswer).decode


class ForeignRow(msgspec.Struct, Generic[R], frozen=True, array_like=True, tag="r"):
    """A row of the right table."""

    value: R


class SubscriberRow(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A left row that refers to this foreign key: its bytes and the offset of its record."""

    offset: int
    value: bytes


class AnsweredRow(msgspec.Struct, frozen=True, array_like=True):
    """The offset of the left row that was answered last, and whether a result exists."""

    offset: int
    there: bool


class JoinForeign(tuple[Processor[Any, Any], ...], Generic[L, R, J]):
    """Each row of the table *left* with the row of the table *right* whose key it names: three processors,
    for `create_app([*priced])`.

    *key* gives the key in *right* of a left value, None for none. *join* gets the two values; what it returns
    is sent to *to* under the left row's key, whenever either row changes. *how* is "inner", or "left", where
    the right one may be None. When a result is gone, a tombstone is sent, so that the values of *to* must
    allow None; it is sent once, and only after a result.

    The first processor sends each left row to the internal topic `<name>-subscriptions.v<version>` under its
    foreign key. The second folds that together with *right*, and sends its results to the internal topic
    `<name>-answers.v<version>` under the left row's key. Answers of several partitions for one row may
    overtake each other, so the third lets only those of the row's latest record pass. `holdfast topics
    create` makes the first topic with as many partitions as *right*, the second with as many as *left*.

    Limits: a change of a right row sends a result for each left row that refers to it, in one transaction.
    The third processor keeps a small row for each left key that ever existed. Raises ConfigError, at the
    declaration, for parameters that do not fit together.

    >>> from holdfast import Json, Source, Stream
    >>> from holdfast.testing import Topology
    >>> orders, products = Source("orders", Json(tuple[str, int] | None)), Source("products", Json(int | None))
    >>> prices = Stream("prices", Json(int | None))
    >>> priced = JoinForeign(name="priced", left=orders, right=products, key=lambda order: order[0],
    ...     join=lambda order, cents: order[1] * cents, to=prices)
    >>> with Topology([*priced]) as topology:
    ...     for source, key, value in ((orders, "o-1", ("tea", 2)), (products, "tea", 30), (products, "tea", None)):
    ...         _ = topology.pipe(source, value, key=key)
    ...     topology.values(prices)
    [('o-1', 60), ('o-1', None)]
    """  # noqa: E501

    __slots__ = ()

    @overload
    def __new__(
        cls,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        key: Callable[[L], str | None],
        join: Callable[[L, R], J],
        to: Stream[J | None],
        how: Literal["inner"] = "inner",
        version: int = 1,
        route: Route | None = by_key,
        on_error: OnError = "quarantine",
    ) -> JoinForeign[L, R, J]: ...

    @overload
    def __new__(
        cls,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        key: Callable[[L], str | None],
        join: Callable[[L, R | None], J],
        to: Stream[J | None],
        how: TableHow,
        version: int = 1,
        route: Route | None = by_key,
        on_error: OnError = "quarantine",
    ) -> JoinForeign[L, R, J]: ...

    def __new__(
        cls,
        *,
        name: str,
        left: Readable[Any],
        right: Readable[Any],
        key: Callable[[Any], str | None],
        join: Callable[[Any, Any], J],
        to: Stream[Any],
        how: TableHow = "inner",
        version: int = 1,
        route: Route | None = by_key,
        on_error: OnError = "quarantine",
    ) -> JoinForeign[L, R, J]:
        """Declare the three processors, `<name>-keys`, `<name>-matches` and `<name>`."""
        whose = f"processor {name}"
        rows, others = joined_sources(whose, {"left": left, "right": right}, to, how, ("inner", "left"), join)
        check_tombstones(whose, to)
        check_result_key(whose, to)
        if (why := why_uncallable(key, ("value",))) is not None:
            raise ConfigError(f"{whose}: key {why}")
        told = Msgpack(Subscription)
        subscriptions = Source(Internal(f"{name}-subscriptions", told, version=version), told)
        answers = Internal(f"{name}-answers", Msgpack(ForeignAnswer), version=version)

        def result(value: Any, other: Any) -> bytes | None:
            if other is None and how == "inner":
                return None
            return to.serde.encode(join(value, other))

        made = (
            _keys(f"{name}-keys", rows, key, result, subscriptions, answers, version, route),
            _matches(f"{name}-matches", rows, others, result, subscriptions, answers, version, route),
            _answered(name, to, answers, version, route),
        )
        return super().__new__(cls, tuple(replace(each, on_error=on_error) for each in made))


def _of_left(time: Callable[[Any], int]) -> TimeWithin:
    """Return a function that reads the event time of a left row, with the limit that *time* has."""
    read, (limit_ms, holds) = getattr(time, "read", time), limit_of(time)
    return TimeWithin(lambda record: UNHEARD if record[0] is None else read(record[0]), limit_ms, holds=holds)


Result = Callable[[Any, Any], bytes | None]
_encode = msgspec.msgpack.Encoder().encode


def _keys(
    name: str,
    left: Source[Any],
    key: Callable[[Any], str | None],
    result: Result,
    subscriptions: Source[Subscription],
    answers: Internal[ForeignAnswer],
    version: int,
    route: Route | None,
) -> Processor[Any, str]:
    """Return the processor that sends each left row to its foreign key; its rows are those keys."""
    to_foreign, to_answers = str(subscriptions.topic), str(answers)

    frames, frames_key = framing(left.serde), framing(left.key)
    inputs: tuple[Input, ...] = ("value", "key", "offset")
    if frames or frames_key:
        inputs = (*inputs, "headers")

    def decode(
        value: bytes | None, record_key: bytes | None, offset: int, headers: Headers = ()
    ) -> tuple[Any, ...]:
        # Subscriptions have no headers: a schema that the headers name is written before the value instead.
        told = value if frames is None else frames(value, headers)
        told_key = record_key if frames_key is None else frames_key(record_key, headers)
        return left.serde.decode(told), told, left.key.decode(told_key), offset

    def fold(rows: Rows[str], record: tuple[Any, ...], at_ms: int) -> Emits:
        event, value, record_key, offset = record
        of = key_of(record_key)
        before, wanted = rows.get(of), None if event is None else key(event)
        emits = []
        if before is not None and before != wanted:
            gone = Subscription(of, offset, None)
            emits.append(Emit(to_foreign, before, _encode(gone)))
            del rows[of]
        if wanted is not None:
            rows[of] = key_of(wanted)
            emits.append(Emit(to_foreign, wanted, _encode(Subscription(of, offset, value))))
        else:
            answer = ForeignAnswer(offset, None if event is None else result(event, None))
            emits.append(Emit(to_answers, of, _encode(answer)))
        return emits

    time = left.reads_time
    return Processor(
        name=name,
        source=left.topic,
        decode=decode if time is None else timed(decode, _of_left(time)),
        inputs=inputs,
        fold=fold,
        row=str,
        version=version,
        route=route,
        emits=(subscriptions.topic, answers),
    )


def _matches(
    name: str,
    left: Source[Any],
    right: Source[Any],
    result: Result,
    subscriptions: Source[Subscription],
    answers: Internal[ForeignAnswer],
    version: int,
    route: Route | None,
) -> Processor[Any, Any]:
    """Return the processor that joins the left rows of each foreign key with its right row."""
    to_answers = str(answers)

    def of_right(rows: Rows[Any], value: Any, at_ms: int, key: Any) -> Iterator[Emit]:
        foreign = key_of(key)
        if value is not None:
            rows[f"r/{foreign}"] = ForeignRow(value)
        elif f"r/{foreign}" in rows:
            del rows[f"r/{foreign}"]
        prefix = _subscribers(foreign)
        for subscriber, row in rows.scan(prefix):
            answer = ForeignAnswer(row.offset, result(left.serde.decode(row.value), value))
            yield Emit(to_answers, subscriber.removeprefix(prefix), _encode(answer))

    def of_left(rows: Rows[Any], told: Subscription, at_ms: int, key: Any) -> Iterator[Emit]:
        foreign = key_of(key)
        name = _subscribers(foreign) + told.key
        if told.value is None:
            del rows[name]
            return
        rows[name] = SubscriberRow(told.offset, told.value)
        other = rows.get(f"r/{foreign}")
        matched = result(left.serde.decode(told.value), None if other is None else other.value)
        yield Emit(to_answers, told.key, _encode(ForeignAnswer(told.offset, matched)))

    return Processor(
        name=name,
        on={right: FoldWith(of_right, ("key",)), subscriptions: FoldWith(of_left, ("key",))},
        row=_row_type(held_type(f"processor {name}", right)),
        version=version,
        route=_routed(route),
        emits=(answers,),
    )


def _row_type(right: Any) -> Any:
    return ForeignRow[right] | SubscriberRow


def _subscribers(foreign: str) -> str:
    """Return the prefix of the rows of a key's subscribers; it is no prefix of another key's rows."""
    return f"s{len(foreign)}/{foreign}/"


def _routed(route: Route | None) -> Route:
    def of(name: str, partitions: int) -> int | None:
        if route is None:
            return None
        kind, _, rest = name.partition("/")
        return route(rest if kind == "r" else rest[: int(kind[1:])], partitions)

    return of


def _answered(
    name: str, to: Stream[Any], answers: Internal[ForeignAnswer], version: int, route: Route | None
) -> Processor[Any, AnsweredRow]:
    """Return the processor that sends the answers for the latest record of each left row, and drops older
    ones.
    """
    decode = _decode_answer

    def fold(rows: Rows[AnsweredRow], told: tuple[str, ForeignAnswer], at_ms: int) -> Emits:
        of, answer = told
        before = rows.get(of)
        if before is not None and answer.offset < before.offset:
            return None  # of a row that the left table has replaced since
        rows[of] = AnsweredRow(answer.offset, answer.value is not None)
        if answer.value is None and (before is None or not before.there):
            return None
        return (Emit(str(to), to.key.encode(of), answer.value),)

    return Processor(
        name=name,
        source=answers,
        decode=lambda value, key: (key.decode(), decode(value)),
        inputs=("value", "key"),
        fold=fold,
        row=AnsweredRow,
        version=version,
        route=route,
        emits=(to,),
    )
