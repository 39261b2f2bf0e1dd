"""Who owns which partition, as a fold of the coordination topic: the guarded view
(PROTOCOL.md#the-guarded-view).

Of the two views of that log this one decides: only the log's time counts, and owner and instance are checked
on every branch. It is sparse: a claim nobody ever held has no row.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TypeAlias, assert_never

import msgspec

from holdfast.core.claims.claim_keys import RESET_INSTANCE, pause_key
from holdfast.core.claims.frames import (
    STALE_AFTER_S,
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
)
from holdfast.core.engine.declared.processor import Emits
from holdfast.core.engine.state.rows import Rows

LIMIT_FENCED = 8


# -- rows


class AnomalyKind(Enum):
    """What a frame tried that the guarded view did not allow. The sender should take it as notice that it is
    not the owner.

    No StrEnum: its members equal mere texts, and rows of such types are looked at one by one
    (holdfast/core/engine/state/row_types.py).
    """

    FOREIGN_HEARTBEAT = "foreign-heartbeat"
    FENCED_HEARTBEAT = "fenced-heartbeat"
    FOREIGN_RELEASE = "foreign-release"
    LATE_RELEASE = "late-release"
    FOREIGN_PROPOSAL = "foreign-proposal"
    LATE_PROPOSAL = "late-proposal"
    BACKWARD_PROPOSAL = "backward-proposal"
    NEGATIVE_OFFSET = "negative-offset"
    BACKWARD_OFFSET = "backward-offset"


class Anomaly(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The last frame about a claim that was not allowed, and how many there were."""

    count: int
    kind: AnomalyKind
    at_s: int
    client_id: str
    instance_id: str


class Claim(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="c"):
    """A claim as the guarded view holds it. Group, topic and partition are its key.

    The identity stays after a release: then it is that of the last owner, and *heartbeat_at_s* is None.
    Exactly one of *heartbeat_at_s* and *released_at_s* is set. *epoch* counts owners and only grows: a
    fencing token for what the owner writes. *frame_time_s* is the time of the owner's clock in its last
    heartbeat. It decides nothing and shows skew.
    """

    client_id: str
    instance_id: str
    epoch: int
    heartbeat_at_s: int | None
    released_at_s: int | None
    current_offset: int | None
    proposed_offset: int | None
    frame_time_s: int
    fenced: tuple[str, ...] = ()
    anomaly: Anomaly | None = None


class Pause(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """A group that must not consume until *expires_at_s*, by order of the administrator named."""

    expires_at_s: int
    at_s: int
    client_id: str
    instance_id: str


GuardedRow: TypeAlias = Claim | Pause


# -- fold


def fold_guarded(rows: Rows[GuardedRow], frame: Frame, at_ms: int, stale_after_s: int | None = None) -> Emits:
    """Apply *frame* to the guarded view; *at_ms* is the partition's append time, -1 while it has none. Emits
    nothing.

    *stale_after_s* is twice the fleet's heartbeat interval, None for STALE_AFTER_S: every reader of one log
    must use the same.
    """
    if isinstance(frame, Heartbeat):
        key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
        claim: Claim | None = rows.get(key)  # type: ignore[assignment]
        offset = frame.current_offset
        if (
            claim is not None
            and claim.instance_id == frame.instance_id
            and claim.client_id == frame.client_id
            and claim.heartbeat_at_s is not None
            and offset >= (claim.current_offset or 0)
        ):
            # The owner renews: nearly every record there is, so it is built directly.
            proposed = claim.proposed_offset
            rows[key] = Claim(
                # equal to the frame's, and kept: a table's rows are many, and each new text is one more cold
                # place
                claim.client_id,
                claim.instance_id,
                claim.epoch,
                at_ms // 1000 if at_ms >= 0 else _log_time_s(claim, frame.time_s, at_ms),
                None,
                offset,
                None if proposed is None or offset >= proposed else proposed,
                frame.time_s,
                claim.fenced,
                claim.anomaly,
            )
            return None
        rows[key] = _heartbeat(claim, frame, _log_time_s(claim, frame.time_s, at_ms), stale_after_s)
        return None
    if isinstance(frame, ReleaseGroup):
        _pause(rows, frame, frame.time_s if at_ms < 0 else at_ms // 1000)
        return None
    key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
    claim = rows.get(key)  # type: ignore[assignment]
    after = _other(claim, frame, _log_time_s(claim, frame.time_s, at_ms), stale_after_s)
    if after is not claim and after is not None:
        rows[key] = after
    return None


def _log_time_s(claim: Claim | None, frame_time_s: int, at_ms: int) -> int:
    """Return the time that decides (PROTOCOL.md#time): the broker's, in whole seconds; without any, the
    claim's latest known.
    """
    if at_ms >= 0:
        return at_ms // 1000
    if claim is None:
        return frame_time_s
    known_s = claim.released_at_s if claim.heartbeat_at_s is None else claim.heartbeat_at_s
    return frame_time_s if known_s is None else max(frame_time_s, known_s)


def _heartbeat(claim: Claim | None, frame: Heartbeat, now_s: int, stale_after_s: int | None) -> Claim:
    """Return the claim after any heartbeat but the plain renewal."""
    offset = frame.current_offset if frame.current_offset >= 0 else None
    by_reset = frame.instance_id.startswith(RESET_INSTANCE)
    if (
        claim is not None
        and not _owns(claim, frame)
        and (by_reset or claim.instance_id.startswith(RESET_INSTANCE))
    ):
        # Nobody takes from a reset, and a reset takes by claiming only: its heartbeat that comes late must
        # not. Nor is what it gave back taken by a heartbeat: that would be of an owner from before, and undo
        # the reset.
        return _with_anomaly(claim, AnomalyKind.FOREIGN_HEARTBEAT, frame, now_s)
    if claim is None or not is_live(claim, now_s, stale_after_s):
        # Nobody holds it. Taking it by a heartbeat alone is how a Go client hands over, and how a stale owner
        # comes back.
        after = (
            _renewed(claim, frame, now_s)
            if claim is not None and _owns(claim, frame)
            else _taken(claim, frame, now_s)
        )
    elif _owns(claim, frame):
        after = _renewed(claim, frame, now_s)
    elif claim.client_id != frame.client_id:
        return _with_anomaly(claim, AnomalyKind.FOREIGN_HEARTBEAT, frame, now_s)
    elif frame.instance_id in claim.fenced:
        return _with_anomaly(claim, AnomalyKind.FENCED_HEARTBEAT, frame, now_s)
    else:
        # A new process of the owner's own client: the fast reclaim after a restart, which sends no
        # ClaimingPartition. It fences the instance it replaces, so that two processes under one client id
        # cannot take turns.
        after = _taken(claim, frame, now_s)
    if offset is None:
        return _with_anomaly(after, AnomalyKind.NEGATIVE_OFFSET, frame, now_s)
    if after.current_offset is not None and offset < after.current_offset:
        # The frame was under way for long, or was appended twice. The next owner must not do finished work
        # again.
        return _with_anomaly(after, AnomalyKind.BACKWARD_OFFSET, frame, now_s)
    proposed = after.proposed_offset
    return msgspec.structs.replace(
        after,
        current_offset=offset,
        proposed_offset=None if proposed is None or offset >= proposed else proposed,
    )


def _other(
    claim: Claim | None,
    frame: ClaimingPartition | ReleasingPartition | ClaimingMessages,
    now_s: int,
    stale_after_s: int | None,
) -> Claim | None:
    match frame:
        case ClaimingPartition():
            # Losing the race is the normal end of most claims, no anomaly.
            taken = claim is not None and (is_live(claim, now_s, stale_after_s) or is_reserved(claim))
            return claim if taken else _taken(claim, frame, now_s)
        case ReleasingPartition():
            return None if claim is None else _released(claim, frame, now_s)
        case ClaimingMessages():
            return None if claim is None else _proposed(claim, frame, now_s, stale_after_s)
        case _:
            assert_never(frame)


def _released(claim: Claim, frame: ReleasingPartition, now_s: int) -> Claim:
    if not (claim.client_id == frame.client_id and claim.instance_id == frame.instance_id):
        return _with_anomaly(claim, AnomalyKind.FOREIGN_RELEASE, frame, now_s)
    if claim.heartbeat_at_s is None:
        return _with_anomaly(claim, AnomalyKind.LATE_RELEASE, frame, now_s)
    # A stale owner may still release as long as nobody took over: it knows best where it stopped. Only a
    # reset goes back.
    anomaly = None
    if frame.current_offset < 0:
        anomaly = AnomalyKind.NEGATIVE_OFFSET
    elif (
        claim.current_offset is not None
        and frame.current_offset < claim.current_offset
        and not frame.instance_id.startswith(RESET_INSTANCE)
    ):
        anomaly = AnomalyKind.BACKWARD_OFFSET
    offset = frame.current_offset if anomaly is None else claim.current_offset
    after = msgspec.structs.replace(
        claim, heartbeat_at_s=None, released_at_s=now_s, current_offset=offset, proposed_offset=None
    )
    return after if anomaly is None else _with_anomaly(after, anomaly, frame, now_s)


def _proposed(claim: Claim, frame: ClaimingMessages, now_s: int, stale_after_s: int | None) -> Claim:
    """Step 3 of consuming at most once.

    It renews nothing: only a heartbeat does, and only that commits the batch (step 5).
    """
    if not (claim.client_id == frame.client_id and claim.instance_id == frame.instance_id):
        return _with_anomaly(claim, AnomalyKind.FOREIGN_PROPOSAL, frame, now_s)
    if not is_live(claim, now_s, stale_after_s):
        return _with_anomaly(claim, AnomalyKind.LATE_PROPOSAL, frame, now_s)
    floor = -1 if claim.current_offset is None else claim.current_offset
    if frame.proposed_current_offset <= floor:
        return _with_anomaly(claim, AnomalyKind.BACKWARD_PROPOSAL, frame, now_s)
    return msgspec.structs.replace(claim, proposed_offset=frame.proposed_current_offset)


def _owns(claim: Claim, frame: Heartbeat) -> bool:
    return (
        claim.client_id == frame.client_id
        and claim.instance_id == frame.instance_id
        and claim.heartbeat_at_s is not None
    )


def _renewed(claim: Claim, frame: Heartbeat, now_s: int) -> Claim:
    return msgspec.structs.replace(claim, heartbeat_at_s=now_s, released_at_s=None, frame_time_s=frame.time_s)


def _taken(claim: Claim | None, frame: Heartbeat | ClaimingPartition, now_s: int) -> Claim:
    """Return the claim with the sender as its new owner.

    The offset is the last owner's; a batch it announced is void.
    """
    if claim is None:
        return Claim(frame.client_id, frame.instance_id, 1, now_s, None, None, None, frame.time_s)
    fenced = tuple(each for each in claim.fenced if each != frame.instance_id)
    if claim.instance_id != frame.instance_id:
        fenced = (*fenced, claim.instance_id)[-LIMIT_FENCED:]
    return Claim(
        frame.client_id,
        frame.instance_id,
        claim.epoch + 1,
        now_s,
        None,
        claim.current_offset,
        None,
        frame.time_s,
        fenced,
        claim.anomaly,
    )


def _with_anomaly(claim: Claim, kind: AnomalyKind, frame: Frame, now_s: int) -> Claim:
    count = 1 if claim.anomaly is None else claim.anomaly.count + 1
    return msgspec.structs.replace(
        claim, anomaly=Anomaly(count, kind, now_s, frame.client_id, frame.instance_id)
    )


def _pause(rows: Rows[GuardedRow], frame: ReleaseGroup, now_s: int) -> None:
    """The latest ReleaseGroup counts, from any sender. One that has expired when it is appended lifts the
    pause.
    """
    key = pause_key(frame.group_id)
    if frame.msg_expire_time_s > now_s:
        rows[key] = Pause(frame.msg_expire_time_s, now_s, frame.client_id, frame.instance_id)
    elif rows.get(key) is not None:
        del rows[key]


# -- queries


class ClaimStatus(StrEnum):
    """How far a claim can be trusted at some moment."""

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
    """Return whether a reset of the group holds the claim: nobody can take it, however old it is, until it is
    released (PROTOCOL.md#pausing-and-resetting-a-group)."""
    return claim.heartbeat_at_s is not None and claim.instance_id.startswith(RESET_INSTANCE)


def claimed(claim: Claim | None, now_s: int, stale_after_s: int | None = None) -> bool:
    """Return whether somebody holds the claim at *now_s*; None is a claim nobody ever held."""
    return claim is not None and is_live(claim, now_s, stale_after_s)


def status(claim: Claim, now_s: int, stale_after_s: int | None = None) -> ClaimStatus:
    """Return how much *claim* can be trusted at *now_s* (PROTOCOL.md#status).

    A heartbeat from the future (the reader's clock is behind) counts as age 0. Exactly twice the interval is
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
