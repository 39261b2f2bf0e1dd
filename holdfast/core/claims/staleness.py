"""A claim's status at some moment: live, stale, reserved by a reset, paused (PROTOCOL.md#status)."""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.claims.claim_keys import RESET_INSTANCE
from holdfast.core.claims.claim_rows import Claim, Pause
from holdfast.core.claims.frames import STALE_AFTER_S


class ClaimStatus(StrEnum):
    """The degree to which a claim can be trusted at some moment."""

    FRESH = "fresh"
    UNKNOWN = "unknown"
    STALE = "stale"
    RELEASED = "released"


def is_live(claim: Claim, now_s: int, stale_after_s: int | None = None) -> bool:
    """Return whether the claim has an owner at *now_s*. At the log's time this is what the fold decides
    by.
    """
    heartbeat_at_s = claim.heartbeat_at_s
    return heartbeat_at_s is not None and now_s - heartbeat_at_s < (
        STALE_AFTER_S if stale_after_s is None else stale_after_s
    )


def is_reserved(claim: Claim) -> bool:
    """Return whether a reset of the group holds the claim: it cannot be taken, however old it is, until it is
    released (PROTOCOL.md#pausing-and-resetting-a-group).
    """
    return claim.heartbeat_at_s is not None and claim.instance_id.startswith(RESET_INSTANCE)


def claimed(claim: Claim | None, now_s: int, stale_after_s: int | None = None) -> bool:
    """Return whether the claim has an owner at *now_s*; None is a claim that was never taken."""
    return claim is not None and is_live(claim, now_s, stale_after_s)


def status(claim: Claim, now_s: int, stale_after_s: int | None = None) -> ClaimStatus:
    """Return how much *claim* can be trusted at *now_s* (PROTOCOL.md#status).

    A heartbeat from the future (the reader's clock is slow) counts as age 0. Exactly twice the interval is
    stale, as in the Go code; the upstream document says "more than twice".

    >>> claim = Claim("c", "i", 1, heartbeat_at_s=100, released_at_s=None, current_offset=0, proposed_offset=None, frame_time_s=100)
    >>> [status(claim, 100 + age_s).value for age_s in (-5, 59, 60, 119, 120)]
    ['fresh', 'fresh', 'unknown', 'unknown', 'stale']
    """  # noqa: E501
    if claim.heartbeat_at_s is None:
        return ClaimStatus.RELEASED
    age_s = now_s - claim.heartbeat_at_s
    if stale_after_s is None:
        stale_after_s = STALE_AFTER_S
    if age_s < (stale_after_s + 1) // 2:
        return ClaimStatus.FRESH
    return ClaimStatus.UNKNOWN if age_s < stale_after_s else ClaimStatus.STALE


def skew_s(claim: Claim) -> int | None:
    """Return how far the owner's clock was ahead of the log at its last heartbeat, in seconds; None once
    released.

    A second behind is normal: the frame took its time to the broker.
    """
    return None if claim.heartbeat_at_s is None else claim.frame_time_s - claim.heartbeat_at_s


def is_paused(pause: Pause | None, now_s: int) -> bool:
    """Return whether the group of *pause* must not consume at *now_s*; the second of expiry is free again."""
    return pause is not None and now_s < pause.expires_at_s
