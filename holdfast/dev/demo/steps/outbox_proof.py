"""Holds what an outbox published against the database it came from: every order once, each customer's in
order, nothing rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.sequences import advance
from holdfast.core.producers.stamps import Stamp, read_stamp
from holdfast.errors import BrokerError
from holdfast.kafka.clients import make_reader, reader_options
from holdfast.kafka.reading.log_reader import LogReader

READ_RECORDS = 5_000
READ_DEADLINE_S = 120.0
SHOWN = 5


class DemoOrder(msgspec.Struct, frozen=True):
    """An order, as in the database and in its message."""

    order: int
    customer: str
    cents: int


_decode = msgspec.json.Decoder(DemoOrder).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One record of the destination topic. *stamp* is None where no harvester has numbered it."""

    partition: int
    offset: int
    order: DemoOrder
    stamp: Stamp | None

    def __str__(self) -> str:
        return f"order {self.order.order} at {self.partition}/{self.offset}"


def flaws(orders: Mapping[int, DemoOrder], published: Iterable[Published]) -> list[str]:
    """Return the faults of *published*, which is in offset order in each partition, for the *orders* that
    were kept.

    >>> kept = {1: DemoOrder(1, "ada", 500), 2: DemoOrder(2, "ada", 900)}
    >>> def told(*found): return [Published(partition=0, offset=at, order=each, stamp=None) for at, each in enumerate(found)]
    >>> flaws(kept, told(kept[2], kept[1]))
    ['order 1 at 0/1 comes after order 2 of ada']
    >>> flaws(kept, told(kept[1], kept[1], DemoOrder(2, "ada", 13)))  # doctest: +NORMALIZE_WHITESPACE
    ['order 1 at 0/1 comes twice, first at 0/0', 'order 2 at 0/2 is not what the database has: 13 cents of ada',
     'order 2 was never published']
    """  # noqa: E501
    found, seen, last = [], dict[int, Published](), dict[str, int]()
    for each in published:
        order = each.order
        if orders.get(order.order) != order:
            found.append(f"{each} is not what the database has: {order.cents} cents of {order.customer}")
            continue
        if (first := seen.setdefault(order.order, each)) is not each:
            found.append(f"{each} comes twice, first at {first.partition}/{first.offset}")
        elif last.get(order.customer, 0) > order.order:
            found.append(f"{each} comes after order {last[order.customer]} of {order.customer}")
        last[order.customer] = max(order.order, last.get(order.customer, 0))
    return [
        *found,
        *(f"order {number} was never published" for number in sorted(orders.keys() - seen.keys())),
    ]


def gaps(published: Iterable[Published]) -> list[str]:
    """Return where the harvesters' own numbers are not contiguous, or epochs go back, per producer and
    partition.
    """
    found, at = [], dict[tuple[str, int], Stamp]()
    for each in published:
        if each.stamp is None:
            found.append(f"{each} has no number")
            continue
        place = (each.stamp.producer, each.partition)
        before = at.get(place)
        wanted = 0 if before is None else advance(before.sequence, 1)
        if each.stamp.sequence != wanted:
            found.append(f"{each} has number {each.stamp.sequence} of {each.stamp.producer}, not {wanted}")
        if before is not None and each.stamp.epoch < before.epoch:
            found.append(f"{each} is of epoch {each.stamp.epoch}, after one of epoch {before.epoch}")
        at[place] = each.stamp
    return found


class PublishedReader:
    """Reads a destination topic from its beginning, records of committed transactions only."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        partitions: int,
        *,
        committed: bool = True,
        clock: Clock = system_clock,
    ) -> None:
        self._clock, self._topic = clock, topic
        config = settings.consumer(
            **reader_options(f"{settings.app}-reader", committed=committed, wait_ms=10)
        )
        self._reader = LogReader(make_reader(config), limit=READ_RECORDS, refuse=self._refuse, clock=clock)
        self._reader.assign({(topic, partition): 0 for partition in range(partitions)})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.close()

    def take(self, wait_s: float = 0.02) -> list[Published]:
        """Return the messages since the last call, waiting up to *wait_s*; those of one partition in
        order.
        """
        return list(map(_decoded, self._reader.read(wait_s)))

    def to_end(self) -> list[Published]:
        """Return everything up to the end of the topic as it is now; BrokerError when that is not reached
        in time.
        """
        reader, deadline_s = self._reader, self._clock.monotonic_s() + READ_DEADLINE_S
        try:
            unread = reader.until(lambda: reader.ended.keys() == reader.next.keys(), deadline_s=deadline_s)
            return list(map(_decoded, unread))
        except TimeoutError:
            raise BrokerError(
                f"{self._topic} was not read to its end within {READ_DEADLINE_S:g} s: is the broker"
                " overloaded?"
            ) from None

    def _refuse(self, error: KafkaError) -> None:
        if not error.retriable():
            raise BrokerError(f"{self._topic} cannot be read: {error.str()}") from KafkaException(error)


def _decoded(message: Message) -> Published:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = tuple(message.headers() or ())
    order = _decode(message.value() or b"")
    return Published(partition=partition, offset=offset, order=order, stamp=read_stamp(headers))
