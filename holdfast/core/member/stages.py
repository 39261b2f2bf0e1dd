"""How far a claim has come: a state for each stage, with what is known in that stage and nothing else.

What happens when is in PROTOCOL.md#the-life-of-a-claim.

    Claiming, Reclaiming -> Won -> Active -> Draining -> Releasing
                             |        `------------------^
                             `-> Declining

A claim whose log shows another owner is forgotten from any stage.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, TypeAlias

import msgspec

from holdfast.core.member.actions import ReleaseReason
from holdfast.core.member.tracking import Tracker
from holdfast.core.member.velocity import Health

COOLING = frozenset(
    {
        ReleaseReason.EXPIRED,
        ReleaseReason.HANDLER_TIMEOUT,
        ReleaseReason.WEDGED,
        ReleaseReason.BEHIND,
        ReleaseReason.FETCH_FAILED,
        ReleaseReason.UNREADABLE,
    }
)
"""Releases after which this member lets others go first for a while (`COOLDOWN_INTERVALS`)."""


class ClaimWork:
    """What was handed out and done under a claim since it started.

    *handed* is how far batches were handed out. *message_s* is when the last message was. *work_s* is when
    the user began with what is in hand, or when messages began to wait (*waits*): never later than the offset
    *checked*, where the last check found it, moved on.
    """

    __slots__ = (
        "checked",
        "flush_to",
        "handed",
        "health",
        "latest",
        "message_s",
        "tracker",
        "waits",
        "warned",
        "work_s",
    )

    def __init__(self, offset: int, latest: int, now_s: float) -> None:
        self.tracker, self.health, self.latest = Tracker(offset), Health(), latest
        self.handed, self.checked = offset, -1
        self.message_s = self.work_s = now_s
        self.waits = self.warned = False
        self.flush_to: int | None = None


class Proposed(msgspec.Struct, frozen=True):
    """At most once: a batch that ends before *end* was announced. The log is to show it until *until_s*."""

    end: int
    until_s: float


class Committing(msgspec.Struct, frozen=True):
    """At most once: the announcement held, and the batch's commit is under way."""

    end: int
    until_s: float


Batch: TypeAlias = Proposed | Committing


class _Unstarted(msgspec.Struct, frozen=True):
    """Nothing is handed out yet. *until_s* is when patience with the stage ends."""

    until_s: float
    work: ClassVar[None] = None
    batch: ClassVar[None] = None
    stopped: ClassVar[bool] = True
    reason: ClassVar[None] = None
    cooldown: ClassVar[bool] = False
    releases: ClassVar[int] = 0


class Claiming(_Unstarted, frozen=True):
    """A ClaimingPartition was sent, and the log does not show it yet."""

    name: ClassVar[str] = "claiming"


class Reclaiming(_Unstarted, frozen=True):
    """A heartbeat was sent for what another process of this client held."""

    name: ClassVar[str] = "reclaiming"


class Won(_Unstarted, frozen=True):
    """The log names us the owner; where to start is being looked up."""

    name: ClassVar[str] = "won"


class Active(msgspec.Struct, frozen=True):
    """Messages are handed out. *batch* is the one under way, at most once only."""

    work: ClaimWork
    batch: Batch | None = None
    name: ClassVar[str] = "active"
    reason: ClassVar[None] = None
    cooldown: ClassVar[bool] = False
    releases: ClassVar[int] = 0
    stopped: ClassVar[bool] = False

    @property
    def until_s(self) -> float:
        """Return when patience with the batch under way ends."""
        return inf if self.batch is None else self.batch.until_s


class Draining(msgspec.Struct, frozen=True, kw_only=True):
    """The claim is to be given back, and what is in flight is waited for until *until_s*: until
    *drain_until_s*, or until the lease ends if that is before. *stopped*: nothing more is handed out.
    """

    work: ClaimWork
    batch: Committing | None
    reason: ReleaseReason
    drain_until_s: float = inf
    until_s: float = inf
    stopped: bool = False
    name: ClassVar[str] = "draining"
    releases: ClassVar[int] = 0

    @property
    def cooldown(self) -> bool:
        """Return whether others go first once it is given back."""
        return self.reason in COOLING


class Releasing(msgspec.Struct, frozen=True, kw_only=True):
    """The log was told *releases* times that the claim is free, and does not show it yet. *batch* was under
    way when it was given back.
    """

    work: ClaimWork
    batch: Batch | None
    reason: ReleaseReason
    cooldown: bool
    until_s: float
    releases: int = 0
    name: ClassVar[str] = "releasing"
    stopped: ClassVar[bool] = True

    @property
    def offset(self) -> int:
        """Return where the next owner starts.

        A batch whose commit is not seen yet was not handed out and will not be: if the log has not taken it,
        it is the next owner's.
        """
        return self.work.tracker.current


class Declining(msgspec.Struct, frozen=True, kw_only=True):
    """The same for a claim that was never started; the next owner starts at *offset*."""

    offset: int
    reason: ReleaseReason
    cooldown: bool
    until_s: float
    releases: int = 0
    name: ClassVar[str] = "releasing"
    work: ClassVar[None] = None
    batch: ClassVar[None] = None
    stopped: ClassVar[bool] = True


ClaimStage: TypeAlias = Claiming | Reclaiming | Won | Active | Draining | Releasing | Declining
ATTEMPTS = (Claiming, Reclaiming)
GIVEN_BACK = (Releasing, Declining)
WORKING = (Active, Draining)
"""The stages in which what is done can be committed."""
