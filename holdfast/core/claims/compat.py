"""The compat view of the coordination topic (PROTOCOL.md#the-compat-view).

It holds what the Go library holds, byte for byte, to show where it would part from the guarded view in a
mixed fleet. It decides nothing, and is as sparse.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

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


class CompatClaim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The Go library's PartitionClaim, field by field; 0 and "" are its words for "none"."""

    instance_id: str = ""
    client_id: str = ""
    group_id: str = ""
    last_release_s: int = 0
    last_heartbeat_s: int = 0
    current_offset: int = 0


UNCLAIMED = CompatClaim()


def fold_compat(rows: Rows[CompatClaim], frame: Frame, at_ms: int) -> Emits:
    """Apply *frame* as the Go library does, faults included. *at_ms* stands for the clock of a reader that
    keeps up with the log.

    ReleaseGroup changes nothing: the library has not known that frame since 2017.
    """
    if isinstance(frame, ReleaseGroup | ClaimingMessages):
        return None
    key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
    match frame:
        case Heartbeat():
            rows[key] = CompatClaim(
                frame.instance_id, frame.client_id, frame.group_id, 0, frame.time_s, frame.current_offset
            )
        case ClaimingPartition():
            claim = rows.get(key) or UNCLAIMED
            if not _compat_live(claim, at_ms // 1000 if at_ms >= 0 else frame.time_s):
                rows[key] = CompatClaim(
                    frame.instance_id, frame.client_id, frame.group_id, 0, frame.time_s, claim.current_offset
                )
        case ReleasingPartition():
            claim = rows.get(key) or UNCLAIMED
            owner = (claim.instance_id, claim.client_id, claim.group_id)
            if owner == (frame.instance_id, frame.client_id, frame.group_id):
                rows[key] = CompatClaim(*owner, frame.time_s, 0, frame.current_offset)
        case _:
            assert_never(frame)
    return None


def _compat_live(claim: CompatClaim, now_s: int) -> bool:
    """`PartitionClaim.claimed`: a heartbeat from the future is no claim."""
    return claim.last_heartbeat_s != 0 and 0 <= now_s - claim.last_heartbeat_s < STALE_AFTER_S
