"""Requests to skip a batch of a source that cannot be read, and the skips so far.

The command writes a request to `{app}-skips`. Only a worker that is stuck at the batch can make the skip.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import ClusterIds
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import Skip, Skips, encode_skip
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.errors import BrokerError, SkipError, TopicError
from holdfast.kafka.clients import make_writer
from holdfast.kafka.fetching.batch_at import BatchAt, batch_at
from holdfast.kafka.reading.skip_log import PARTITION, read_skips
from holdfast.kafka.requests.raw_log import RawLog

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class SkipPlan:
    """A proposed skip.

    *before* are the records of the batch that can be read, *asked* an earlier request that no worker has met
    yet. *ids* identify the topic.
    """

    batch: Unreadable
    before: int
    asked: Skip | None
    ids: ClusterIds


@dataclass(frozen=True, slots=True)
class AllowancePlan:
    """A record that would be quarantined, of *processors* that are declared with `on_error="stop"`.

    *asked* is an earlier request of an operator. *ids* identify the topic.
    """

    topic: str
    partition: int
    offset: int
    processors: tuple[str, ...]
    asked: bool
    ids: ClusterIds


class SkipRequests:
    """The skips of one application, whose processors and ordinary agents read *sources*. *stopping* are the
    names of those processors that stop before what they would refuse, by the topic that names it.

    Every call ends within a few times *timeout_s*.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Iterable[str],
        *,
        stopping: Mapping[str, Sequence[str]] = MappingProxyType({}),
        timeout_s: float = TIMEOUT_S,
        clock: Clock = system_clock,
    ) -> None:
        self._stopping = stopping
        self._settings, self._sources, self._timeout_s, self._clock = (
            settings,
            sorted(set(sources)),
            timeout_s,
            clock,
        )
        self.topic = settings.skips_topic

    def skips(self) -> Skips:
        """Return all that was asked for and made; TopicError where the topic is missing."""
        if not Admin(self._settings, timeout_s=self._timeout_s).cluster([self.topic]).topics:
            raise TopicError(f"topic {self.topic} does not exist: run `holdfast topics create`")
        return read_skips(self._settings, timeout_s=self._timeout_s, clock=self._clock)

    async def allowance(self, topic: str, partition: int, offset: int, skips: Skips) -> AllowancePlan | None:
        """Return the processors that may quarantine a record, which can be read; None if no processor stops
        at one of *topic*, or the record cannot be read.
        """
        stopping = tuple(self._stopping.get(topic, ()))
        if not stopping:
            return None
        # Before the records: of a topic that is made again in between, the skip is void.
        ids = self._ids(topic)
        # A record in a topic of choices is a tick, which may not be written yet.
        if topic in self._sources:
            found = await self._batch_at(topic, partition, offset)
            if found.unreadable is not None or not found.records:
                return None
        return AllowancePlan(topic, partition, offset, stopping, skips.allows(topic, partition, offset), ids)

    def _ids(self, topic: str) -> ClusterIds:
        return Admin(self._settings, timeout_s=self._timeout_s).topic_ids([topic])

    async def _batch_at(self, topic: str, partition: int, offset: int) -> BatchAt:
        limit_bytes = self._settings.unpacked_batch_bytes
        async with RawLog(self._settings, timeout_s=self._timeout_s, clock=self._clock) as log:
            return await batch_at(log, topic, partition, offset, limit_bytes=limit_bytes, committed=True)

    async def plan(self, topic: str, partition: int, offset: int, skips: Skips) -> SkipPlan:
        """Return the batch that a worker cannot read at *offset*; SkipError when it can, or the skip was made
        already.
        """
        if topic not in self._sources:
            raise SkipError(
                f"{topic} is not a source of application {self._settings.app}, which reads"
                f" {', '.join(self._sources)}; name the application that reads it with -A MODULE"
            )
        self._require_unmade(skips, topic, partition, offset, offset)
        ids = self._ids(topic)
        found = await self._batch_at(topic, partition, offset)
        batch = found.unreadable
        if batch is None:
            raise self._readable(topic, partition, offset, found)
        if offset < batch.first:
            raise SkipError(
                f"{topic} partition {partition}: offset {offset} can be read, as {found.records} records of"
                f" its batch can; what cannot begins at {batch.first}: name that offset"
            )
        self._require_unmade(skips, topic, partition, batch.first, batch.last)
        return SkipPlan(batch, found.records, skips.asked(topic, partition, batch.first, batch.last), ids)

    def _require_unmade(self, skips: Skips, topic: str, partition: int, first: int, last: int) -> None:
        for each in skips.all():
            if each.made and each.place == (topic, partition) and each.covers(first, last):
                raise SkipError(
                    f"{topic} partition {partition}: offsets {each.first} to {each.last} were skipped"
                    f" already, {when(each.at_ms)} by {each.by or 'an unknown worker'}"
                )

    def _readable(self, topic: str, partition: int, offset: int, found: BatchAt) -> SkipError:
        header = found.header
        assert header is not None, "a batch without a header cannot be read"
        where = f"{topic} partition {partition}: offset {offset} can be read"
        if not found.records:
            return SkipError(
                f"{where}: its batch holds nothing for a consumer, as a marker or an aborted transaction"
                " does not"
            )
        return SkipError(
            f"{where}: its batch, {header.base_offset} to {header.last_offset}, holds {found.records} records"
            f" and unpacks within unpacked_batch_bytes={self._settings.unpacked_batch_bytes}; there is"
            f' nothing to skip, and no processor of {topic} is declared with on_error="stop"'
        )

    def allow(self, plan: AllowancePlan, *, by: str) -> Skip:
        """Write down that the record of *plan* may be quarantined, and return that once it is in the log."""
        skip = Skip(
            topic=plan.topic,
            partition=plan.partition,
            first=plan.offset,
            last=plan.offset,
            made=False,
            allowed=True,
            by=by,
            at_ms=self._clock.now_ms(),
            topic_id=plan.ids.topics[plan.topic],
            cluster_id=plan.ids.cluster_id,
        )
        self._send(skip)
        return skip

    def ask(self, plan: SkipPlan, *, by: str) -> Skip:
        """Write the request to skip the batch of *plan*, and return it once it is in the log."""
        batch = plan.batch
        skip = Skip(
            topic=batch.topic,
            partition=batch.partition,
            first=batch.first,
            last=batch.last,
            made=False,
            error=batch.error,
            reason=batch.reason,
            by=by,
            at_ms=self._clock.now_ms(),
            topic_id=plan.ids.topics[batch.topic],
            cluster_id=plan.ids.cluster_id,
        )
        self._send(skip)
        return skip

    def _send(self, skip: Skip) -> None:
        overrides: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(self._timeout_s * 1000),
        }
        producer = make_writer(self._settings.producer(**overrides), logger=logger)
        outcome: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            outcome.append(error)

        try:
            producer.produce(self.topic, encode_skip(skip), skip.key, PARTITION, on_delivery=delivered)
            producer.flush(self._timeout_s + 1)
        except (KafkaException, BufferError) as error:
            raise BrokerError(f"cannot write to {self.topic}: {error}; nothing was asked for") from error
        if not outcome or outcome[0] is not None:
            why = f"no acknowledgement within {self._timeout_s:g} s" if not outcome else outcome[0].str()  # type: ignore[union-attr]
            raise BrokerError(
                f"{self.topic} did not take it: {why}; see `holdfast quarantine skips` before asking again"
            )


def when(at_ms: int) -> str:
    """Return a time as people read it.

    >>> when(1_700_000_000_000), when(-1), when(1 << 62)
    ('at 2023-11-14T22:13:20Z', 'at an unknown time', 'at @4611686018427387904')
    """
    if at_ms < 0:
        return "at an unknown time"
    try:
        return f"at {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"at @{at_ms}"
