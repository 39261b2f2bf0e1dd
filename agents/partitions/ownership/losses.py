"""Losses of partitions that no rebalance took: their writer was fenced, or their store is rotten."""

from __future__ import annotations

import logging

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.membership import Membership
from holdfast.agents.partitions.readiness import Readiness
from holdfast.agents.partitions.types import NOT_IN_GROUP, GroupClient, Held, Supervisor
from holdfast.clock import Clock, system_clock
from holdfast.errors import FencedError, HoldfastError
from holdfast.tables import lived
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

LIMIT_LOSSES, LOSSES_WITHIN_S = 5, 60.0


class Losses:
    """Takes partitions out of service, and asks the group for a new generation, which assigns them again."""

    def __init__(
        self,
        group: GroupClient,
        supervisor: Supervisor,
        *,
        session_s: float,
        gate: FoldGate,
        holdings: Holdings,
        membership: Membership,
        readiness: Readiness,
        metrics: Metrics,
        clock: Clock = system_clock,
    ) -> None:
        self._group, self._supervisor, self._session_s, self._gate = group, supervisor, session_s, gate
        self._holdings, self._membership, self._readiness = holdings, membership, readiness
        self._metrics, self._clock = metrics, clock
        self._at_s: dict[Held, list[float]] = {}

    def fenced(self, part: Partition, epoch: int, error: FencedError) -> None:
        """Stop answering for *part*, whose write the broker refused, and ask the group for its owner.

        This worker may still own it, if the broker was away for longer than it keeps a transaction. The next
        assignment decides that; without one within a session this worker leaves, as it does when a partition
        is taken from it again and again though the group confirms it.
        """
        logger.warning("partition lost: %(error)s", {"error": error})
        part.lose()
        self._metrics.fenced += 1
        self._readiness.why = f"{part.processor.name} partition {part.partition} has a newer owner"
        held = (part.processor.name, part.partition)
        self._holdings.owned[held].generation = NOT_IN_GROUP
        now_s = self._clock.monotonic_s()
        losses = [at_s for at_s in self._at_s.get(held, []) if now_s - at_s < LOSSES_WITHIN_S]
        if (
            self._membership.owns()
        ):  # else the group has given it away, as it does when this worker was frozen
            losses.append(now_s)
        self._at_s[held] = losses
        if len(losses) > LIMIT_LOSSES:
            self._supervisor.crash(
                HoldfastError(
                    f"{error}; for the {len(losses)}th time: does another application use this"
                    " transactional id?"
                )
            )
        elif epoch == self._gate.epoch:  # the batch's epoch: the revocation often arrives before the refusal
            self._supervisor.watch(self._ask_group(epoch, error))

    def rotten(self, part: Partition, cause: str) -> None:
        """Stop folding and answering *part*, whose store is rotten, and take it up again: that sets the store
        aside and restores it.

        All other partitions continue. This one is treated as lost, but no other worker has it.
        """
        held = (part.processor.name, part.partition)
        logger.error(
            "store rotten: %(table)s partition %(partition)d as of offset %(offset)d: %(cause)s; "
            "it answers nothing more, is set aside and rebuilt from %(changelog)s",
            {
                "table": held[0],
                "partition": held[1],
                "offset": part.applied,
                "cause": cause,
                "changelog": part.changelog,
            },
        )
        self._metrics.partition(*held).rotten += 1
        if (owned := self._holdings.owned.get(held)) is not None and owned.part is part:
            part.lose()
            owned.generation = NOT_IN_GROUP
        elif self._holdings.standby.get(held) is not part:
            return  # it is being opened or closed, which mends it
        self._readiness.why = f"{held[0]} partition {held[1]} is being rebuilt"
        self._supervisor.watch(
            self._ask_group(
                self._gate.epoch, HoldfastError(f"{held[0]} partition {held[1]} must be rebuilt: {cause}")
            )
        )

    async def _ask_group(self, epoch: int, error: HoldfastError) -> None:
        try:
            await self._group.rejoin()
            await lived.sleep(self._session_s + 2)
        except Exception as failure:  # noqa: BLE001  whatever it is, the partition is without an owner
            self._supervisor.crash(HoldfastError(f"{error}; and the group could not be asked: {failure!r}"))
            return
        if self._gate.epoch == epoch:
            self._supervisor.crash(
                HoldfastError(
                    f"{error}; and the group shows no change: does another application use this"
                    " transactional id?"
                )
            )
