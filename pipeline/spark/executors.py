"""Watches a cluster's executors: a job without executors ends within a time, with Spark's own words."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.clock import Clock, system_clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LOOK_S = 1.0
CLOSE_S = 10.0
_CLIENT = "org.apache.spark.deploy.client"
"""The logger that reports, at level INFO alone, that an executor of a standalone cluster has ended, and with
which code.
"""


class WatchedCluster(Protocol):
    """A session that runs jobs, as the watch sees it."""

    def is_starved(self) -> bool:
        """Return whether there are jobs and no executor."""

    def cancel(self) -> None:
        """End all jobs; each fails."""

    def told(self) -> str:
        """Return the requested resources, and where executors log."""


class SessionCluster:
    """A session, asked through connections of the thread that asks."""

    def __init__(self, session: SparkSession) -> None:
        self._context: Any = session.sparkContext

    def is_starved(self) -> bool:
        if not self._context.statusTracker().getActiveJobsIds():
            return False
        # The driver's own store of blocks is one of them.
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) <= 1

    def cancel(self) -> None:
        self._context.cancelAllJobs()

    def told(self) -> str:
        conf, app = self._context.getConf(), self._context.applicationId
        memory, cores = (
            conf.get(f"spark.executor.{name}", default)
            for name, default in (("memory", "1g"), ("cores", "any"))
        )
        driver = f"{conf.get('spark.driver.host')}:{conf.get('spark.driver.port')}"
        return (
            f"the cluster has no worker, none with {memory} and {cores} cores to spare"
            " (spark.executor.memory, spark.executor.cores), or its executors end before they reach the"
            f" driver at {driver} (spark.driver.host); those of {self._context.master} log to"
            f" work/{app}/*/stderr of the workers"
        )


class ExecutorWatch:
    """Looks at a cluster each second, in a thread of its own, and ends jobs that have had no executor for
    *timeout_s*. Close it when done.

    Spark itself would wait for ever. *starved* then says why it waited.
    """

    def __init__(
        self,
        cluster: WatchedCluster,
        timeout_s: float,
        *,
        clock: Clock = system_clock,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._cluster, self._timeout_s, self._clock = cluster, timeout_s, clock
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self.starved: str | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-executors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self.look()
        except Exception as error:  # noqa: BLE001  py4j raises anything
            # A JVM that is gone: the caller that waits for its job gets an error from its own call.
            logger.info("the executors cannot be looked at any more: %(cause)r", {"cause": error})

    def look(self) -> None:
        """Look until closed."""
        since_s: float | None = None
        while not self._pause(LOOK_S):
            if not self._cluster.is_starved():
                since_s = None
                continue
            now_s = self._clock.monotonic_s()
            since_s = now_s if since_s is None else since_s
            if now_s - since_s < self._timeout_s:
                continue
            self.starved = (
                f"no executor has taken a task for {self._timeout_s:g} s (spark_executors_timeout_s):"
                f" {self._cluster.told()}"
            )
            self._cluster.cancel()
            since_s = None


def log_executors(session: SparkSession) -> None:
    """Make Spark's log say when an executor of a standalone cluster ends."""
    java: Any = session._jvm
    log4j = java.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_CLIENT, log4j.Level.INFO)
