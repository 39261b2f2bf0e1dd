"""The transactional writer of one partition: fences older owners, then writes one Kafka transaction per
batch.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.clock import system_clock
from holdfast.core.engine.codec import APPLIED, encode_marker
from holdfast.core.engine.folding import Changes
from holdfast.core.engine.partitioners import of_key
from holdfast.core.engine.processor import Emit
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, FencedError
from holdfast.tables.lived import Within
from holdfast.tables.transactions import (
    AbortableError,
    Connect,
    SentBatch,
    TransactionalClient,
    UndeliverableError,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BACKOFF_S = 0.1
BATCH_RECORDS = 2_000
"""Records of one batch: so many small ones are packed in 1 to 2 ms."""
TURN_S = 0.003
"""How long a partition keeps the event loop before others have their turn: partitions with less to do,
heartbeats, queries.
"""
ROUND_BYTES = 4 << 20
"""What is on its way at a time, over all partitions that a transaction writes to."""

Written = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""A record: key, value, headers."""
_NO_HEADERS: list[tuple[str, bytes | None]] = []


@dataclass(slots=True)
class _Lot:
    """What a transaction writes to one partition, and how much of it is written."""

    place: Place
    records: list[Written]
    at: int = 0

    def batch(self, client: TransactionalClient, now_ms: int) -> SentBatch:
        """Return the next batch; one record at least is in it, be it as large as it may."""
        builder = client.builder(self.place)
        append = builder.append
        number = 0
        for key, value, headers in self.records[self.at : self.at + BATCH_RECORDS]:
            if append(number, now_ms, key, value, headers) is None:
                break
            number += 1
        self.at += number
        return SentBatch(bytes(builder.build()), number)


class _Turn:
    """Lets others of the event loop have theirs when this one's has been long enough: keys and batches may
    be large.
    """

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        self._began_s = system_clock.monotonic_s()

    async def let_others(self) -> None:
        if system_clock.monotonic_s() - self._began_s > TURN_S:
            await asyncio.sleep(0)
            self._began_s = system_clock.monotonic_s()


class ChangelogWriter:
    """Owns the transactional producer of one processor and partition.

    One call at a time, on one event loop.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        transactional_id: str,
        changelog: str,
        partition: int,
        transaction_timeout_s: float,
        compression: int = 0,
    ) -> None:
        self._place = (changelog, partition)
        self._client = TransactionalClient(
            connect,
            transactional_id=transactional_id,
            transaction_timeout_s=transaction_timeout_s,
            compression=compression,
        )

    async def fence(self, timeout_s: float) -> None:
        """Raise this id's epoch.

        From here on the broker refuses every older owner, whose open transaction is aborted first.
        """
        await self._within(timeout_s, self._fence(), f"cannot fence {self._client.transactional_id}")

    async def _fence(self) -> None:
        changelog, partition = self._place
        await self._client.fence()
        await self._client.partitions(changelog, more_than=partition)

    async def write(self, changes: Changes, extra: Sequence[Emit], timeout_s: float) -> int:
        """Write rows, emits, *extra* (quarantined records) and the position marker in one transaction; return
        the changelog's next offset.

        Raises FencedError when a newer owner exists, UndeliverableError when a topic refuses a record,
        BrokerError when the outcome is not settled in time. A commit that is not answered is asked for again,
        never repeated as a new transaction, so its outcome is known when this returns.
        """
        return await self._within(
            timeout_s, self._write(changes, extra), f"{self._client.transactional_id}: transaction failed"
        )

    async def _write(self, changes: Changes, extra: Sequence[Emit]) -> int:
        client = self._client
        while True:
            try:
                changelog_next = await self._append(changes, extra)
                await client.end(commit=True)
            except UndeliverableError:
                await client.end(commit=False)
                raise
            except AbortableError as error:
                logger.warning("transaction of %s aborted, trying again: %s", client.transactional_id, error)
                client.why = error
                await client.end(commit=False)
                await asyncio.sleep(_BACKOFF_S)
            else:
                return changelog_next

    async def _within(self, timeout_s: float, work: Coroutine[Any, Any, T], what: str) -> T:
        """Return what *work* does; BrokerError when it has not ended in time:

        *what* failed, and what was answered last.
        """
        try:
            async with Within(timeout_s):
                return await work
        except TimeoutError as error:
            raise BrokerError(
                f"{what}: not settled within {timeout_s:g} s: {self._client.why}; is the broker reachable?"
            ) from error

    async def _append(self, changes: Changes, extra: Sequence[Emit]) -> int:
        """Append all that the transaction writes; return the offset after its marker."""
        # The marker goes last: readers of the changelog apply a transaction when they meet it.
        rows: list[Written] = [(key, value, _NO_HEADERS) for key, value in changes.puts]
        rows.append((APPLIED, encode_marker(changes.marker), _NO_HEADERS))
        lots = {self._place: _Lot(self._place, rows)}
        known: dict[str, int] = {}
        turn = _Turn()
        for emit in (*changes.emits, *extra):
            key = emit.key.encode() if isinstance(emit.key, str) else emit.key
            if (place := _place_of(emit, key, known)) is None:
                known[emit.topic] = await self._client.partitions(emit.topic, more_than=emit.partition or 0)
                place = _place_of(emit, key, known)
                assert place is not None
            if (lot := lots.get(place)) is None:
                lot = lots[place] = _Lot(place, [])
            lot.records.append((key, emit.value, list(emit.headers)))
            await turn.let_others()
        return await self._append_lots(lots)

    async def _append_lots(self, left: Mapping[Place, _Lot]) -> int:
        now_ms, changelog_next, turn = system_clock.now_ms(), -1, _Turn()
        while left:
            batches: dict[Place, SentBatch] = {}
            size = 0
            for place, lot in left.items():
                batches[place] = batch = lot.batch(self._client, now_ms)
                size += len(batch.data)
                if size >= ROUND_BYTES:
                    break
                await turn.let_others()
            offsets = await self._client.append(batches)
            if self._place in offsets:
                changelog_next = offsets[self._place] + batches[self._place].records
            left = {place: lot for place, lot in left.items() if lot.at < len(lot.records)}
        return changelog_next

    async def disown(self, timeout_s: float) -> None:
        """Replace the position marker by a tombstone: what is on this changelog is not a state.

        Best effort.
        """
        try:
            await self._within(timeout_s, self._disown(), "tombstone not written")
        except (BrokerError, FencedError, AbortableError) as error:
            logger.error("cannot disown %s partition %d: %s", *self._place, error)

    async def _disown(self) -> None:
        await self._append_lots({self._place: _Lot(self._place, [(APPLIED, None, _NO_HEADERS)])})
        await self._client.end(commit=True)

    async def close(self) -> None:
        """Close the connections. An open transaction is left to the next owner's fence or to its timeout."""
        await self._client.close()


def _place_of(emit: Emit, key: bytes | None, known: Mapping[str, int]) -> Place | None:
    """Return where a record goes: where it says, else by its *key* as Kafka's Java clients choose, else
    anywhere.

    None when *known*, the topics' numbers of partitions, does not tell.
    """
    topic, partition, partitions = emit.topic, emit.partition, known.get(emit.topic, 0)
    if partitions <= (partition or 0):
        return None
    if partition is not None:
        return topic, partition
    return topic, random.randrange(partitions) if key is None else of_key(key, partitions)
