"""The path of a batch: gather, fold, one Kafka transaction, RocksDB, readers, ack.

One runner per owned partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from confluent_kafka import KafkaError

from holdfast.agents.partitions.batches.intake import Intake
from holdfast.agents.partitions.batches.merging_intake import MergingIntake
from holdfast.agents.partitions.batches.placing import Placing
from holdfast.agents.partitions.batches.traced_batches import TracedBatches
from holdfast.agents.partitions.types import NOT_IN_GROUP, FoldEvent, FoldLimits, RunnerHost
from holdfast.clients.quarantine.copies import QUARANTINE_COPY_BYTES, quarantine_record, topic_id_of
from holdfast.clock import Clock, system_clock
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.fold.patience import Patience
from holdfast.core.engine.fold.stepping import TopicOffset
from holdfast.core.engine.merge.merging_folder import MergedChanges
from holdfast.errors import FencedError, Later, RottenStoreError, StoppedError
from holdfast.kafka.codes import name_of
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.kafka.loop_turn import TURN_S
from holdfast.kafka.transactions.transactional_producer import UndeliverableError
from holdfast.tables.lived import Stopwatch
from holdfast.tables.partition import AnyChanges, AnyFolder, Partition

logger = logging.getLogger(__name__)

TOPIC = attrgetter("topic")
LONG_TURN_S = 0.2
"""When several partitions have long folds, each runs LONG_TURN_S before it yields to the next: its rows stay
in the processor's cache.
"""
TRANSACTION_S = 2.0
"""How long one transaction is folded at most; readers see nothing of it meanwhile.

The longer, the fewer rows are written for each record.
"""
TRANSACTION_EMITS = 10_000
"""How many records one transaction emits, about.

More in one make none of them cheaper, and all are held until it is committed.
"""
TRANSACTION_ROWS = 100_000
"""How many rows one transaction changes, about.

Where it changes more, hardly one is changed twice; and all are held until it is committed.
"""
FEW_ROWS = 500
"""So many are written to RocksDB in a ms or two, right here: to wake a thread for it takes longer than the
few of a live transaction do.
"""
HOLD_S, HOLD_TICK_S = 5.0, 0.1
"""How long a partition whose record a topic refuses waits before it tries again, and how soon it sees that
it was revoked.
"""
NOT_YET = "records before it are not committed yet"
MISSING = name_of(KafkaError.UNKNOWN_TOPIC_OR_PART)


class Runner:
    """Commits one partition, one transaction at a time, until nothing is pending.

    What arrives while a transaction is in flight becomes the next one: batches are as small as the commit is
    quick and grow with the backlog, whatever sizes the feed delivers; one that is folded for long takes in
    what arrives meanwhile. Commits of one partition overlap folds of the others.
    """

    def __init__(
        self,
        host: RunnerHost,
        part: Partition,
        intake: Intake,
        limits: FoldLimits,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._host, self.part, self._intake, self._limits, self._clock = host, part, intake, limits, clock
        self._counts = host.metrics.partition(part.processor.name, part.partition)
        self._traced = TracedBatches(part, clock)
        name = part.processor.name
        self._placing = Placing(part.processor, part.partition, lambda: host.partitions(name), self._counts)
        self.job: asyncio.Task[Any] | None = None
        self._failed = False
        self._refused, self._poisoned, self._reported = 0, "", ""
        self._standing = False
        self._patience, self._waited = Patience(limits.later_timeout_s), Stopwatch(clock)
        self._is_waiting = False
        self._allowed = set[TopicOffset]()
        """Records that an operator lets be refused, where others stop the partition."""

    def hand(self, event: FoldEvent) -> None:
        """Take over one fetched event; it is acked when its records are durable, or dropped when the
        partition is lost.
        """
        if self._failed:
            self._host.void(event)
            return
        self._intake.hand(event)
        self.go_on()

    def go_on(self) -> None:
        """Fold what there is, unless that is under way."""
        if self._intake.ready and not self._failed and (self.job is None or self.job.done()):
            self.job = asyncio.ensure_future(self._run())

    def idle(self) -> bool:
        return not self._intake.ready and (self.job is None or self.job.done())

    def revoked(self) -> None:
        """Drop what was fetched so far and not begun: a revocation makes it void."""
        self._intake.revoked()

    @property
    def merging(self) -> MergingIntake:
        """Return the intake of a partition of several sources."""
        assert isinstance(self._intake, MergingIntake), "of several sources"
        return self._intake

    async def write_beside(self, records: list[Emit], what: str, epoch: int) -> str | None:
        """Write *records* in a transaction that changes neither state nor position; return why not, None when
        they are durable.

        They are the quarantine's: *what* describes them in the reason when they are one too many.
        UndeliverableError when a topic refuses one. Not while something is pending: a partition has one
        transaction at a time.
        """
        if self._poisoned:
            return self._poisoned
        if not self.idle() or self._failed:
            return NOT_YET
        self.job = asyncio.ensure_future(self._write_beside(records, what, epoch))
        self.job.add_done_callback(lambda job: self.go_on())
        # The host waits for the job when the partition is revoked, also when the caller is cancelled.
        return await asyncio.shield(self.job)

    async def _write_beside(self, records: list[Emit], what: str, epoch: int) -> str | None:
        part, host = self.part, self._host
        if not host.owns(part, epoch):
            return "the partition was revoked"
        try:
            await self._commit(part.folder.unchanged(), records)
        except FencedError as error:
            host.lost(part, epoch, error)
            return str(error)
        except (UndeliverableError, RottenStoreError):
            raise
        except Exception as error:
            self._failed = True
            host.crash(error)
            raise
        host.progressed()
        self._count_refused(1, what)
        return None

    def let_go(self, at_end: frozenset[int], epoch: int) -> None:
        """Have a step's topics be told that its sources *at_end* stay at the ends of their logs, unless
        something is to be folded, or they know.
        """
        marks = self.part.marks
        if marks is None or self._poisoned or self._failed or self._standing or not self.idle():
            return
        reached = self.part.reached_with(at_end)
        if reached is None or (marks.at_end == at_end and marks.has_told(reached)):
            return
        self.job = asyncio.ensure_future(self._let_go(at_end, epoch))
        self.job.add_done_callback(lambda job: self.go_on())

    async def _let_go(self, at_end: frozenset[int], epoch: int) -> None:
        part, host = self.part, self._host
        if not host.owns(part, epoch):
            return
        try:
            await part.let_go(at_end, self._limits.commit_timeout_s)
        except FencedError as error:
            host.lost(part, epoch, error)
        except UndeliverableError as error:
            logger.warning(
                "marks of %(table)s partition %(partition)d are refused, which is tried again: %(error)s",
                {"table": part.processor.table, "partition": part.partition, "error": error},
            )
            await asyncio.sleep(HOLD_S)
        except Exception as error:
            self._failed = True
            host.crash(error)
            raise
        else:
            host.progressed()

    async def _run(self) -> None:
        try:
            while self._intake.ready:
                if self._intake.draw():
                    await self._transact(self._intake.epoch)
            self._let_on()
        except RottenStoreError:
            self._failed = True  # the host knows, and takes the partition up anew
            self._intake.void()
        except Exception as error:
            logger.exception(
                "partition %(partition)d of %(table)s failed",
                {"partition": self.part.partition, "table": self.part.processor.table},
            )
            # the worker is about to end; folding on after a batch that is missing would only hide why
            self._failed = True
            self._intake.void()
            self._host.crash(error)

    async def _transact(self, epoch: int) -> None:
        part, intake = self.part, self._intake
        if self._poisoned:
            while await self._hold(f"stands still: {self._poisoned}", epoch):
                pass
            intake.let_go()
            return
        folder = part.folder  # to the end: a partition that is lost meanwhile has none
        folder.allowed = self._allowed if part.processor.on_error == "stop" else None
        try:
            await self._fold(folder, epoch)
            changes = folder.changes
            is_settled = changes is None or await self._commit_folded(folder, changes, epoch)
        except FencedError as error:
            intake.let_go()
            self._host.lost(part, epoch, error)
        except Later as later:
            intake.again()
            await self._wait(later, epoch)
        except StoppedError as stopped:
            intake.again()
            await self._stop(stopped, epoch)
        except RottenStoreError:  # what is durable in Kafka is read from there again
            intake.let_go()
            raise
        else:
            if is_settled:
                intake.settle()
            else:
                intake.let_go()

    def _place(self, at: TopicOffset | None) -> tuple[str, int]:
        """Return the topic and offset of a record as operators know them; of a tick those of its choice."""
        part = self.part
        topic, offset = at or ("", part.applied + 1)
        own = part.processor.topics[0] if part.processor.on is None else part.choices_topic
        return topic or own, offset

    async def _wait(self, later: Later, epoch: int) -> None:
        """Wait for what a fold needs before it is tried again; StillWaitingError when that takes too long.

        A restart may put the partition on a worker that has it: so this one ends then.
        """
        if not self._is_waiting:
            self._is_waiting = True
            self._waited.reset()
        self._counts.waits += 1
        topic, offset = self._place(later.at)
        self._waited.tick()
        where = f"{self.part.processor.name}: offset {offset} of {topic} partition {self.part.partition}"
        pause_s = self._patience.pause_s(later, where, self._waited.s)
        await self._hold(f"waits for {later.needs}, at offset {offset} of {topic}: {later}", epoch, pause_s)

    async def _stop(self, stopped: StoppedError, epoch: int) -> None:
        """Stand before a record that may not be refused, until an operator lets it be."""
        (topic, offset), partition = self._place((stopped.topic, stopped.offset)), self.part.partition
        why = (
            f"stands still before offset {offset} of {topic} partition {partition} ({stopped}), since"
            ' on_error is "stop": mend the processor and restart the worker, or have the record quarantined:'
            f" `holdfast quarantine skip {topic} {partition} {offset} --execute`"
        )
        while not await self._host.may_refuse(topic, partition, offset):
            if not await self._hold(why, epoch):
                return
        self._allowed.add((stopped.topic, stopped.offset))

    async def _commit_folded(self, folder: AnyFolder, changes: AnyChanges, epoch: int) -> bool:
        """Make *changes* durable, then readable; False when the partition was revoked before that."""
        folded_s = self._clock.monotonic_s()
        if not await self._write_at_last(changes, epoch):
            # This worker may keep the partition all the same, and read these records again.
            folder.rollback()
            return False
        self._note_refused(changes)
        folder.commit()
        self._traced.committed(changes)
        self.part.wake_readers()
        self._host.progressed()
        self._counts.committed(
            records=changes.records,
            rows=len(changes.puts),
            emitted=Counter(map(TOPIC, changes.emits)),
            quarantined=len(changes.refused),
            seconds=self._clock.monotonic_s() - folded_s,
        )
        self._placing.look(changes.puts)
        if isinstance(changes, MergedChanges) and changes.choices:
            self._counts.decided(changes.choices)
        return True

    async def _fold(self, folder: AnyFolder, epoch: int) -> None:
        """Fold in turns; the event loop's other work runs between them.

        A partition that needs more than one turn waits for `long_folds`, then has a long turn.
        """
        host, alone, monotonic_s = self._host, False, self._clock.monotonic_s
        began_s = long_s = turn_s = step_s = monotonic_s()
        try:
            for _ in folder.steps(self._traced.watched(self._intake.given())):
                now_s = monotonic_s()
                folder.stepped(now_s - step_s)
                enough = (
                    now_s - began_s > TRANSACTION_S
                    or folder.emitted >= TRANSACTION_EMITS
                    or folder.changing >= TRANSACTION_ROWS
                )
                # A rebalance does not wait for partitions that wait for their long turn.
                if enough or not host.owns(self.part, epoch):
                    folder.close_early()
                step_s = now_s
                if now_s - turn_s > TURN_S:
                    if alone and now_s - long_s > LONG_TURN_S:
                        host.long_folds.release()
                        alone = False
                    await asyncio.sleep(0)
                    if not alone:
                        alone = await host.long_folds.acquire()
                        long_s = monotonic_s()
                    turn_s = step_s = monotonic_s()
                    began_s += turn_s - now_s
        finally:
            if alone:
                host.long_folds.release()

    async def _write_at_last(self, changes: AnyChanges, epoch: int) -> bool:
        """Write a transaction, however long a topic refuses a record of it; False when the partition was
        revoked before that.

        A refusal depends on the cluster's settings, not on the record, and may not change what is folded: so
        the record is neither quarantined nor left out. A restart would not cure it and would stop all other
        partitions: so this one waits, and says why.
        """
        while True:
            try:
                await self._write(changes)
            except UndeliverableError as error:
                if error.why.startswith(MISSING) and self._is_own_log(error.topic):
                    # one made again is another topic: it lacks the rows, or choices, that this state is made
                    # of
                    raise
                if not await self._hold(f"stands still: {error}", epoch):
                    return False
            else:
                return True

    def _is_own_log(self, topic: str) -> bool:
        part = self.part
        return topic == part.changelog or (part.processor.on is not None and topic == part.choices_topic)

    async def _hold(self, why: str, epoch: int, seconds: float = HOLD_S) -> bool:
        """Stand still for a while, give readiness the reason, and return whether the partition is still this
        worker's.
        """
        part, host = self.part, self._host
        self._stand(why)
        until_s = self._clock.monotonic_s() + seconds
        while host.owns(part, epoch) and self._clock.monotonic_s() < until_s:
            host.progressed()  # nothing is stuck: neither is the worker to be ended nor the group to be left
            self._waited.tick()
            await asyncio.sleep(HOLD_TICK_S)
        if not host.owns(part, epoch):
            self._let_on()
            return False
        return True

    def _stand(self, why: str) -> None:
        """Tell why the partition is not folded, and fetch no more of it."""
        part = self.part
        if self._reported != why:
            logger.error(
                "%(processor)s partition %(partition)d %(why)s",
                {"processor": part.processor.name, "partition": part.partition, "why": why},
            )
            self._reported = why
        part.standing = f"{part.processor.name} partition {part.partition} {why}"
        self._host.held[part.processor.name, part.partition] = part.standing
        self._standing = True
        self._rest(True)

    def _let_on(self) -> None:
        """Take back what `_stand` did: the partition is folded again, or is another's."""
        if not self._standing:
            return
        part = self.part
        logger.warning(
            "partition %(partition)d of %(table)s goes on",
            {"partition": part.partition, "table": part.processor.table},
        )
        self._host.held.pop((part.processor.name, part.partition), None)
        part.standing, self._standing, self._reported = None, False, ""
        self._patience.over()
        self._is_waiting = False
        self._rest(False)

    def _rest(self, held: bool) -> None:
        kept = () if held else self._intake.held
        for topic in self.part.processor.topics:
            place = topic, self.part.partition
            self._host.feed.hold(place, held or place in kept)

    def _note_refused(self, changes: AnyChanges) -> None:
        """Count records refused in a row, by transactions of which none was accepted."""
        refused, part = changes.refused, self.part
        self._let_on()
        if not changes.records or self._limits.quarantine_topic in changes.repeated:
            return  # a tick, which is no record; or refused before
        met = ("wake", "tick", "close")  # at a record that was folded all the same
        if len({(each.topic, each.offset) for each in refused if each.stage not in met}) < changes.records:
            self._refused = 0
            return
        last = refused[-1]
        why = (
            f"at offset {last.offset} of {last.topic or part.processor.topics[0]} at {last.stage}:"
            f" {last.error}: {last.reason[:200]}; mend the processor"
        )
        self._count_refused(changes.records, why)

    def _count_refused(self, count: int, last: str) -> None:
        """Count what was quarantined in a row, and stand still from the limit on; *last* describes the last
        of it, and what to mend.
        """
        self._refused, limit = self._refused + count, self._limits.quarantine_limit
        if limit and self._refused >= limit:
            self._poisoned = (
                f"{self._refused} records in a row were quarantined (quarantine_limit is {limit}), the last"
                f" {last} and restart the worker, which goes on after that offset, or raise quarantine_limit"
            )

    async def _write(self, changes: AnyChanges) -> None:
        refused = changes.refused
        if not refused or self._limits.quarantine_topic in changes.repeated:
            await self._commit(changes, [])  # the quarantine has them
            return
        topic, processor, partition = (
            self._limits.quarantine_topic,
            self.part.processor.name,
            self.part.partition,
        )
        records = [(each, *self._intake.refused(each)) for each in refused]
        self._log_refused(records)
        for copy_bytes in QUARANTINE_COPY_BYTES:
            copies = [
                quarantine_record(
                    topic, processor, (source, partition), each, record, copy_bytes, self._topic_id(source)
                )
                for each, source, record in records
            ]
            try:
                await self._commit(changes, copies)
                return
            except UndeliverableError as error:
                if error.topic != topic or not copy_bytes:
                    raise

    def _topic_id(self, source: str) -> str:
        sources = self.part.sources
        return "" if sources is None else topic_id_of(sources.cluster_id, sources.topics.get(source, ""))

    async def _commit(self, changes: AnyChanges, copies: list[Emit]) -> None:
        part, host = self.part, self._host
        changes = part.noted(changes)
        changelog_next = await part.commit(changes, copies, self._limits.commit_timeout_s)
        if len(changes.puts) <= FEW_ROWS:
            part.keep(changes, changelog_next)
        else:
            await host.thread(part.keep, changes, changelog_next)

    def _log_refused(self, refused: list[tuple[Refused, str, FetchedRecord]]) -> None:
        for each, source, _ in refused:
            logger.warning(
                "record quarantined: %(source)s/%(partition)d/%(offset)d at %(stage)s: %(error)s: %(reason)s",
                {
                    "source": source,
                    "partition": self.part.partition,
                    "offset": each.offset,
                    "stage": each.stage,
                    "error": each.error,
                    "reason": each.reason[:200],
                },
            )


@dataclass(slots=True)
class Owned:
    """An active partition with the generation it was last confirmed in."""

    part: Partition
    runner: Runner
    generation: int = NOT_IN_GROUP
