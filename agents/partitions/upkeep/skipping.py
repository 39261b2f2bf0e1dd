"""Skips batches that cannot be read, where that is allowed; a skip is recorded before any record after it is
folded.

A stalled partition resumes when the setting `unreadable` says so, or when an operator asked for it
(holdfast/core/engine/fold/skips.py). The skip is a record of `{app}-skips`, written together with its traces
in the quarantine in one transaction of a table of that partition: so only the owner makes one, and the next
owner finds it. It changes no table. Replays read the same record.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from confluent_kafka import Message, Producer

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.batches.runner import NOT_YET, Owned
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import RunInThread
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import ClusterIds
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.skips import OffsetRanges, Skip, Skips, behind, encode_skip
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.errors import BrokerError
from holdfast.kafka.fetching.source_fetcher import SourceFetcher
from holdfast.kafka.reading.skip_log import PARTITION, read_skips
from holdfast.kafka.transactions.transactional_producer import UndeliverableError

logger = logging.getLogger(__name__)

ASK_EVERY_S = 2.0
"""The time between reads of the operators' requests while a partition is stalled."""
AGAIN_S = 0.05
"""The time until the next check whether the records before the batch are committed."""
STAGE = "fetch"


class Skipping:
    """The skipped offsets of the sources, as far as this worker has read, and the task that makes skips.

    Skips of topics that no table folds are written by *producer*.
    """

    def __init__(
        self,
        settings: Settings,
        thread: RunInThread,
        producer: Producer,
        *,
        gate: FoldGate,
        feed: SourceFetcher,
        holdings: Holdings,
        metrics: Metrics,
        clock: Clock = system_clock,
    ) -> None:
        self._settings, self._thread, self._producer, self._clock = settings, thread, producer, clock
        self._gate, self._feed, self._holdings, self._metrics = gate, feed, holdings, metrics
        self._skips = Skips()
        self._allowed_read_s = float("-inf")
        self.why: dict[Place, str] = {}
        """Why a partition is still stalled though it was to resume."""

    async def refresh(self) -> None:
        """Read the skipped offsets.

        Called at an adoption after the fence: from then on no other worker adds to them for these partitions.
        """
        self._skips = await self._thread(read_skips, self._settings)

    async def may_refuse(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether an operator allows refusing a record; the operators' requests are read again every
        ASK_EVERY_S.
        """
        if self._skips.allows(topic, partition, offset):
            return True
        now_s = self._clock.monotonic_s()
        if now_s - self._allowed_read_s < ASK_EVERY_S:
            return False
        self._allowed_read_s = now_s
        try:
            await self.refresh()
        except BrokerError as error:
            logger.warning("what operators allow is not known: %(error)s", {"error": error})
        return self._skips.allows(topic, partition, offset)

    def ranges(self, topic: str, partition: int) -> OffsetRanges:
        """Return the skipped offsets of a partition."""
        return self._skips.made(topic, partition)

    async def run(self) -> None:
        """Get stalled partitions past unreadable batches, until cancelled."""
        feed, monotonic_s, asked_s = self._feed, self._clock.monotonic_s, float("-inf")
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY_S):
                    await feed.met.wait()
            feed.met.clear()
            if not feed.unreadable or not self._gate.open:
                self.why.clear()
                continue
            try:
                if monotonic_s() - asked_s >= ASK_EVERY_S:
                    await self.refresh()
                    asked_s = monotonic_s()
                for place, found in list(feed.unreadable.items()):
                    await self._consider(place, found)
            except Exception as error:  # noqa: BLE001  a broker that is away: the partition stays stalled, and the next turn tries again
                logger.warning(
                    "a partition that an unreadable batch has stalled could not resume: %(error)s",
                    {"error": error},
                )

    async def _consider(self, place: Place, found: Unreadable) -> None:
        feed, epoch = self._feed, self._gate.epoch
        if (following := behind(self.ranges(*place), found.first)) > found.first:
            feed.skip(place, following - 1)
            return
        asked = self._skips.asked(*place, found.first, found.last)
        if self._settings.unreadable != "quarantine" and asked is None:
            return
        owned, url = self._holdings.owners(place), self._settings.advertised_url
        ids = await self._thread(Admin(self._settings).topic_ids, [found.topic])
        skip = Skip(
            topic=found.topic,
            partition=found.partition,
            first=found.first,
            last=found.last,
            made=True,
            error=found.error,
            reason=found.reason,
            by=url if asked is None else f"{asked.by} by {url}",
            at_ms=self._clock.now_ms(),
            topic_id=ids.topics[found.topic],
            cluster_id=ids.cluster_id,
        )
        why = self._objection(found, owned, ids) or await self._write(skip, found, owned, epoch)
        if why is NOT_YET:
            asyncio.get_running_loop().call_later(AGAIN_S, feed.met.set)
        elif why is not None:
            self._report(place, found, why)
        elif feed.unreadable.get(place) is found and self._gate.epoch == epoch:
            self._skipped(place, skip)

    def _skipped(self, place: Place, skip: Skip) -> None:
        """Resume after the offsets that were just recorded as skipped."""
        self._skips.add(skip)
        self.why.pop(place, None)
        self._metrics.skipped[place] += 1
        logger.warning(
            "%(topic)s partition %(partition)d: offsets %(first)d to %(last)d are skipped and "
            "noted in %(quarantine_topic)s",
            {
                "topic": skip.topic,
                "partition": skip.partition,
                "first": skip.first,
                "last": skip.last,
                "quarantine_topic": self._settings.quarantine_topic,
            },
        )
        self._feed.skip(place, skip.last)

    def _objection(self, found: Unreadable, owned: list[Owned], ids: ClusterIds) -> str | None:
        """Return why nothing may be skipped: no topic to record it in, a table that has folded a part of it,
        unlike a later replay, or another topic of the name.
        """
        if not self._skips.has_topic:
            return (
                f"topic {self._settings.skips_topic} is missing, where skips are written down; run `holdfast"
                " topics create`"
            )
        for each in owned:
            applied = each.part.offsets[found.topic]
            if applied >= found.first:
                return (
                    f"table {each.part.processor.table} has folded up to offset {applied}, which it could"
                    " read then: it would not be what a replay gives; raise unpacked_batch_bytes again, or"
                    " give its processor a new version"
                )
            read, now = each.part.owner.sources, ids.topics[found.topic]
            if read is not None and read.cluster_id == ids.cluster_id and read.topics[found.topic] != now:
                return (
                    f"topic {found.topic} was deleted and made again (its id was {read.topics[found.topic]},"
                    f" is {now}) since table {each.part.processor.table} began to read it; restart the worker"
                )
        return None

    async def _write(self, skip: Skip, found: Unreadable, owned: list[Owned], epoch: int) -> str | None:
        """Write the skip and its traces; return why that failed, None once all of it is durable."""
        names = [each.part.processor.name for each in owned] or [self._settings.app]
        records = [Emit(self._settings.skips_topic, skip.key, encode_skip(skip), partition=PARTITION)]
        records += [trace(self._settings.quarantine_topic, name, found) for name in names]
        try:
            if owned:
                what = (
                    f"a batch of {found.topic} that cannot be read, offsets {found.first} to {found.last};"
                    " see who produces them"
                )
                return await owned[0].runner.append(records, what, epoch)
            # Agents that keep no state: no other worker has to be kept from writing it too.
            failure: str | None = await self._thread(_produce, self._producer, records)
            return failure
        except UndeliverableError as error:
            return f"it cannot be noted: {error}"

    def _report(self, place: Place, found: Unreadable, why: str) -> None:
        if self.why.get(place) != why:
            logger.error(
                "%(found)s; it is not skipped: %(why)s",
                {
                    "found": found,
                    "why": why,
                    "topic": found.topic,
                    "partition": found.partition,
                    "offset": found.first,
                },
            )
        self.why[place] = why


def trace(topic: str, processor: str, found: Unreadable) -> Emit:
    """Return the record that the quarantine keeps of a skipped batch: its position, and the contents of its
    header.

    The batch's own records cannot be read.
    """
    headers: dict[str, str] = {
        "processor": processor,
        "topic": found.topic,
        "partition": str(found.partition),
        "offset": str(found.first),
        "stage": STAGE,
        "error": found.error,
        "reason": found.reason,
        "at-ms": str(found.at_ms),
        "last": str(found.last),
        "codec": found.codec,
        "size": str(found.size_bytes),
        "records": str(found.records_count),
        "producer": f"{found.producer_id}/{found.producer_epoch}",
    }
    where = f"{found.topic}/{found.partition}/{found.first}/{processor}"
    return Emit(
        topic,
        where,
        b"",
        tuple(
            (f"holdfast-{name}", value.encode(errors="backslashreplace")) for name, value in headers.items()
        ),
    )


def _produce(producer: Any, records: list[Emit]) -> str | None:
    """Send *records* and wait for them; return why one did not arrive."""
    failures: list[str] = []

    def delivered(error: Any, message: Message) -> None:
        if error is not None:
            failures.append(f"{message.topic()}: {error.str()}")

    for each in records:
        place = {} if each.partition is None else {"partition": each.partition}
        producer.produce(
            each.topic, each.value, each.key, headers=list(each.headers), on_delivery=delivered, **place
        )
    left = producer.flush(20.0)
    return (
        f"it cannot be noted: {failures[0] if failures else 'no acknowledgement within 20 s'}"
        if failures or left
        else None
    )
