"""The owner of each partition, as a fold of the coordination topic: the guarded view
(PROTOCOL.md#the-guarded-view).

Of the two views of that log this one decides: only the log's time counts, and owner and instance are checked
on every branch. It is sparse: a claim that was never taken has no row.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from holdfast.core.claims.claim_keys import RESET_INSTANCE, pause_key
from holdfast.core.claims.claim_rows import Anomaly, AnomalyKind, Claim, GuardedRow, Pause
from holdfast.core.claims.frames import (
    UNMARKED,
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    mark_in,
)
from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.engine.declared.processor import Emits
from holdfast.core.engine.state.rows import Rows

LIMIT_FENCED = 8
LIMIT_FORMER_MARKS = 4


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
            and frame.version == (claim.topic_mark or UNMARKED)
        ):
            # The owner renews: nearly every record there is, so it is built directly.
            proposed = claim.proposed_offset
            rows[key] = Claim(
                # equal to the frame's, and kept: a table has many rows, and each new text is one more cold
                # address
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
                claim.topic_mark,
                claim.former_marks,
                claim.batch_begin
                if offset == claim.current_offset
                else claim.current_offset
                if proposed is not None and offset >= proposed
                else None,
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
        # A reset's claim cannot be taken, and a reset takes by claiming only: its late heartbeat must not.
        # Nor does a heartbeat take back a partition that a reset released: it would be of an owner from
        # before, and undo the reset.
        return _with_anomaly(claim, AnomalyKind.FOREIGN_HEARTBEAT, frame, now_s)
    if claim is None or not is_live(claim, now_s, stale_after_s):
        # Unowned. Taking it by a heartbeat alone is how a Go client hands over, and how a stale owner comes
        # back.
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
    if _of_another_topic(after, frame):
        # Only the owner has asked for the topic's id: a member that takes the claim by a heartbeat takes it
        # with the old one. Nor does a frame that comes late bring a topic back that was deleted.
        owned = claim is not None and _owns(claim, frame)
        return _begun(after, offset, frame) if owned and not _is_former(after, frame) else after
    if after.current_offset is not None and offset < after.current_offset:
        # The frame was under way for long, or was appended twice. The next owner must not do finished work
        # again.
        return _with_anomaly(after, AnomalyKind.BACKWARD_OFFSET, frame, now_s)
    proposed, begin = after.proposed_offset, after.batch_begin
    if offset != after.current_offset:
        begin = after.current_offset if proposed is not None and offset >= proposed else None
    return msgspec.structs.replace(
        after,
        current_offset=offset,
        batch_begin=begin,
        proposed_offset=None if proposed is None or offset >= proposed else proposed,
        topic_mark=_mark_after(after, frame, offset),
    )


def _of_another_topic(claim: Claim, frame: Heartbeat | ReleasingPartition | ClaimingMessages) -> bool:
    """Return whether the offset in *frame* is known to be of another topic than the claim's, so that neither
    says anything about the other.
    """
    mark = mark_in(frame)
    return mark is not None and (
        mark in claim.former_marks
        or (claim.current_offset is not None and claim.topic_mark is not None and mark != claim.topic_mark)
    )


def _is_former(claim: Claim, frame: Heartbeat | ReleasingPartition) -> bool:
    return frame.version in claim.former_marks


def _begun(claim: Claim, offset: int, frame: Heartbeat | ReleasingPartition) -> Claim:
    """Return *claim* at *offset* of the topic that was made again; a batch of the old one is void."""
    former = claim.former_marks
    if claim.topic_mark is not None:
        former = (*former, claim.topic_mark)[-LIMIT_FORMER_MARKS:]
    return msgspec.structs.replace(
        claim,
        current_offset=offset,
        proposed_offset=None,
        topic_mark=mark_in(frame),
        former_marks=former,
        batch_begin=None,
    )


def _mark_after(claim: Claim, frame: Heartbeat | ReleasingPartition, offset: int) -> int | None:
    """Return the mark of the topic that *offset*, the claim's current one, belongs to: the frame's. A frame
    without a mark moves an offset of an unknown topic, but one that moves nothing changes nothing.
    """
    mark = mark_in(frame)
    return claim.topic_mark if mark is None and offset == claim.current_offset else mark


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
    # A stale owner may still release while the claim has no new owner: it knows best where it stopped. Only a
    # reset goes back, or an owner that returns the undelivered part of its last batch (at most once).
    anomaly = None
    if frame.current_offset < 0:
        anomaly = AnomalyKind.NEGATIVE_OFFSET
    elif (
        not _of_another_topic(claim, frame)
        and claim.current_offset is not None
        and frame.current_offset < claim.current_offset
        and not (
            claim.batch_begin is not None
            and claim.batch_begin <= frame.current_offset
            and frame.version != UNMARKED  # which moves nothing, whatever it names
        )
        and not frame.instance_id.startswith(RESET_INSTANCE)
    ):
        anomaly = AnomalyKind.BACKWARD_OFFSET
    after = msgspec.structs.replace(
        claim, heartbeat_at_s=None, released_at_s=now_s, proposed_offset=None, batch_begin=None
    )
    if anomaly is not None:
        return _with_anomaly(after, anomaly, frame, now_s)
    offset = frame.current_offset
    if _of_another_topic(claim, frame):
        return after if _is_former(claim, frame) else _begun(after, offset, frame)
    return msgspec.structs.replace(after, current_offset=offset, topic_mark=_mark_after(claim, frame, offset))


def _proposed(claim: Claim, frame: ClaimingMessages, now_s: int, stale_after_s: int | None) -> Claim:
    """Step 3 of consuming at most once.

    It renews nothing: only a heartbeat does, and only that commits the batch (step 5).
    """
    if not (claim.client_id == frame.client_id and claim.instance_id == frame.instance_id):
        return _with_anomaly(claim, AnomalyKind.FOREIGN_PROPOSAL, frame, now_s)
    if not is_live(claim, now_s, stale_after_s):
        return _with_anomaly(claim, AnomalyKind.LATE_PROPOSAL, frame, now_s)
    floor = -1 if claim.current_offset is None else claim.current_offset
    if _of_another_topic(claim, frame) or frame.proposed_current_offset <= floor:
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
        claim.topic_mark,
        claim.former_marks,
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
