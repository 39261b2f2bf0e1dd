"""Brokers that cannot be reached: one line when that begins, one when it is over.

aiokafka logs each attempt, hundreds of lines a minute while a broker is away, and calls the rebalances of a
rolling release warnings. Its lines are not lost: at level DEBUG all of them are logged.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from holdfast.clock import Clock, system_clock

logger = logging.getLogger(__name__)

QUIET_S = 5.0
"""Brokers answer again when no attempt has failed for so long: aiokafka makes one a second at least."""
LOOK_S = 1.0
UNREACHABLE = frozenset(
    {
        "Heartbeat session expired - marking coordinator dead",
        "Unable connect to node with id %s: %s",
        'Unable connect to "%s:%s": %s',
        'Unable to request metadata from "%s:%s": %s',
        "Unable to request metadata from node with id %s: %r",
        "Unable to update metadata from %s",
        "sources: no broker answers: %(why)s",
    }
)
"""Lines of aiokafka, and of our `kafka.fetching.fetcher`, about a broker that cannot be reached."""
PASSING = frozenset(
    {
        "Error sending %s to node %s [%s] -- marking coordinator dead",
        "Failed to commit on finallization: %s",
        "Group Coordinator Request failed: %s",
        "Heartbeat failed for group %s because it is rebalancing",
        "Heartbeat failed for group %s: coordinator (node %s) is either not started or not valid",
        "Heartbeat failed for group %s: generation id is not  current.",
        "Heartbeat failed: local member_id was not recognized; resetting and re-joining group",
        "Heartbeat send request failed: %s. Will retry.",
        "LeaveGroup request failed: %s",
        "Marking the coordinator dead (node %s)for group %s.",
        "OffsetCommit failed before join, ignoring: %s",
        "OffsetCommit failed for group %s due to group error (%s), will rejoin",
        "sources: a broker answers again",
    }
)
"""Lines of aiokafka about each rebalance, and about a coordinator that moves or begins: it tries again, and
there is no reason to look. The fetcher's line about the end is logged here, when all of them are over it.
"""
LATE = "Timer %s is overlapping (interval=%r runtime=%r)"
"""The line of mode about a commit of offsets that waits for a broker; for any other timer it is news."""


LIBRDKAFKA = "%s [%s] %s"
"""The format of librdkafka's clients: those of an outbox, and of a console that a worker serves."""


def is_unreachable(record: logging.LogRecord) -> bool:
    """Return whether a record is about a broker that cannot be reached.

    >>> of = lambda *args: logging.LogRecord("kafka", logging.ERROR, "", 0, LIBRDKAFKA, args, None)
    >>> is_unreachable(of("FAIL", "shop#consumer-1", "Connection refused")), is_unreachable(of("CONFWARN", "shop#consumer-1", "no effect"))
    (True, False)
    """  # noqa: E501
    template = str(record.msg)
    if template != LIBRDKAFKA or not isinstance(record.args, tuple) or len(record.args) != 3:
        return template in UNREACHABLE
    facility, _, text = map(str, record.args)
    failed = record.levelno >= logging.WARNING  # an idle connection that a broker closes is none
    return failed and (facility == "FAIL" or (facility == "ERROR" and "brokers are down" in text))


class Outages:
    """A filter of log records that lets the first line of an outage pass, and a watch that logs its end.

    Records come from any thread, once for each handler.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._began_s: float | None = None
        self._failed_s, self._lines = 0.0, 0
        self._judged: tuple[logging.LogRecord | None, bool] = (None, True)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log *record*."""
        template, unreachable = str(record.msg), is_unreachable(record)
        if not unreachable and template not in PASSING | {LATE}:
            return True
        with self._lock:
            if self._judged[0] is not record:
                passes = self._met(record) if unreachable else self._passes(record, template)
                self._judged = record, passes
            return self._judged[1] or logging.getLogger().isEnabledFor(logging.DEBUG)

    def _passes(self, record: logging.LogRecord, template: str) -> bool:
        """Make a line of what passes by itself no warning; return whether it is no part of an outage."""
        if self._began_s is not None:
            self._lines += 1
            return False
        if template in PASSING:
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True

    def _met(self, record: logging.LogRecord) -> bool:
        """Note a line of an outage; return whether it is the first, which then reports it."""
        self._failed_s = self._clock.monotonic_s()
        if self._began_s is not None:
            self._lines += 1
            return False
        self._began_s, self._lines = self._failed_s, 0
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.msg, record.args = "a broker cannot be reached: %(why)s", {"why": record.getMessage()}
        return True

    def look(self, *, is_down: bool) -> None:
        """Log that the brokers asked answer again: one of several brokers may stay away, while others lead
        its partitions. *is_down* says that no broker has answered the fetcher since.
        """
        with self._lock:
            began_s, now_s = self._began_s, self._clock.monotonic_s()
            if is_down:
                self._failed_s = now_s
            if began_s is None or now_s - self._failed_s < QUIET_S:
                return
            told = {"seconds": self._failed_s - began_s, "lines": self._lines}
            self._began_s = None
        logger.warning(
            "brokers that are asked answer again, after %(seconds).0f s (%(lines)d lines left out)", told
        )

    async def run(self, is_down: Callable[[], bool]) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(is_down=is_down())


outages = Outages()
"""Those of this process, which has one log."""
