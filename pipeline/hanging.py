"""Hanging transactions of a cluster: found in the logs of partitions and of coordinators, and ended as was
decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.broker_logs.folds import TRANSACTION_TOPIC
from holdfast.core.broker_logs.lost_ends import (
    EndsRow,
    LostEnd,
    OpenTransactions,
    UnendedTransaction,
    ends_log,
    is_marker,
    lost_ends,
)
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import TopicError
from holdfast.kafka.requests.raw_log import RawLog
from holdfast.pipeline.broker_rows import rows_of


class Hanging:
    """Looks for hanging transactions on a cluster, and ends them."""

    def __init__(self, settings: Settings, raw: RawLog) -> None:
        self._settings, self._raw, self._admin = settings, raw, Admin(settings)

    async def find(self, topics: Iterable[str] | None) -> list[LostEnd]:
        """Return the hanging transactions in *topics*, in all of them when None, each with its decision if
        that is certain.
        """
        before = await self._open(await asyncio.to_thread(self._places, topics))
        if not before:
            return []
        rows = await asyncio.to_thread(self._rows)
        found = lost_ends(before, rows, await self._open({(each.topic, each.partition) for each in before}))
        return [await self._certain(each) for each in found]

    async def end(self, hanging: Iterable[LostEnd]) -> None:
        """Write the markers of those whose decision is known."""
        decided = [(each.transaction, each.decided) for each in hanging if each.decided is not None]
        coordinators = await asyncio.to_thread(self._places, [TRANSACTION_TOPIC])
        epochs = await asyncio.to_thread(self._admin.leader_epochs, coordinators)
        for each, how in decided:
            coordinator = TRANSACTION_TOPIC, coordinator_partition(how.transactional_id, len(coordinators))
            await self._raw.end_transaction(
                each.topic,
                each.partition,
                producer_id=each.producer_id,
                epoch=how.epoch,
                commit=how.commit,
                coordinator_epoch=epochs[coordinator],
            )

    def _places(self, topics: Iterable[str] | None) -> set[tuple[str, int]]:
        known = self._admin.cluster(topics).topics
        for topic in topics or ():
            if topic not in known:
                raise TopicError(f"topic {topic} does not exist")
        return {(name, each.partition) for name, topic in known.items() for each in topic.partitions}

    def _rows(self) -> dict[str, EndsRow]:
        return {key: row for _, key, row in rows_of(self._settings, ends_log())}

    async def _open(self, places: Iterable[Place]) -> list[UnendedTransaction]:
        """Return the open transactions in *places*: all that begin at the last stable offset or after it, and
        have no marker.
        """
        places = sorted(places)
        stable = await asyncio.to_thread(self._admin.stable_offsets, places)
        bounds = await asyncio.to_thread(self._admin.offsets, places)
        found: list[UnendedTransaction] = []
        for place in places:
            if stable[place] < bounds[place][1]:
                transactions = OpenTransactions(*place)
                async for _, batch in self._raw.batches(*place, stable[place], until=bounds[place][1]):
                    transactions.add(batch)
                found += transactions.found()
        return found

    async def _certain(self, lost: LostEnd) -> LostEnd:
        """Return *lost* without its decision if that was to commit and its marker is there: then the open
        part came after it.
        """
        each, how = lost.transaction, lost.decided
        if how is None or not how.commit:
            return lost
        place = each.topic, each.partition
        begin = (await asyncio.to_thread(self._admin.offsets_at, [place], how.at_ms))[place]
        if begin is not None:
            async for _, batch in self._raw.batches(*place, begin, until=each.first_offset):
                if (
                    is_marker(batch)
                    and batch.producer_id == each.producer_id
                    and batch.max_timestamp_ms >= how.at_ms
                ):
                    return LostEnd(transaction=each, decided=None)
        return lost
