"""The table `claims.takeovers`: changes of a claim's owner, with cause, duration, and the offset of the new
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, Literal

import msgspec

from holdfast.config import Settings
from holdfast.core.claims.claim_keys import RESET_INSTANCE, parse_claim_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import Heartbeat
from holdfast.core.engine.declared.processor import Emit, Emits, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.pipeline.derived.claim_steps import ClaimStep, NumberedFrame, decode_numbered, has_lapsed, step
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

TAKEOVERS = "claims.takeovers"
PENDING = "pending"
Cause = Literal["released", "expired", "replaced", "reset"]


class PendingTakeover(msgspec.Struct, frozen=True, array_like=True):
    """A takeover whose new owner has not sent an offset yet."""

    cause: Cause
    from_client: str
    from_instance: str
    to_client: str
    to_instance: str
    epoch: int
    last_sign_s: int
    taken_s: int
    offset_before: int | None
    announced: int | None
    taken_at: int


class ClaimTakeover(msgspec.Struct, frozen=True):
    """A claim that went from one owner to the next. *duration_s* lies between *last_sign* of the former owner
    (its last heartbeat, or its release) and *taken*.

    *offset_before* is the former owner's offset, *announced_offset* the end of a batch that it had announced
    and not committed; *offset_after* is the first offset that the new owner sent, None while or if it sent
    none, and *offset_gap* the difference. *taken_at* is the offset of the frame.
    """

    group_id: str
    topic: str
    topic_partition: int
    cause: Cause
    from_client: str
    from_instance: str
    to_client: str
    to_instance: str
    epoch: int
    last_sign: datetime
    taken: datetime
    duration_s: int
    offset_before: int | None
    announced_offset: int | None
    offset_after: int | None
    offset_gap: int | None
    taken_at: int


def fold_takeovers(rows: Rows[Any], event: NumberedFrame, at_ms: int, stale_after_s: int) -> Emits:
    """Fold a frame into the guarded view; emit the takeover that it completes, and note the one that it
    begins.
    """
    found = step(rows, event, at_ms, stale_after_s)
    if found is None:
        return None
    if found.is_taken:
        return _taken(rows, found, stale_after_s)
    pending: PendingTakeover | None = rows.table(PENDING).get(found.key)
    if pending is None:
        return None
    if found.is_released or _told(found) is not None:
        return _completed(rows, found, pending)
    return None


def _told(found: ClaimStep) -> int | None:
    """Return the offset in the owner's own heartbeat."""
    frame, owner = found.frame, found.after
    if not isinstance(frame, Heartbeat) or frame.current_offset < 0:
        return None
    by_owner = (frame.client_id, frame.instance_id) == (owner.client_id, owner.instance_id)
    return frame.current_offset if by_owner else None


def _taken(rows: Rows[Any], found: ClaimStep, stale_after_s: int) -> Iterator[Emit]:
    unfinished: PendingTakeover | None = rows.table(PENDING).get(found.key)
    if unfinished is not None:
        yield row_over(_takeover(found.key, unfinished, None))
        del rows.table(PENDING)[found.key]
    if found.before is None:
        return
    pending, told = _begun(found, found.before, stale_after_s), _told(found)
    if told is None:
        rows.table(PENDING)[found.key] = pending
    else:
        yield row_over(_takeover(found.key, pending, told))


def _completed(rows: Rows[Any], found: ClaimStep, pending: PendingTakeover) -> Iterator[Emit]:
    yield row_over(_takeover(found.key, pending, _told(found)))
    del rows.table(PENDING)[found.key]


def _begun(found: ClaimStep, before: Claim, stale_after_s: int) -> PendingTakeover:
    after, last_s = (
        found.after,
        before.released_at_s if before.heartbeat_at_s is None else before.heartbeat_at_s,
    )
    assert last_s is not None
    return PendingTakeover(
        _cause(before, after, found.now_s, stale_after_s),
        before.client_id,
        before.instance_id,
        after.client_id,
        after.instance_id,
        after.epoch,
        last_s,
        found.now_s,
        before.current_offset,
        before.proposed_offset,
        found.offset,
    )


def _cause(before: Claim, after: Claim, now_s: int, stale_after_s: int) -> Cause:
    if RESET_INSTANCE in (
        before.instance_id[: len(RESET_INSTANCE)],
        after.instance_id[: len(RESET_INSTANCE)],
    ):
        return "reset"
    if before.heartbeat_at_s is None:
        return "released"
    return "expired" if has_lapsed(before, now_s, stale_after_s) else "replaced"


def _takeover(key: str, of: PendingTakeover, told: int | None) -> ClaimTakeover:
    claim = parse_claim_key(key)
    return ClaimTakeover(
        group_id=claim.group_id,
        topic=claim.topic,
        topic_partition=claim.partition,
        cause=of.cause,
        from_client=of.from_client,
        from_instance=of.from_instance,
        to_client=of.to_client,
        to_instance=of.to_instance,
        epoch=of.epoch,
        last_sign=time_at(of.last_sign_s * 1000),
        taken=time_at(of.taken_s * 1000),
        duration_s=of.taken_s - of.last_sign_s,
        offset_before=of.offset_before,
        announced_offset=of.announced,
        offset_after=told,
        offset_gap=None if told is None or of.offset_before is None else told - of.offset_before,
        taken_at=of.taken_at,
    )


def _current(stored: StoredRows) -> Iterator[ClaimTakeover]:
    """Yield the takeovers whose new owner has not sent an offset yet."""
    for key, pending in stored.items(PENDING):
        yield _takeover(key, pending, None)


def claim_takeovers(settings: Settings) -> DerivedTable:
    """Return the table of takeovers, by the coordination topic and the fleet's heartbeat interval."""
    stale_after_s = settings.claim_stale_after_s
    processor = Processor(
        name="claims-takeovers",
        source=settings.coordination_topic,
        decode=decode_numbered,
        inputs=("value", "offset"),
        fold=partial(fold_takeovers, stale_after_s=stale_after_s),
        row=GuardedRow,
        tables={PENDING: PendingTakeover},
        emits=(ROWS,),
    )
    return DerivedTable(
        name=TAKEOVERS,
        row=ClaimTakeover,
        processor=processor,
        current=_current,
    )
