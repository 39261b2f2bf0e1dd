"""The transactional writer of one partition: fences older owners, then writes one Kafka transaction per
batch.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeAlias

from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emit, Headers
from holdfast.core.engine.emit_columns import EmitColumns
from holdfast.core.engine.fold.stepping import Written as Changes
from holdfast.core.engine.origins import ORIGIN
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, FencedError
from holdfast.kafka.loop_turn import LoopTurn
from holdfast.kafka.transactions.transactional_producer import (
    AbortableError,
    TransactionalProducer,
    UndeliverableError,
    Written,
)
from holdfast.tables.lived import Within
from holdfast.tables.marks import StepMarks

logger = logging.getLogger(__name__)

TURN_EMITS, TURN_COLUMNS = 256, 1_024
"""After so many emits others of the event loop may have their turn: a look at the clock costs as much as one
of them. In columns they take less time.
"""
SHORT_KEY_BYTES, MOST_KEYS = 64, 1 << 16
"""Partitions of keys up to this length are remembered: murmur2 is slow here, and most keys come again.
"""
_BACKOFF_S = 0.1
_NO_HEADERS: list[tuple[str, bytes | None]] = []


class ChangelogPart(NamedTuple):
    """A part of a transaction: records of the changelog, records to emit, and marks to follow them."""

    puts: Sequence[tuple[bytes, bytes | None]]
    emits: Sequence[Emit]
    marks: StepMarks | None = None


class ChangelogWriter:
    """Owns *producer*, that of one processor and partition.

    One call at a time, on one event loop.
    """

    def __init__(self, producer: TransactionalProducer, *, changelog: str, partition: int) -> None:
        self._place, self._producer = (changelog, partition), producer

    async def fence(self, timeout_s: float) -> None:
        """Raise this id's epoch: the broker aborts an older owner's open transaction and refuses it from then
        on.

        Raises BrokerError when that is not settled in time.
        """
        changelog, partition = self._place
        async with self._settled_within(timeout_s, f"cannot fence {self._producer.transactional_id}"):
            await self._producer.fence()
            await self._producer.partitions(changelog, more_than=partition)

    async def write(
        self, changes: Changes, extra: Sequence[Emit], timeout_s: float, marks: StepMarks | None = None
    ) -> int:
        """Write rows, emits, *extra* (quarantined records), *marks* of a step and the position marker in one
        transaction; return the changelog's next offset.

        Raises FencedError when a newer owner exists, UndeliverableError when a topic refuses a record,
        BrokerError when the outcome is not settled in time. A commit that is not answered is asked for again,
        never repeated as a new transaction, so its outcome is known when this returns.
        """
        emits = [*changes.emits, *extra] if extra else changes.emits
        # The marker goes last: readers of the changelog apply a transaction when they meet it.
        part = ChangelogPart([*changes.puts, changes.closing()], emits, marks)
        return await self.write_parts(lambda: (part,), timeout_s)

    async def write_parts(self, parts: Callable[[], Iterable[ChangelogPart]], timeout_s: float) -> int:
        """Write one transaction that need not be in memory as a whole; otherwise as `write`.

        *parts* yields it from its beginning each time it is called; the last record of the last part is the
        marker.
        """
        producer, changelog_next = self._producer, 0
        async with self._settled_within(timeout_s, f"{producer.transactional_id}: transaction failed"):
            while True:
                try:
                    for part in parts():
                        changelog_next = await self._append(part)
                    await producer.end(commit=True)
                except UndeliverableError:
                    await producer.end(commit=False)
                    raise
                except AbortableError as error:
                    logger.warning(
                        "transaction of %(producer)s aborted; writing it again: %(error)s",
                        {"producer": producer.transactional_id, "error": error},
                    )
                    producer.why = error
                    await producer.end(commit=False)
                    await asyncio.sleep(_BACKOFF_S)
                else:
                    return changelog_next

    @asynccontextmanager
    async def _settled_within(self, timeout_s: float, what: str) -> AsyncIterator[None]:
        """Raise BrokerError, with the broker's last answer, unless the block has ended after *timeout_s*."""
        try:
            async with Within(timeout_s):
                yield
        except TimeoutError as error:
            raise BrokerError(
                f"{what}: not settled within {timeout_s:g} s: {self._producer.why}; is the broker reachable?"
            ) from error

    async def _append(self, part: ChangelogPart) -> int:
        """Append a part of what the transaction writes; return the offset after its last record of the
        changelog, 0 for none.
        """
        records: dict[Place, Sequence[Written]] = {}
        if part.puts:
            records[self._place] = [(key, value, _NO_HEADERS) for key, value in part.puts]
        topics: dict[str, _ByPartition] = {}
        if in_columns := isinstance(part.emits, EmitColumns):
            await self._sort_columns(part.emits, topics)
        else:
            await self._sort(part.emits, topics)
        if part.marks is not None:
            await self._mark(part.marks, topics)
        for topic, sent in topics.items():
            for partition, there in enumerate(sent.records):
                if there:
                    records[topic, partition] = _Carrying(there) if in_columns else there
        return (await self._producer.append(records)).get(self._place, 0)

    async def _sort(self, emits: Sequence[Emit], topics: dict[str, _ByPartition]) -> None:
        """Add each of *emits* to the partition of its topic."""
        turn = LoopTurn()
        topic, of_key, appends = None, _NOWHERE.of_key, _NOWHERE.appends
        before: Headers = ()
        listed = _NO_HEADERS
        for first in range(0, len(emits), TURN_EMITS):
            for emit in emits[first : first + TURN_EMITS]:
                key, partition, headers = emit.key, emit.partition, emit.headers
                # Mostly the topic is that of the emit before, and the same object.
                if emit.topic is not topic or (partition is not None and partition >= len(appends)):
                    topic = emit.topic
                    found = topics.get(topic)
                    if found is None or (partition is not None and partition >= len(found.appends)):
                        found = topics[topic] = await self._sent_to(topic, partition or 0, found)
                    of_key, appends = found.of_key, found.appends
                if isinstance(key, str):
                    key = key.encode()
                if partition is None:
                    partition = random.randrange(len(appends)) if key is None else of_key[key]
                if headers is not before:
                    before, listed = headers, [*headers] if headers else _NO_HEADERS
                appends[partition]((key, emit.value, listed))
                if key and len(key) > SHORT_KEY_BYTES:
                    await turn.let_others()
            await turn.let_others()

    async def _sort_columns(self, emits: EmitColumns, topics: dict[str, _ByPartition]) -> None:
        """Add each of *emits* to the partition of its topic, in runs of one topic with short keys."""
        turn, first = LoopTurn(), 0
        while first < len(emits):
            topic, partition = emits.topics[first], emits.partitions[first]
            some = emits[first : first + TURN_COLUMNS]
            count = len(some)
            keys: list[Any] = some.keys
            carried: Iterable[Any] = some.carried
            if (
                some.topics.count(topic) < count
                or some.partitions.count(partition) < count
                or {*map(type, keys)} != {bytes}
                or max(map(len, keys)) > SHORT_KEY_BYTES
            ):
                await self._sort([*some], topics)
            else:
                found = topics.get(topic)
                if found is None or (partition is not None and partition >= len(found.appends)):
                    found = topics[topic] = await self._sent_to(topic, partition or 0, found)
                if not any(carried):
                    carried = repeat(_NO_HEADERS, count)
                elif {*map(type, carried)} != {bytes}:
                    carried = [each if isinstance(each, bytes) else [*each] for each in carried]
                written = zip(keys, some.values, carried, strict=True)
                if partition is not None:
                    found.records[partition].extend(written)
                else:
                    appends, of_key = found.appends, found.of_key
                    for key, each in zip(keys, written, strict=True):
                        appends[of_key[key]](each)
            first += count
            await turn.let_others()

    async def _mark(self, marks: StepMarks, topics: dict[str, _ByPartition]) -> None:
        partition = self._place[1]
        origins = min([await self._producer.partitions(each, more_than=partition) for each in marks.sources])
        for topic in marks.topics:
            if topic not in topics:
                topics[topic] = await self._sent_to(topic, partition if marks.in_place else 0, None)
            marks.add(topic, topics[topic].records, origins)

    async def _sent_to(self, topic: str, partition: int, before: _ByPartition | None) -> _ByPartition:
        """Return where to put what goes to *topic*, which has *partition*; *before* is of fewer
        partitions.
        """
        partitions = await self._producer.partitions(topic, more_than=partition)
        records = [] if before is None else before.records
        records += [list[_Sorted]() for _ in range(partitions - len(records))]
        return _ByPartition(_key_partitions(partitions), records, [each.append for each in records])

    async def disown(self, timeout_s: float) -> None:
        """Replace the position marker by a tombstone, since this changelog does not hold a state.

        A failure is logged and not raised.
        """
        try:
            async with self._settled_within(timeout_s, "tombstone not written"):
                await self._producer.append({self._place: [(APPLIED, None, _NO_HEADERS)]})
                await self._producer.end(commit=True)
        except (BrokerError, FencedError, AbortableError) as error:
            logger.error(
                "cannot disown %(topic)s partition %(partition)d: %(error)s",
                {"topic": self._place[0], "partition": self._place[1], "error": error},
            )

    async def close(self) -> None:
        """Close the connections. An open transaction is left to the next owner's fence or to its timeout."""
        await self._producer.close()


class _KeyPartitions(dict[bytes, int]):
    """The partition that Kafka's Java clients choose for each key."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __missing__(self, key: bytes) -> int:
        partition = of_key(key, self._partitions)
        if len(key) <= SHORT_KEY_BYTES:
            if len(self) >= MOST_KEYS:
                for each in [*islice(self, MOST_KEYS // 2)]:
                    del self[each]
            self[key] = partition
        return partition


_key_partitions = lru_cache(8)(_KeyPartitions)


_Sorted: TypeAlias = tuple[bytes | None, bytes | None, Any]
"""A sorted record. If it has the header of its origin alone, only the content of that is kept, since
millions of small objects take long to make and to free.
"""


class _Carrying(Sequence[Written]):
    """Sorted records as they are written."""

    __slots__ = ("_sorted",)

    def __init__(self, records: list[_Sorted]) -> None:
        self._sorted = records

    def __len__(self) -> int:
        return len(self._sorted)

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, slice):
            key, value, carried = self._sorted[at]
            return key, value, [(ORIGIN, carried)] if isinstance(carried, bytes) else carried
        name = ORIGIN
        return (
            (key, value, [(name, carried)] if carried.__class__ is bytes else carried)
            for key, value, carried in self._sorted[at]
        )

    def __iter__(self) -> Iterator[Written]:
        return iter(self[:])


class _ByPartition(NamedTuple):
    """A transaction's records for one topic, by partition, the source of further ones, and the partition of
    each key.
    """

    of_key: _KeyPartitions
    records: list[list[_Sorted]]
    appends: list[Callable[[_Sorted], None]]


_NOWHERE = _ByPartition(_KeyPartitions(0), [], [])
