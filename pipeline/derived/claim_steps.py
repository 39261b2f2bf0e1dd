"""The coordination topic, frame by frame, with each frame's effect on the guarded view: for the tables about
claims.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, cast

from holdfast.core.claims import frames
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.engine.state.rows import Rows

ClaimFrame: TypeAlias = Heartbeat | ClaimingPartition | ReleasingPartition | ClaimingMessages
NumberedFrame: TypeAlias = tuple[frames.Frame, int]
"""A frame, and the offset at which it lies."""


def decode_numbered(value: bytes | None, offset: int) -> NumberedFrame:
    """Return the frame in a record of the coordination topic; FrameError for none."""
    return frames.decode(value), offset


class ClaimStep(NamedTuple):
    """A claim before and after a frame about it."""

    key: str
    frame: ClaimFrame
    offset: int
    before: Claim | None
    after: Claim

    @property
    def is_taken(self) -> bool:
        """Return whether the frame made its sender the owner."""
        return self.before is None or self.before.epoch != self.after.epoch

    @property
    def is_released(self) -> bool:
        """Return whether the frame gave the claim back."""
        return (
            self.after.heartbeat_at_s is None
            and self.before is not None
            and self.before.heartbeat_at_s is not None
        )

    @property
    def now_s(self) -> int:
        """Return the log time of a frame that took, renewed or gave back the claim."""
        held_s, released_s = self.after.heartbeat_at_s, self.after.released_at_s
        return cast(int, released_s if held_s is None else held_s)


def step(rows: Rows[Any], event: NumberedFrame, at_ms: int, stale_after_s: int) -> ClaimStep | None:
    """Fold a frame into the guarded view; return what became of its claim, None where it has none or the
    frame is a pause.
    """
    frame, offset = event
    if isinstance(frame, ReleaseGroup):
        fold_guarded(rows, frame, at_ms, stale_after_s)
        return None
    key = claim_key(frame.group_id, frame.topic, frame.partition)
    before: Claim | None = rows.get(key)
    fold_guarded(rows, frame, at_ms, stale_after_s)
    after: Claim | None = rows.get(key)
    return None if after is None else ClaimStep(key, frame, offset, before, after)


def has_lapsed(claim: Claim, now_s: int, stale_after_s: int) -> bool:
    """Return whether a claim without a release was free at *now_s*, since its owner had fallen silent."""
    return (
        claim.heartbeat_at_s is not None
        and not is_live(claim, now_s, stale_after_s)
        and not is_reserved(claim)
    )
