"""Faust's life cycle of a rebalance with our fence and restore in its middle; Faust never reads a changelog
itself.

Overrides private names of faust-streaming 0.15.3, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from faust.tables import manager, recovery
from faust.types import TP
from faust.types.tables import GlobalTableT
from mode import Service

from holdfast.agents.faust.declared.stock_tables import StockTable, StockTables
from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.partitions.types import AssignmentPlan
from holdfast.agents.partitions.upkeep.topic_watch import more_partitions
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError, HoldfastError, TopicError
from holdfast.tables import lived
from holdfast.tables.restore import RestoreInterrupted

logger = logging.getLogger(__name__)

STAY_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of one processor that an assignment gives to this worker; *apart* are those of which it
    has some sources alone.
    """

    active: frozenset[int]
    standby: frozenset[int]
    apart: frozenset[int]


def share_of(
    processor: Processor[Any, Any],
    app: str,
    assigned: Collection[TP],
    owned: frozenset[int] | None = None,
) -> Share:
    """Return the part of *processor* that this worker is to own and the part it is a standby of: of the
    partitions whose sources it has all, *owned* if the assignment names them, else all.

    The assignor keeps topics together that the same members read. Where a member of an older release leads,
    members of two versions of a chain are not given their sources together. Then a member that has a
    partition of each source owns it, whichever has the changelog. A partition whose sources no member has
    together waits, and nothing of it is lost.
    """

    def numbers(topic: str) -> frozenset[int]:
        return frozenset(tp.partition for tp in assigned if tp.topic == topic)

    sources = [numbers(topic) for topic in processor.topics]
    active = frozenset.intersection(*sources)
    apart = frozenset.union(*sources) - active
    if owned is not None:
        active, apart = active & owned, frozenset()
    return Share(active, numbers(processor.changelog(app)) - active, apart)


def require_known(
    processor: Processor[Any, Any], app: str, assigned: Collection[TP], partitions: int
) -> None:
    """Raise TopicError where a topic of *processor* has partitions that it had not when the worker started:
    it had *partitions*.
    """
    topics = (*processor.topics, processor.changelog(app))
    added = [tp for tp in assigned if tp.topic in topics and tp.partition >= partitions]
    if added:
        topic = min(tp.topic for tp in added)
        count = 1 + max(tp.partition for tp in added if tp.topic == topic)
        raise TopicError(more_partitions(topic, partitions, count, processor))


class FencedRecovery(recovery.Recovery):
    """Turns an assignment into a plan for the manager, and opens the tap when the plan is carried out."""

    app: Any
    tables: Any
    plan: AssignmentPlan
    given_tps: frozenset[TP]
    followed_tps: frozenset[TP]

    @property
    def manager(self) -> PartitionManager:
        manager: PartitionManager = self.app.manager
        return manager

    # Stock opens every store to ask for its offset, buffers changelog events and publishes its progress; ours
    # has none of these.
    def flush_buffers(self) -> None: ...
    def add_active(self, table: Any, tp: TP) -> None: ...
    def add_standby(self, table: Any, tp: TP) -> None: ...

    @Service.task
    async def _slurp_changelogs(self) -> None: ...

    @Service.task
    async def _publish_stats(self) -> None: ...

    @Service.task
    async def _stay_in_group(self) -> None:
        # aiokafka sees no fetches of ours and leaves the group after a while; the transport's loop, which
        # signals activity otherwise, runs only from the first assignment on that was carried out. A restore
        # that stalls is ended by the manager's watch.
        while not self.should_stop:
            await self.sleep(STAY_EVERY_S)
            if self.manager.adoption.under_way or self.tables.stock.under_way:
                self.app.consumer.stay_in_group()

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Remember the assignment and return at once: heartbeats continue while the plan is carried out."""
        if generation_id != self.app.consumer_generation_id:
            return
        # One snapshot: `assigned` holds changelog partitions, active and standby, too. The assignor may
        # already speak of the next one.
        app = self.manager.settings.app
        try:
            for name, processor in self.manager.processors.items():
                require_known(processor, app, assigned, self.manager.partitions(name))
        except TopicError as error:
            self.manager.crash(error)
            return
        told = self.app.assignor.owned
        shares = {
            name: share_of(each, app, assigned, told(each.changelog(app), assigned))
            for name, each in self.manager.processors.items()
        }
        active = {(name, number) for name, share in shares.items() for number in share.active}
        standby = {(name, number) for name, share in shares.items() for number in share.standby}
        if apart := sorted(name for name, share in shares.items() if share.apart):
            logger.warning(
                "not all sources of %(processors)s were assigned together, since workers of the group read"
                " other topics: what lies apart waits until all of them run the same processors in the same"
                " versions",
                {"processors": ", ".join(apart)},
            )
        manager = self.manager
        self.plan = AssignmentPlan(
            manager.epoch, generation_id, frozenset(active), frozenset(standby), manager.membership.term
        )
        self.given_tps, self.followed_tps = (
            frozenset(assigned),
            frozenset(self.app.assignor.assigned_standbys()),
        )
        self._generation_id = generation_id
        self.signal_recovery_start.set()

    @Service.task
    async def _restart_recovery(self) -> None:
        while not self.should_stop:
            if await self.wait_for_stopped(cast(Any, self.signal_recovery_start)):
                break
            self.signal_recovery_start.clear()
            plan, assigned, standby = self.plan, self.given_tps, self.followed_tps
            try:
                self._set_recovery_started()
                await self._wait(self.manager.adoption.adopt(plan))
                await self._wait(self.tables.stock.adopt(assigned, standby, plan.generation, plan.epoch))
                await self._open_the_tap(plan)
            except (recovery.RebalanceAgain, RestoreInterrupted):
                continue
            except recovery.ServiceStopped:
                break
            except asyncio.CancelledError:
                if self.should_stop:
                    break
                raise
            except Exception as error:
                if not isinstance(error, HoldfastError):
                    logger.exception("could not take over the assigned partitions")
                self.manager.crash(error)
                raise

    async def _open_the_tap(self, plan: AssignmentPlan) -> None:
        app, consumer, generation = self.app, self.app.consumer, plan.generation
        await app.on_rebalance_complete.send()
        if app.consumer_generation_id != generation or self.manager.epoch != plan.epoch:
            return
        self._set_recovery_ended()
        app.flow_control.resume()  # clears agents' queues: now, while nothing can flow
        # Seek before anything is resumed: stock resumes first and then takes the records it cleared for gaps
        # in the log. wait_for inside: mode reports a timeout of _wait as "stopped", and stock then leaves its
        # loop, silent for ever.
        await self._wait(lived.wait_for(consumer.perform_seek(), app.conf.broker_request_timeout))
        if app.consumer_generation_id != generation or self.manager.epoch != plan.epoch:
            return  # revoked since: nothing may flow before the next assignment is carried out
        consumer.resume_partitions({tp for tp in consumer.assignment() if tp.topic in self.manager.sources})
        self.manager.gate.opened()
        self.completed.set()
        consumer.resume_flow()
        await app._fetcher.maybe_start()
        self.tables.on_actives_ready()
        self.tables.on_standbys_ready()
        app.on_rebalance_end()
        await self.manager.announce()
        self.manager.upgrading.adopted()
        if app.assignor.moved:
            await consumer.rejoin()  # nothing moves, and the other workers learn where this one is now


def require_restorable(table: Any) -> None:
    """Raise ConfigError for a table of Faust's of which two workers, or a restart, would make something
    else.
    """
    if isinstance(table, GlobalTableT):
        why, cure = (
            "workers would undo each other's changes of a global table",
            "declare `Global(...)` of its topic, which processors read by reads=",
        )
    elif table.use_partitioner:
        why, cure = (
            "with use_partitioner=True a key's store is not the one of its changelog's partition",
            "group_by the key before the table is changed",
        )
    elif not isinstance(table, StockTable):
        why, cure = (
            f"{type(table).__name__} does not tell when its changes are on its changelog",
            "declare it by app.Table(...), with a list for a set",
        )
    else:
        return
    raise ConfigError(f"table {table.name}: {why}; {cure}, or write what fills it as the fold of a Processor")


class ManagedTables(manager.TableManager):
    """Faust's table manager with our recovery; its first call of a revocation or a stop voids the fetched
    records.
    """

    app: Any

    @property
    def recovery(self) -> recovery.Recovery:
        if self._recovery is None:
            self._recovery = FencedRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self.stock = StockTables(app)

    def add(self, table: Any) -> Any:
        """Take in a table; ConfigError for one that could not be restored as it was."""
        require_restorable(table)
        return super().add(table)

    async def on_start(self) -> None:
        # Stock sleeps a second first, to let agents subscribe; ours are declared before the app starts.
        await self._update_channels()
        await self.recovery.start()

    def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self.app.manager.revoke()
