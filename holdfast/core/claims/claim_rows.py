"""The rows of the guarded view: the owner of each claim, and the paused groups
(PROTOCOL.md#the-guarded-view).
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec


class AnomalyKind(Enum):
    """A frame that the guarded view did not allow. The sender should take it as notice that it is not the
    owner.

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
    heartbeat. It decides nothing and shows skew. *topic_mark* stands for the id of the topic that
    *current_offset* is of (`topic_mark` of frames.py); None where the owner did not say. *former_marks* are
    those of the last topics of that name, which were deleted. *batch_begin* is where *current_offset* was
    before the last batch that was committed at most once: as far as there its owner may give back what it did
    not hand out.
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
    topic_mark: int | None = None
    former_marks: tuple[int, ...] = ()
    batch_begin: int | None = None


def is_of_another(claim: Claim, topic_mark: int | None) -> bool:
    """Return whether the offset of *claim* is known to be of another topic than the one with this mark (None:
    not known).

    >>> claim = Claim("c", "i", 1, 100, None, 40, None, 100, topic_mark=7)
    >>> [is_of_another(claim, mark) for mark in (7, 8, None)]
    [False, True, False]
    """
    return (
        topic_mark is not None
        and claim.current_offset is not None
        and claim.topic_mark is not None
        and topic_mark != claim.topic_mark
    )


class Pause(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """A group that must not consume until *expires_at_s*, by order of the administrator named."""

    expires_at_s: int
    at_s: int
    client_id: str
    instance_id: str


GuardedRow: TypeAlias = Claim | Pause
