"""The table `claims.intervals`: who held which claim from when to when, and why it ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, Literal

import msgspec

from holdfast.config import Settings
from holdfast.core.claims.claim_keys import parse_claim_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import Heartbeat
from holdfast.core.claims.staleness import is_reserved
from holdfast.core.engine.declared.processor import Emit, Emits, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.pipeline.derived.claim_steps import ClaimStep, NumberedFrame, decode_numbered, has_lapsed, step
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

INTERVALS = "claims.intervals"
OPEN = "open"
BeganBy = Literal["claim", "heartbeat", "return"]
EndedBy = Literal["released", "expired", "replaced"]


class OpenInterval(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of an interval that has not ended."""

    from_s: int
    by: BeganBy
    offset: int | None
    began_at: int


class ClaimInterval(msgspec.Struct, frozen=True):
    """A time in which one owner held a claim, by the guarded view.

    From *held_from* on and before *held_until*; for an interval that has not ended (*ended_by* None) that is
    where it ends without a further sign of life, and None while a reset holds it. *offset_from* and
    *offset_to* are the claim's offset then, *began_at* and *ended_at* the offsets of the frames that show it.
    """

    group_id: str
    topic: str
    topic_partition: int
    client_id: str
    instance_id: str
    epoch: int
    began_by: BeganBy
    held_from: datetime
    held_until: datetime | None
    ended_by: EndedBy | None
    last_sign: datetime | None
    offset_from: int | None
    offset_to: int | None
    began_at: int
    ended_at: int | None


def fold_intervals(rows: Rows[Any], event: NumberedFrame, at_ms: int, stale_after_s: int) -> Emits:
    """Fold a frame into the guarded view; emit the interval that it ends, and note the one that it begins."""
    found = step(rows, event, at_ms, stale_after_s)
    if found is None:
        return None
    before, after = found.before, found.after
    if found.is_taken:
        return _taken(rows, found, stale_after_s)
    assert before is not None, "a claim without a row is there since it was taken"
    if found.is_released:
        return _released(rows, found, stale_after_s)
    if (
        after.heartbeat_at_s is not None
        and has_lapsed(before, after.heartbeat_at_s, stale_after_s)
        and after.heartbeat_at_s != before.heartbeat_at_s
    ):
        return _returned(rows, found, stale_after_s)
    return None


def _taken(rows: Rows[Any], found: ClaimStep, stale_after_s: int) -> Iterator[Emit]:
    before = found.before
    if before is not None and before.heartbeat_at_s is not None:
        lapsed = has_lapsed(before, found.now_s, stale_after_s)
        yield _ended(rows, found, before, "expired" if lapsed else "replaced", stale_after_s)
    _begin(rows, found, "heartbeat" if isinstance(found.frame, Heartbeat) else "claim")


def _released(rows: Rows[Any], found: ClaimStep, stale_after_s: int) -> Iterator[Emit]:
    before = found.before
    assert before is not None
    if has_lapsed(before, found.now_s, stale_after_s):
        yield _ended(rows, found, before, "expired", stale_after_s)
    else:
        yield _ended(rows, found, before, "released", stale_after_s)
    del rows.table(OPEN)[found.key]


def _returned(rows: Rows[Any], found: ClaimStep, stale_after_s: int) -> Iterator[Emit]:
    """An owner that had fallen silent sends a heartbeat again before another took the claim."""
    assert found.before is not None
    yield _ended(rows, found, found.before, "expired", stale_after_s)
    _begin(rows, found, "return")


def _begin(rows: Rows[Any], found: ClaimStep, by: BeganBy) -> None:
    offset = None if found.before is None else found.before.current_offset
    rows.table(OPEN)[found.key] = OpenInterval(found.now_s, by, offset, found.offset)


def _ended(rows: Rows[Any], found: ClaimStep, held: Claim, why: EndedBy, stale_after_s: int) -> Emit:
    lasted_s = held.heartbeat_at_s
    assert lasted_s is not None
    until_s = lasted_s + stale_after_s if why == "expired" else found.now_s
    told = found.after if why == "released" else held
    begun: OpenInterval = rows.table(OPEN)[found.key]
    return row_over(_interval(found.key, begun, held, until_s, why, told.current_offset, found.offset))


def _interval(
    key: str,
    begun: OpenInterval,
    held: Claim,
    until_s: int | None,
    why: EndedBy | None,
    offset_to: int | None,
    ended_at: int | None,
) -> ClaimInterval:
    of = parse_claim_key(key)
    return ClaimInterval(
        group_id=of.group_id,
        topic=of.topic,
        topic_partition=of.partition,
        client_id=held.client_id,
        instance_id=held.instance_id,
        epoch=held.epoch,
        began_by=begun.by,
        held_from=time_at(begun.from_s * 1000),
        held_until=None if until_s is None else time_at(until_s * 1000),
        ended_by=why,
        last_sign=None if held.heartbeat_at_s is None else time_at(held.heartbeat_at_s * 1000),
        offset_from=begun.offset,
        offset_to=offset_to,
        began_at=begun.began_at,
        ended_at=ended_at,
    )


def _current(stored: StoredRows, stale_after_s: int) -> Iterator[ClaimInterval]:
    """Yield the intervals that have not ended."""
    for key, begun in stored.items(OPEN):
        claim: Claim = stored.get("", key)
        assert claim.heartbeat_at_s is not None, "a claim that was given back has no open interval"
        until_s = None if is_reserved(claim) else claim.heartbeat_at_s + stale_after_s
        yield _interval(key, begun, claim, until_s, None, claim.current_offset, None)


def claim_intervals(settings: Settings) -> DerivedTable:
    """Return the table of claims, by the coordination topic and the fleet's heartbeat interval."""
    stale_after_s = settings.claim_stale_after_s
    processor = Processor(
        name="claims-intervals",
        source=settings.coordination_topic,
        decode=decode_numbered,
        inputs=("value", "offset"),
        fold=partial(fold_intervals, stale_after_s=stale_after_s),
        row=GuardedRow,
        tables={OPEN: OpenInterval},
        emits=(ROWS,),
    )
    return DerivedTable(
        name=INTERVALS,
        row=ClaimInterval,
        processor=processor,
        current=partial(_current, stale_after_s=stale_after_s),
    )
