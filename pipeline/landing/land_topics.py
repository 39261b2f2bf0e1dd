"""Landing many topics in one process: a thread for each, a few commits at a time, new topics taken up as they
come.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, ConfigError, HoldfastError, PipelineError, SparkError, TopicError
from holdfast.kafka.clients import CRITICAL, make_admin
from holdfast.pipeline.bronze.files import takes_writers
from holdfast.pipeline.bronze.lake import bronze_path, table_uri
from holdfast.pipeline.bronze.landed_notes import LandedNotes
from holdfast.pipeline.landing.land import MakeTable, run, tables_of
from holdfast.pipeline.landing.landing import POLL_S, Landing
from holdfast.pipeline.landing.options import LandOptions, LandReport, Progress
from holdfast.pipeline.spark.session import SparkOptions
from holdfast.pipeline.topic import TopicLog

logger = logging.getLogger(__name__)

LIMIT_TOPICS = 256
"""So many topics one process lands: each has a thread and a client."""
AT_ONCE = 4
"""So many commits are written at once: each may have some 50 MB of rows in memory."""
DISCOVER_S = 10.0
_WILD = frozenset("*?[")


class TopicsLanding:
    """Lands the topics that *wanted* names: names, or patterns as a shell has them (`events.*`), which leave
    out topics that begin with two underscores. `reports` has one for each by its name, also while it runs.
    """

    def __init__(
        self,
        settings: Settings,
        wanted: Sequence[str],
        lake: str,
        *,
        options: LandOptions | None = None,
        spark: SparkOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not wanted:
            raise ConfigError("say which topics to land: names, or patterns such as 'events.*'")
        self._settings, self._wanted, self._lake = settings, wanted, lake
        self._options, self._spark, self._progress = options or LandOptions(), spark, progress
        self._notes = LandedNotes(settings)
        self.reports: dict[str, LandReport] = {}
        self._failures: dict[str, HoldfastError] = {}
        self._slots = threading.BoundedSemaphore(AT_ONCE if takes_writers(table_uri(lake)) else 1)

    def run(self, stop: threading.Event | None = None) -> list[LandReport]:
        """Land all committed records; with `follow` continue with later ones, and with new topics, until
        *stop*.

        A topic that fails ends all, after the commits in progress; raises its error, or PipelineError for
        several. Otherwise as `land`.
        """
        ended = EitherStop(stop or threading.Event())
        found = self._topics()
        if not found and not self._options.follow:
            raise TopicError(f"no topic is like {', '.join(self._wanted)}; see `holdfast topics list`")
        with (
            tables_of(self._settings, self._lake, self._options, self._spark) as table_at,
            ThreadPoolExecutor(LIMIT_TOPICS, thread_name_prefix="holdfast-land") as pool,
        ):
            try:
                self._run(pool, partial(self._land, table_at, ended), found, ended)
            finally:
                ended.set()
        if self._failures:
            raise self._failed()
        return [self.reports[topic] for topic in sorted(self.reports)]

    def _run(self, pool: ThreadPoolExecutor, land: Any, found: Sequence[str], ended: threading.Event) -> None:
        running: dict[str, Future[None]] = {}
        while True:
            for topic in found:
                if topic not in running:
                    running[topic] = pool.submit(land, topic)
            if not self._options.follow:
                wait(running.values())
                break
            if ended.wait(DISCOVER_S):
                break
            with contextlib.suppress(BrokerError):  # the landings wait for the brokers, or fail
                found = self._topics()
        wait(running.values())
        for each in running.values():
            each.result()

    def _land(self, table_at: MakeTable, ended: threading.Event, topic: str) -> None:
        try:
            with TopicLog(self._settings, topic) as log:
                log.partitions()
                with self._slots:
                    table = table_at(bronze_path(self._lake, topic))
                    landing = Landing(table, self._settings, log, self._options, self._notes)
                self.reports[topic] = landing.report
                run(landing, self._options, ended, self._progress, self._slots)
        except HoldfastError as error:
            if isinstance(error, SparkError) and ended.is_set() and not self._failures:
                logger.warning("the landing of %(topic)s ends with its JVM", {"topic": topic})
                return  # see run()
            self._failures[topic] = error
            if self._options.follow:
                ended.set()
        except BaseException:
            ended.set()
            raise

    def _failed(self) -> HoldfastError:
        (topic, first), *others = sorted(self._failures.items())
        if not others:
            return first
        told = "; ".join(f"{topic}: {error}" for topic, error in [(topic, first), *others])
        return PipelineError(f"{len(self._failures)} topics were not landed: {told}")

    def _topics(self) -> list[str]:
        """Return the names of the topics to land now; TopicError for one that is named and not there."""
        there = _listed(self._settings)
        names = [each for each in self._wanted if not _WILD & set(each)]
        if missing := [name for name in names if name not in there]:
            raise TopicError(f"topic {missing[0]}: there is none; check its name and `holdfast topics list`")
        like = [each for each in self._wanted if _WILD & set(each)]
        found = sorted({*names, *(topic for topic in there if _is_like(topic, like))})
        if len(found) > LIMIT_TOPICS:
            raise ConfigError(
                f"{len(found)} topics are more than the {LIMIT_TOPICS} that one process lands: share them out"
                " among several"
            )
        return found


def _is_like(topic: str, patterns: Sequence[str]) -> bool:
    """Return whether a topic's name has one of the patterns.

    >>> [_is_like(name, ["events.*", "_*"]) for name in ("events.eu", "events", "_x", "__consumer_offsets")]
    [True, False, True, False]
    """
    return not topic.startswith("__") and any(fnmatchcase(topic, each) for each in patterns)


def _listed(settings: Settings) -> set[str]:
    admin = make_admin(settings.client(), log_level=CRITICAL)
    try:
        return set(admin.list_topics(timeout=settings.request_timeout_s).topics)
    except KafkaException as error:
        raise BrokerError(
            f"the topics cannot be listed: {error.args[0].str()}; check that the brokers of bootstrap.servers"
            " are reachable"
        ) from error
    finally:
        del admin


class EitherStop(threading.Event):
    """An event that is set as well once *first* is."""

    def __init__(self, first: threading.Event) -> None:
        super().__init__()
        self._first = first

    def is_set(self) -> bool:
        return super().is_set() or self._first.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        until_s = None if timeout is None else system_clock.monotonic_s() + timeout
        while not self.is_set():
            left_s = POLL_S if until_s is None else until_s - system_clock.monotonic_s()
            if left_s <= 0:
                return False
            super().wait(min(POLL_S, left_s))
        return True
