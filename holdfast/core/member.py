"""One instance of a claim client as a pure machine: it decides, a shell moves bytes (PROTOCOL.md#the-member)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from holdfast.core.frames import Frame
from holdfast.core.member_actions import Action, Place, Token
from holdfast.core.member_settings import MemberSettings


class Draws(Protocol):
    """Where chance comes from: `random.Random(seed)` fits."""

    def uniform(self, a: float, b: float, /) -> float: ...


class Held(NamedTuple):
    """One claim as seen from outside, for `claims`."""

    topic: str
    partition: int
    epoch: int
    stage: str
    offset: int
    latest: int | None
    outstanding: int
    deliver_until_s: float


class Member:
    """Everything one instance does to claim, keep, measure, commit and release partitions.

    Every input takes *now_s*, a monotonic time in seconds, and returns what to do, in order. Nothing in here reads a clock. The wall
    clock is told by `clock` (at the start, and again at least once per tick or whenever it may have jumped) because frames carry it.

    *coordination_partitions* is the number of partitions of the coordination topic. Read all of them that `coordination` names.
    """

    def __init__(self, settings: MemberSettings, *, coordination_partitions: int, draws: Draws, now_s: float, unix_s: float) -> None:
        raise NotImplementedError

    # -- what the shell needs to know

    @property
    def coordination(self) -> frozenset[int]:
        """Return the coordination partitions to read from their beginning and to follow; grows when topics are added."""
        raise NotImplementedError

    def wake_at_s(self) -> float:
        """Return when `tick` must be called at the latest; `inf` when nothing is due."""
        raise NotImplementedError

    def may_deliver(self, topic: str, partition: int, now_s: float) -> bool:
        """Return whether a message may be handed out right now: the last gate before each hand-out, one look-up.

        False once the lease may be over, fenced, paused, draining, terminated, or when too many messages are outstanding.
        """
        raise NotImplementedError

    def deliver_until_s(self, topic: str, partition: int) -> float:
        """Return until when messages may be handed out as things stand (-inf: not at all). Can shrink at any input: ask again."""
        raise NotImplementedError

    @property
    def claims(self) -> Mapping[Place, Held]:
        """Return the claims that are held: started and not yet given back."""
        raise NotImplementedError

    @property
    def lag(self) -> int:
        """Return how many messages the claims held are behind, by the latest watermarks."""
        raise NotImplementedError

    @property
    def load(self) -> int:
        """Return how many claims are held."""
        raise NotImplementedError

    @property
    def topics_held(self) -> tuple[str, ...]:
        """Return the topics whose partition 0 is held, sorted: what whole-topic mode counts."""
        raise NotImplementedError

    @property
    def terminated(self) -> bool:
        """Return whether `terminate` (or a Fail) is through: nothing more will be sent or awaited."""
        raise NotImplementedError

    def outstanding(self, topic: str, partition: int) -> int:
        """Return how many messages are delivered and not committed; 0 for a claim that is not held."""
        raise NotImplementedError

    def committed_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset that the log shows for the claim (guarded view), whoever holds it; None when nobody told any."""
        raise NotImplementedError

    # -- inputs: the world

    def clock(self, unix_s: float, now_s: float) -> list[Action]:
        """The wall clock says *unix_s* at *now_s*."""
        raise NotImplementedError

    def partitions(self, topic: str, count: int, now_s: float) -> list[Action]:
        """*topic* has *count* partitions: call at the start and when metadata changes. More are claimed, missing ones given up."""
        raise NotImplementedError

    def topics(self, topics: Sequence[str], now_s: float) -> list[Action]:
        """Work on these topics from now on (pattern subscriptions). Claims of others are handed over. See `coordination` for new partitions to read."""
        raise NotImplementedError

    def caught_up(self, coordination_partition: int, now_s: float) -> list[Action]:
        """All that was in the coordination partition when reading began has been observed. Fast reclaim happens here."""
        raise NotImplementedError

    def observe(self, frame: Frame, coordination_partition: int, offset: int, at_ms: int, now_s: float) -> list[Action]:
        """A frame was read; *at_ms* is its append time, -1 without LogAppendTime. In offset order; what was seen before is ignored."""
        raise NotImplementedError

    def watermarks(self, topic: str, partition: int, earliest: int, latest: int, committed: int | None, now_s: float) -> list[Action]:
        """Earliest, latest (next to be written) and committed offset (None: none). In answer to `Look`, and for every claim held a few
        times per heartbeat interval: health is measured by it (then *committed* may be None)."""
        raise NotImplementedError

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due. Call at `wake_at_s` or earlier."""
        raise NotImplementedError

    def sent(self, send_id: int, ok: bool, now_s: float) -> list[Action]:
        """What became of a `Send`. Not ok counts as unknown: the frame may be in the log all the same."""
        raise NotImplementedError

    def fetch_failed(self, topic: str, partition: int, reason: str, now_s: float) -> list[Action]:
        """The partition cannot be fetched (offset out of range, not authorized, gone): the claim is released."""
        raise NotImplementedError

    # -- inputs: the user

    def delivered(self, topic: str, partition: int, offsets: range | Sequence[int], now_s: float) -> list[Action]:
        """Messages were handed out: ascending offsets, a `range` where they are contiguous (that is the fast way).

        Asserts that they follow what was delivered before.
        """
        raise NotImplementedError

    def skipped(self, topic: str, partition: int, offset: int, now_s: float) -> list[Action]:
        """Nothing below *offset* that was not delivered concerns this claim: holes of compaction, control records, other lanes."""
        raise NotImplementedError

    def withdrawn(self, topic: str, partition: int, offset: int, now_s: float) -> list[Action]:
        """Messages from *offset* on were reported as delivered but never handed out."""
        raise NotImplementedError

    def fetched(self, topic: str, partition: int, offset_end: int, now_s: float) -> list[Action]:
        """At most once: a batch that ends before *offset_end* waits to be handed out. `Deliver` follows when the log has committed it.

        One batch at a time per claim: the next after `Deliver`. Asserts delivery at most once.
        """
        raise NotImplementedError

    def commit(self, token: Token, now_s: float) -> list[Action]:
        """The message is done. Twice is once. Raises CommitError when it was never delivered, ClaimLostError when its claim is gone."""
        raise NotImplementedError

    def commit_many(self, topic: str, partition: int, epoch: int, offsets: range | Sequence[int], now_s: float) -> list[Action]:
        """The messages are done: a `range`, or the list given to `delivered`, in one step. Raises as `commit`, and then commits none."""
        raise NotImplementedError

    def flush(self, now_s: float) -> list[Action]:
        """Write what has been committed to the log now. It is through when `flushed` says so."""
        raise NotImplementedError

    def flushed(self) -> bool:
        """Return whether the log shows what was committed at the last `flush`, for all claims still held."""
        raise NotImplementedError

    def aim(self, targets: Collection[tuple[str, int]] | None, now_s: float) -> list[Action]:
        """Balanced groups: claim these and only these, hand others over; what stays is not touched. None returns to the free race."""
        raise NotImplementedError

    def terminate(self, release: bool, now_s: float) -> list[Action]:
        """Stop: with *release* drain and give everything back, else write a last heartbeat so that a restart reclaims fast."""
        raise NotImplementedError
