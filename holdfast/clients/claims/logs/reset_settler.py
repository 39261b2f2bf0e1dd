"""A member's part in resets: it frees what one holds whose administrator died
(PROTOCOL.md#pausing-and-resetting-a-group).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

from holdfast.clients.claims.logs.reset_log import ResetLog, settle
from holdfast.clients.topics.log_ends import GroupOffsets
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import ReleasingPartition
from holdfast.core.claims.resets import RESETS_TOPIC
from holdfast.core.member.state import Draws

logger = logging.getLogger(__name__)

WAIT_LOW_INTERVALS, WAIT_HIGH_INTERVALS = 0.1, 0.5


class ResetSettler:
    """Looks up decisions in a thread of its own, since that waits for the broker and heartbeats must not.

    A silent reset is looked at after a random part of an interval: of many members one is first, and the
    others see its frames.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: str,
        interval_s: float,
        stale_after_s: int,
        timeout_s: float,
        clock: Clock,
        draws: Draws,
        topic: str = RESETS_TOPIC,
    ) -> None:
        self._settings, self._client, self._timeout_s, self._clock, self._draws, self._topic = (
            settings,
            client,
            timeout_s,
            clock,
            draws,
            topic,
        )
        self._interval_s, self._stale_after_s = interval_s, stale_after_s
        self._thread: ThreadPoolExecutor | None = None
        self._work: Future[Sequence[ReleasingPartition]] | None = None
        self._at_s = inf

    def look(self, held: Mapping[ClaimKey, Claim], now_s: float) -> Sequence[ReleasingPartition]:
        """Return frames to send, those of an earlier look; *held* is what resets hold now, *now_s* the
        monotonic clock. Never waits.
        """
        frames = self._finished()
        now_unix_s = self._clock.now_ms() // 1000
        silent = {key: claim for key, claim in held.items() if self._is_silent(claim, now_unix_s)}
        if not silent or self._work is not None:
            self._at_s = inf
        elif self._at_s == inf:
            self._at_s = (
                now_s + self._draws.uniform(WAIT_LOW_INTERVALS, WAIT_HIGH_INTERVALS) * self._interval_s
            )
        elif now_s >= self._at_s:
            self._at_s = inf
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-resets")
            self._work = self._thread.submit(self._settle, silent, now_unix_s)
        return frames

    def close(self) -> None:
        """Let go of the thread; a look under way ends by its own deadline, and its frames are not sent."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_silent(self, claim: Claim, now_s: int) -> bool:
        return claim.heartbeat_at_s is not None and now_s - claim.heartbeat_at_s >= self._stale_after_s

    def _finished(self) -> Sequence[ReleasingPartition]:
        if self._work is None or not self._work.done():
            return ()
        work, self._work = self._work, None
        error = work.exception()
        if error is not None:
            logger.warning("a reset could not be settled: %(error)s", {"error": error})
            return ()
        return work.result()

    def _settle(self, silent: Mapping[ClaimKey, Claim], now_s: int) -> Sequence[ReleasingPartition]:
        offsets = GroupOffsets(self._settings, timeout_s=self._timeout_s, clock=self._clock)
        spots = offsets.spots(
            {key: None for key, claim in silent.items() if claim.current_offset is None}, None
        )
        return settle(
            ResetLog(self._settings, topic=self._topic, timeout_s=self._timeout_s, clock=self._clock),
            silent,
            client=self._client,
            now_s=now_s,
            is_silent=lambda claim: True,
            start=lambda key: spots[key].start,
        )
