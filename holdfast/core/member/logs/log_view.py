"""One coordination partition as a member sees it: the rows of its group, and what time it is there."""

from __future__ import annotations

from math import inf
from typing import NamedTuple, cast

from holdfast.core.claims.claim_keys import claim_key, pause_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow, Pause
from holdfast.core.claims.compat import CompatClaim, fold_compat
from holdfast.core.claims.frames import Frame, ReleaseGroup
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.settings import MemberSettings

DRIFT = 0.005
"""The most by which the local clock may run faster than the broker's.

Differences add up over days, and an estimate must stay one from below.
"""


class FrameEffect(NamedTuple):
    """The effect of one frame on its claim."""

    key: str
    before: Claim | None
    after: Claim | None


class LogView:
    """The fold of one coordination partition, restricted to one group. *live* once all records that existed
    at the start have been read.

    The log's time is estimated from below: the append time of a record was past when it was seen. `known` is
    set once a frame of this instance was seen: from then on the estimate is late by at most that frame's way
    through the broker. Before, the log may have been silent for long, and the local clock is the better
    estimate: as it is where to be early costs a claim that the log refuses, less the skew it may have where
    to be early would break a pause.
    """

    __slots__ = (
        "_compat",
        "_group",
        "_interop",
        "_lead_at_s",
        "_lead_s",
        "_rows",
        "_skew_s",
        "_stale_after_s",
        "at_ms",
        "known",
        "live",
        "next_offset",
    )

    def __init__(self, settings: MemberSettings) -> None:
        self._group, self._interop = settings.group_id, settings.interop
        self._stale_after_s, self._skew_s = settings.stale_after_s, settings.skew_within_s
        self._rows: dict[str, GuardedRow] = {}
        self._compat: dict[str, CompatClaim] = {}
        self._lead_s, self._lead_at_s = -inf, 0.0
        self.at_ms = -1
        self.next_offset = 0
        self.live = self.known = False

    def arrive(self, offset: int, at_ms: int, now_s: float) -> bool:
        """Note that a record was read; False when it was before."""
        if offset < self.next_offset:
            return False
        self.next_offset = offset + 1
        if at_ms > self.at_ms:
            self.at_ms = at_ms
            self._lead_s = max(self._led_s(now_s), at_ms / 1000 - now_s)
            self._lead_at_s = now_s
        return True

    def pause(self, frame: ReleaseGroup) -> None:
        """Fold a pause of the group, or its end."""
        fold_guarded(cast(Rows[GuardedRow], self._rows), frame, self.at_ms, self._stale_after_s)

    def fold(self, frame: Frame) -> FrameEffect:
        """Fold a frame about a claim of the group."""
        assert not isinstance(frame, ReleaseGroup)
        key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
        before = self._rows.get(key)
        fold_guarded(cast(Rows[GuardedRow], self._rows), frame, self.at_ms, self._stale_after_s)
        if self._interop:
            fold_compat(cast(Rows[CompatClaim], self._compat), frame, self.at_ms)
        return FrameEffect(key, before, self._rows.get(key))  # type: ignore[arg-type]

    def row(self, place: TopicPartition) -> Claim | None:
        """Return the claim's row in the guarded view."""
        return self._rows.get(claim_key(self._group, *place))  # type: ignore[return-value]

    def claims(self) -> list[tuple[str, Claim]]:
        """Return all rows of claims with their keys."""
        return [(key, row) for key, row in self._rows.items() if isinstance(row, Claim)]

    def _led_s(self, now_s: float) -> float:
        """Return the least by which the log's clock is ahead of the monotonic one: an observation is worth
        less as time goes by.
        """
        return self._lead_s - DRIFT * (now_s - self._lead_at_s)

    def now_s(self, now_s: float, unix_s: float) -> float:
        """Return the log's time at *now_s*, when the local wall clock shows *unix_s*."""
        if self.at_ms < 0:
            return unix_s
        least_s = now_s + self._led_s(now_s)
        return least_s if self.known else max(least_s, unix_s)

    def paused_for_s(self, now_s: float, unix_s: float) -> float:
        """Return for how long the group is still paused by what this partition says; 0 or less when it is
        not.
        """
        pause = self._rows.get(pause_key(self._group))
        return (
            pause.expires_at_s - self.now_s(now_s, unix_s - self._skew_s) if isinstance(pause, Pause) else 0.0
        )

    def busy_for_s(self, place: TopicPartition, now_s: float, unix_s: float) -> float:
        """Return how long it takes at least until the claim may be taken; 0 or less if it may be now, inf if
        only a frame can free it.
        """
        row = self.row(place)
        wait_s = 0.0
        if row is not None and row.heartbeat_at_s is not None:
            if is_reserved(row):
                return inf
            wait_s = row.heartbeat_at_s + self._stale_after_s - self.now_s(now_s, unix_s)
        if self._interop:
            other = self._compat.get(claim_key(self._group, *place))
            if other is not None and other.last_heartbeat_s:
                # By the log's time: the own wall clock may be far off. A Go member's may be ahead a little,
                # and it works all the same.
                age_s = self.now_s(now_s, unix_s) - other.last_heartbeat_s
                if -self._skew_s <= age_s < self._stale_after_s:
                    wait_s = max(wait_s, self._stale_after_s - age_s, 0.001)
        return wait_s

    def is_live(self, row: Claim, now_s: float, unix_s: float) -> bool:
        """Return whether *row* has an owner now, as far as can be known."""
        return is_live(row, int(self.now_s(now_s, unix_s)), self._stale_after_s)

    def replaced(self, key: str, client_id: str, instance_id: str) -> bool:
        """Return whether the Go library's view names another owner.

        The two views can differ only with interop.
        """
        other = self._compat.get(key)
        return other is not None and (other.client_id, other.instance_id) != (client_id, instance_id)
