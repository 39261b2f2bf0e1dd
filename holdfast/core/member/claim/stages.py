"""The stages of a claim: a state for each, with the facts known in that stage and nothing else.

What happens when is in PROTOCOL.md#the-life-of-a-claim.

    Claiming, Reclaiming -> Won -> Active -> Draining -> Releasing
                             |        `------------------^
                             `-> Declining

A claim whose log shows another owner is forgotten from any stage.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, TypeAlias, assert_never

import msgspec

from holdfast.core.member.actions import ReleaseReason
from holdfast.core.member.claim.tracking import Tracker
from holdfast.core.member.claim.velocity import Health

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
    """The messages handed out and done under a claim since it started.

    *handed* is the offset up to which batches were handed out, *left* the first committed message that never
    will be (at most once), None until that is known. *message_s* is when the last message was. *work_s* is
    when the user began with the message in hand, or when messages began to wait (*waits*): never later than
    the
    """

    __slots__ = (
        "checked",
        "handed",
        "health",
        "latest",
        "left",
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
        self.left: int | None = None
        self.waits = self.warned = False


class Proposed(msgspec.Struct, frozen=True):
    """At most once: a batch that ends before *end*, fetched at *since_s*, was announced. The log is to show
    it until *until_s*; *shown*, it waits to be committed.
    """

    end: int
    until_s: float
    since_s: float
    shown: bool = False


class Committing(msgspec.Struct, frozen=True):
    """At most once: the announcement held, and the batch's commit is under way."""

    end: int
    until_s: float


PendingBatch: TypeAlias = Proposed | Committing


class Claiming(msgspec.Struct, frozen=True):
    """A ClaimingPartition was sent, and the log does not show it yet. *until_s* is when patience with this
    ends, as in every stage.
    """

    until_s: float
    name: ClassVar[str] = "claiming"


class Reclaiming(msgspec.Struct, frozen=True):
    """A heartbeat was sent for what another process of this client held."""

    until_s: float
    name: ClassVar[str] = "reclaiming"


class Won(msgspec.Struct, frozen=True):
    """The log names us the owner; where to start is being looked up."""

    until_s: float
    name: ClassVar[str] = "won"


class Active(msgspec.Struct, frozen=True):
    """Messages are handed out. *batch* is the one under way, at most once only."""

    work: ClaimWork
    batch: PendingBatch | None = None
    name: ClassVar[str] = "active"

    @property
    def until_s(self) -> float:
        """Return when patience with the batch under way ends."""
        return inf if self.batch is None else self.batch.until_s


class Draining(msgspec.Struct, frozen=True, kw_only=True):
    """The claim is to be given back, after waiting for messages in flight until *until_s*: until
    *drain_until_s*, or until the lease ends if that is before. *stopped*: no more messages are handed out.
    *asks*: the shell is to name the messages that were not handed out.
    """

    work: ClaimWork
    batch: Committing | None
    reason: ReleaseReason
    drain_until_s: float = inf
    until_s: float = inf
    stopped: bool = False
    asks: bool = False
    name: ClassVar[str] = "draining"


class Releasing(msgspec.Struct, frozen=True, kw_only=True):
    """*releases* frames have released the claim, and the log shows none of them yet. *batch* was under way
    when the claim was given back; *cooldown*: others go first once it is free.
    """

    work: ClaimWork
    batch: PendingBatch | None
    reason: ReleaseReason
    cooldown: bool
    until_s: float
    releases: int = 0
    name: ClassVar[str] = "releasing"

    @property
    def offset(self) -> int:
        """Return where the next owner starts.

        A batch whose commit is not seen yet was not handed out and will not be, nor will the rest of the last
        one: both are left to the next owner.
        """
        current, left = self.work.tracker.current, self.work.left
        return current if left is None else min(current, left)


class Declining(msgspec.Struct, frozen=True, kw_only=True):
    """The same for a claim that was never started; the next owner starts at *offset*."""

    offset: int
    reason: ReleaseReason
    cooldown: bool
    until_s: float
    releases: int = 0
    name: ClassVar[str] = "releasing"


ClaimStage: TypeAlias = Claiming | Reclaiming | Won | Active | Draining | Releasing | Declining
ATTEMPTS = (Claiming, Reclaiming)
GIVEN_BACK = (Releasing, Declining)
WORKING = (Active, Draining)
"""The stages in which finished messages can be committed."""
STARTED = (Active, Draining, Releasing)
"""The stages that know which messages were handed out."""


def work_of(stage: ClaimStage) -> ClaimWork | None:
    """Return the messages handed out and done; None for a claim that was never started."""
    return stage.work if isinstance(stage, STARTED) else None


def hands_out(stage: ClaimStage) -> bool:
    """Return whether messages are handed out in this stage, as far as its lease reaches."""
    return isinstance(stage, Active) or (isinstance(stage, Draining) and not stage.stopped)


def reason_of(stage: ClaimStage) -> ReleaseReason | None:
    """Return why the claim is given back; None while it is not."""
    return stage.reason if isinstance(stage, Draining | Releasing | Declining) else None


def cools(stage: ClaimStage) -> bool:
    """Return whether this member lets others go first when a claim ends in this stage."""
    match stage:
        case Draining(reason=reason):
            return reason in COOLING
        case Releasing(cooldown=cooldown) | Declining(cooldown=cooldown):
            return cooldown
        case Claiming() | Reclaiming() | Won() | Active():
            return False
        case _ as never:
            assert_never(never)
