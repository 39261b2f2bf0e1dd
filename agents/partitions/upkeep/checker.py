"""The background check: one store after the other compared with its changelog, each once in
`store_check_interval_s`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from holdfast.agents.cluster import Survey
from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import Held
from holdfast.config import Settings
from holdfast.errors import StoreError
from holdfast.tables.checking import CheckStopped, check
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

POLL_S = 0.5


class CheckerHost(Protocol):
    """The check's calls to the manager."""

    @property
    def settings(self) -> Settings: ...

    @property
    def holdings(self) -> Holdings: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def gate(self) -> FoldGate: ...

    @property
    def cluster(self) -> Survey: ...


class StoreChecker:
    """Checks a worker's partitions, active and standby, in turn, on a thread of its own.

    A rotten store is condemned: its partition answers nothing more and is rebuilt.
    """

    def __init__(self, host: CheckerHost) -> None:
        self._host, self._stop = host, threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-check")
        self._last: Held | None = None

    async def run(self) -> None:
        """Check until cancelled; returns at once when the setting is 0."""
        interval_s = self._host.settings.store_check_interval_s
        if not interval_s:
            return
        while True:
            held = len(self._host.holdings.served())
            await asyncio.sleep(max(POLL_S, interval_s / max(1, held)))
            part = self._next()
            if part is not None:
                await self._check(part)

    def close(self) -> None:
        """End the check that runs, without waiting for it."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> Partition | None:
        """Return the partition whose turn it is, None when none can be checked now."""
        parts = {
            (part.processor.name, part.partition): part
            for part in self._host.holdings.served()
            if part.serving
        }
        if not parts or not self._host.gate.open:
            return None
        order = sorted(parts)
        later = [held for held in order if self._last is not None and held > self._last]
        self._last = (later or order)[0]
        return parts[self._last]

    async def _check(self, part: Partition) -> None:
        host, settings = self._host, self._host.settings
        where = f"{part.processor.name} partition {part.partition}"
        try:
            state = part.pin()
            at, budget = state.applied, host.cluster.environment.budget
            call = partial(
                check,
                part,
                state,
                settings.consumer(),
                settings.app,
                budget,
                self._stop,
                settings.stall_timeout_s,
            )
            cause = await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except (CheckStopped, StoreError) as error:  # it was given up, or it is condemned already
            logger.info(
                "store of %(store)s not checked to the end: %(error)s", {"store": where, "error": error}
            )
            return
        except Exception as error:  # noqa: BLE001  a full disk, a broker that is away: the next turn tries again, folding goes on
            logger.warning(
                "store of %(store)s could not be checked: %(error)s", {"store": where, "error": error}
            )
            return
        if cause is None:
            host.metrics.partition(part.processor.name, part.partition).store_checks += 1
            logger.info(
                "store of %(store)s is what its changelog says, as of offset %(offset)d",
                {"store": where, "offset": at},
            )
        else:
            part.condemn(cause)
