"""Commits one partition's transactions: durable in Kafka first, then readable on this worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaError

from holdfast.agents.partitions.batches.intake import Intake
from holdfast.agents.partitions.batches.stall import Stall
from holdfast.agents.partitions.types import FoldLimits, RunnerHost
from holdfast.clients.quarantine.copies import QUARANTINE_COPY_BYTES, quarantine_record, topic_id_of
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.folding import Changes, Refused
from holdfast.core.engine.fold.user_frames import calls_line
from holdfast.kafka.codes import name_of
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.kafka.transactions.transactional_producer import UndeliverableError
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

FEW_ROWS = 500
"""The most rows that are written to RocksDB on the event loop, in a ms or two: waking a thread takes
longer.
"""
MISSING = name_of(KafkaError.UNKNOWN_TOPIC_OR_PART)


class Commit:
    """Commits what a runner has folded, one transaction at a time.

    What an error of a transaction means, and what happens then:

    | error | meaning | then |
    |---|---|---|
    | AbortableError | the broker gave the transaction up | `ChangelogWriter` aborts and writes it again |
    | UndeliverableError, quarantine topic | a copy is too large | again with a smaller copy |
    | UndeliverableError, own log missing | the changelog or choices topic was deleted | the worker ends |
    | UndeliverableError, another topic | its settings refuse a record | the partition stalls and retries |
    | FencedError | a newer owner exists | the partition is lost |
    | BrokerError | not settled in `commit_timeout_s` | the worker ends; its successor learns the outcome |
    | ChangelogError | the changelog is another topic of the name | the worker ends |
    | StoreError | the disk refused what Kafka has | the worker ends; a restore reads it again |
    | RottenStoreError | the store cannot be believed | the partition is restored from Kafka |

    A refusal by a topic depends on the cluster's settings, not on the record, and may not change a fold's
    result: so the record is neither quarantined nor left out, and a restart would stop other partitions too.
    """

    def __init__(
        self, host: RunnerHost, part: Partition, intake: Intake, limits: FoldLimits, stall: Stall
    ) -> None:
        self._host, self._part, self._intake, self._limits, self._stall = host, part, intake, limits, stall

    async def transact(self, changes: Changes, epoch: int) -> bool:
        """Make *changes* durable and readable; return False when the partition was revoked before that."""
        part, smaller = self._part, 0
        changes, refused = part.owner.noted(changes), self._refused(changes)  # 1. notes that are due, and
        while True:  # 2. copies of refused records, go into
            copies = [self._copy(*each, QUARANTINE_COPY_BYTES[smaller]) for each in refused]
            try:  # 3. one transaction of rows, results, choices, marks and position,
                changelog_next = await part.owner.commit(changes, copies, self._limits.commit_timeout_s)
            except UndeliverableError as error:
                if self._is_own_log(error):
                    raise
                if error.topic == self._limits.quarantine_topic and smaller + 1 < len(QUARANTINE_COPY_BYTES):
                    smaller += 1
                elif await self._stall.wait(f"is stalled: {error}", epoch):
                    smaller = 0
                else:
                    return False
            else:
                await self._keep(changes, changelog_next)  # 4. then into the store,
                part.waiters.wake()  # 5. which readers see. The runner then acknowledges the records.
                return True

    async def append(self, records: Sequence[Emit]) -> None:
        """Make *records* durable in a transaction that changes neither rows nor position.

        Raises UndeliverableError when a topic refuses one.
        """
        part = self._part
        changes = part.owner.noted(part.owner.folder.unchanged())
        await self._keep(changes, await part.owner.commit(changes, records, self._limits.commit_timeout_s))

    async def _keep(self, changes: Changes, changelog_next: int) -> None:
        if len(changes.puts) <= FEW_ROWS:
            self._part.owner.keep(changes, changelog_next)
        else:
            await self._host.thread(self._part.owner.keep, changes, changelog_next)

    def _is_own_log(self, error: UndeliverableError) -> bool:
        """Return whether the missing topic holds this state: one of the same name would lack its records."""
        part = self._part
        own = {part.changelog, *part.choices_topics}
        return error.why.startswith(MISSING) and error.topic in own

    def _refused(self, changes: Changes) -> list[tuple[Refused, str, FetchedRecord]]:
        """Return each refused record with its topic and content, and log it; none where all of it is folded
        for the second time, since the quarantine has it.
        """
        if not changes.refused or self._limits.quarantine_topic in changes.repeated:
            return []
        refused = [(each, *self._intake.refused(each)) for each in changes.refused]
        for each, source, _ in refused:
            self._log_refused(each, source)
        return refused

    def _copy(self, refused: Refused, source: str, record: FetchedRecord, size: int) -> Emit:
        part, sources = self._part, self._part.owner.sources
        topic_id = "" if sources is None else topic_id_of(sources.cluster_id, sources.topics.get(source, ""))
        place, topic = (source, part.partition), self._limits.quarantine_topic
        return quarantine_record(topic, part.processor.name, place, refused, record, size, topic_id)

    def _log_refused(self, refused: Refused, source: str) -> None:
        logger.warning(
            "record quarantined: %(source)s/%(partition)d/%(offset)d at %(stage)s: %(error)s: %(reason)s"
            "%(calls)s",
            {
                "source": source,
                "partition": self._part.partition,
                "offset": refused.offset,
                "stage": refused.stage,
                "error": refused.error,
                "reason": refused.reason[:200],
                "calls": f" ({calls_line(refused.frames)})" if refused.frames else "",
            },
        )
