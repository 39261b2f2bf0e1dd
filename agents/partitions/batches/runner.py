"""Takes a partition's records through fold, commit and acknowledgement; one runner for each owned partition.

A commit, from notes to readers, is in `holdfast.agents.partitions.batches.commit`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.agents.partitions.batches.commit import Commit
from holdfast.agents.partitions.batches.intake import Intake
from holdfast.agents.partitions.batches.placing import Placing
from holdfast.agents.partitions.batches.stall import RETRY_S, Stall
from holdfast.agents.partitions.batches.traced_batches import TracedBatches
from holdfast.agents.partitions.types import NOT_IN_GROUP, FoldEvent, FoldLimits, RunnerHost
from holdfast.clock import Clock, system_clock
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.emit_columns import topics_of
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.stepping import TopicOffset
from holdfast.errors import FencedError, Later, RottenStoreError, StoppedError
from holdfast.kafka.loop_turn import TURN_S
from holdfast.kafka.transactions.transactional_producer import UndeliverableError
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

LONG_TURN_S = 0.2
"""When several partitions have long folds, each runs LONG_TURN_S before it yields to the next: its rows stay
in the processor's cache.
"""
TRANSACTION_S = 2.0
"""The longest time that one transaction is folded; readers see none of its changes before it ends.

The longer, the fewer rows are written for each record.
"""
TRANSACTION_EMITS = 10_000
"""The approximate number of records that one transaction emits at most.

More in one make none of them cheaper, and all are held until it is committed.
"""
TRANSACTION_ROWS = 100_000
"""The approximate number of rows that one transaction changes at most.

Beyond it, hardly a row is changed twice; and all are held until it is committed.
"""
NOT_YET = "records before it are not committed yet"
T = TypeVar("T")


class Runner:
    """Commits one partition, one transaction at a time, until nothing is pending.

    Records that arrive while a transaction is in flight become the next one: batches are as small as the
    commit is quick and grow with the backlog, whatever sizes the feed delivers; one that is folded for long
    also takes the records that arrive in the meantime. Commits of one partition overlap folds of the others.
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
        self._host, self.part, self.intake, self._limits, self._clock = host, part, intake, limits, clock
        self._counts = host.metrics.partition(part.processor.name, part.partition)
        self._traced = TracedBatches(part, clock)
        name = part.processor.name
        self._placing = Placing(part.processor, part.partition, lambda: host.partitions(name), self._counts)
        self._stall = Stall(host, part, intake, limits.later_timeout_s, clock)
        self._commit = Commit(host, part, intake, limits, self._stall)
        self.job: asyncio.Task[Any] | None = None
        self._failed = False
        self._refused, self._poisoned = 0, ""
        self._allowed = set[TopicOffset]()
        """Records that an operator lets be refused, where others stop the partition."""

    def enqueue(self, event: FoldEvent) -> None:
        """Enqueue one fetched event; it is acked when its records are durable, or dropped when the partition
        is lost.
        """
        if self._failed:
            self._host.void(event)
            return
        self.intake.enqueue(event)
        self.go_on()

    def go_on(self) -> None:
        """Fold the pending records, unless that is under way."""
        if self.intake.ready and not self._failed and (self.job is None or self.job.done()):
            self.job = asyncio.ensure_future(self._run())

    def idle(self) -> bool:
        return not self.intake.ready and (self.job is None or self.job.done())

    def revoked(self) -> None:
        """Drop fetched records whose fold has not begun: a revocation makes them void."""
        self.intake.revoked()

    # -- transactions that fold nothing

    async def append(self, records: list[Emit], what: str, epoch: int) -> str | None:
        """Write *records* of the quarantine in a transaction that changes neither rows nor position; return
        why that failed, None once they are durable. *what* describes them for the limit of quarantined
        records.

        Raises UndeliverableError when a topic refuses one. A partition has one transaction at a time, so
        nothing is written while records are pending.
        """
        if self._poisoned:
            return self._poisoned
        if not self.idle() or self._failed:
            return NOT_YET
        job = self._begin(self._append(records, what, epoch))
        # The host waits for the job when the partition is revoked, also when the caller is cancelled.
        return await asyncio.shield(job)

    async def _append(self, records: list[Emit], what: str, epoch: int) -> str | None:
        part, host = self.part, self._host
        if not host.owns(part, epoch):
            return "the partition was revoked"
        try:
            await self._commit.append(records)
        except FencedError as error:
            host.lost(part, epoch, error)
            return str(error)
        host.progressed()
        self._count_refused(1, what)
        return None

    def mark_idle(self, at_end: frozenset[int], epoch: int) -> None:
        """Have a step mark in its topics that its sources *at_end* stay at the ends of their logs, unless
        records are pending or the topics have it.
        """
        marks = self.part.owner.marks
        if marks is None or self._poisoned or self._failed or self._stall.is_on or not self.idle():
            return
        reached = self.part.owner.reached_with(at_end)
        if reached is None or (marks.at_end == at_end and marks.has_told(reached)):
            return
        self._begin(self._mark_idle(at_end, epoch))

    async def _mark_idle(self, at_end: frozenset[int], epoch: int) -> None:
        part, host = self.part, self._host
        if not host.owns(part, epoch):
            return
        try:
            await part.owner.mark_idle(at_end, self._limits.commit_timeout_s)
        except FencedError as error:
            host.lost(part, epoch, error)
        except UndeliverableError as error:
            logger.warning(
                "marks of %(table)s partition %(partition)d were refused; retrying: %(error)s",
                {"table": part.processor.table, "partition": part.partition, "error": error},
            )
            await asyncio.sleep(RETRY_S)
        else:
            host.progressed()

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run *work* as the partition's transaction, then fold what has arrived."""
        job = asyncio.ensure_future(self._guarded(work))
        self.job = job
        job.add_done_callback(lambda done: self.go_on())
        return job

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except (UndeliverableError, RottenStoreError):
            raise
        except Exception as error:
            self._failed = True
            self._host.crash(error)
            raise

    # -- transactions of folded records

    async def _run(self) -> None:
        try:
            while self.intake.ready:
                if self.intake.next_batch():
                    await self._transact(self.intake.epoch)
            self._stall.end()
        except RottenStoreError:
            self._failed = True  # the host takes the partition up again
            self.intake.clear()
        except Exception as error:
            logger.exception(
                "partition %(partition)d of %(table)s failed",
                {"partition": self.part.partition, "table": self.part.processor.table},
            )
            # The worker is about to end; folding on after a batch that is missing would only hide why.
            self._failed = True
            self.intake.clear()
            self._host.crash(error)

    async def _transact(self, epoch: int) -> None:
        """Fold the drawn events, commit them, then ack or drop them; the errors are those of `Commit`."""
        part, intake = self.part, self.intake
        if self._poisoned:
            while await self._stall.wait(f"is stalled: {self._poisoned}", epoch):
                pass
            intake.abandon()
            return
        folder = part.owner.folder  # kept to the end: a partition that is lost by then has none
        folder.allowed = self._allowed if part.processor.on_error == "stop" else None
        began_s, is_durable = self._clock.monotonic_s(), True
        try:
            await self._fold(folder, epoch)
            if (changes := folder.changes) is not None:
                began_s = self._clock.monotonic_s()
                if is_durable := await self._commit.transact(changes, epoch):
                    self._committed(folder, changes, self._clock.monotonic_s() - began_s)
                else:
                    folder.rollback()  # this worker may keep the partition, and read the records again
        except FencedError as error:
            intake.abandon()
            self._host.lost(part, epoch, error)
        except Later as later:
            intake.retry()
            self._counts.waits += 1
            await self._stall.wait_for(later, *self._coordinates(later.at), epoch)
        except StoppedError as stopped:
            intake.retry()
            await self._stop(stopped, epoch)
        except RottenStoreError:  # the durable state is read again from Kafka
            intake.abandon()
            raise
        else:
            if is_durable:
                intake.ack()
            else:
                intake.abandon()

    def _committed(self, folder: Folder[Any], changes: Changes, seconds: float) -> None:
        self._stall.end()
        self._count_refusals(changes)
        folder.commit()
        self.part.owner.look_at_origins()
        self._traced.committed(changes)
        self._host.progressed()
        self._counts.committed(
            records=changes.records,
            rows=len(changes.puts),
            emitted=Counter(topics_of(changes.emits)),
            quarantined=len(changes.refused),
            seconds=seconds,
        )
        self._placing.look(changes.puts)
        if changes.choices:
            self._counts.decided(changes.choices)

    def _coordinates(self, at: TopicOffset | None) -> tuple[str, int]:
        """Return the topic and offset of a record as operators know them; of a tick those of its choice."""
        part = self.part
        topic, offset = at or ("", part.applied + 1)
        (own,) = part.choices_topics or part.processor.topics
        return topic or own, offset

    async def _stop(self, stopped: StoppedError, epoch: int) -> None:
        """Stall before a record that may not be refused, until an operator lets it be."""
        (topic, offset), partition = self._coordinates((stopped.topic, stopped.offset)), self.part.partition
        why = (
            f"is stalled before offset {offset} of {topic} partition {partition} ({stopped}), since"
            ' on_error is "stop": mend the processor and restart the worker, or have the record quarantined:'
            f" `holdfast quarantine skip {topic} {partition} {offset} --execute`"
        )
        while not await self._host.may_refuse(topic, partition, offset):
            if not await self._stall.wait(why, epoch):
                return
        self._allowed.add((stopped.topic, stopped.offset))

    async def _fold(self, folder: Folder[Any], epoch: int) -> None:
        """Fold in turns; the event loop's other work runs between them.

        A partition that needs more than one turn waits for `long_folds`, then has a long turn.
        """
        host, alone, monotonic_s = self._host, False, self._clock.monotonic_s
        began_s = long_s = turn_s = step_s = monotonic_s()
        try:
            for _ in folder.steps(self._traced.watched(self.intake.records())):
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

    def _count_refusals(self, changes: Changes) -> None:
        """Count records refused in a row, over transactions without an accepted one."""
        refused, part = changes.refused, self.part
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
        """Count quarantined records in a row, and stall from the limit on; *last* describes the last one, and
        what to mend.
        """
        self._refused, limit = self._refused + count, self._limits.quarantine_limit
        if limit and self._refused >= limit:
            self._poisoned = (
                f"{self._refused} records in a row were quarantined (quarantine_limit is {limit}), the last"
                f" {last} and restart the worker, which goes on after that offset, or raise quarantine_limit"
            )


@dataclass(slots=True)
class Owned:
    """An active partition with the generation it was last confirmed in."""

    part: Partition
    runner: Runner
    generation: int = NOT_IN_GROUP
