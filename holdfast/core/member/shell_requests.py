"""A member's requests to its shell, and its memory of the frames it sent."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.claims.frames import (
    GIVES_BACK,
    UNMARKED,
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
)
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import (
    Action,
    CommitOffset,
    Deliver,
    Event,
    Fail,
    FetchOffsets,
    Identify,
    Notify,
    ReleaseReason,
    Send,
    Start,
    Stop,
)
from holdfast.core.member.claim.local_claims import FrameMark, LocalClaim, frame_mark
from holdfast.core.member.settings import MemberSettings
from holdfast.errors import HoldfastError


class SentFrame(NamedTuple):
    """A frame whose fate the shell has not reported yet."""

    claim: LocalClaim
    frame: Frame


class WallClock:
    """The wall clock as a function of the monotonic one; the shell sets *lead_s*, how far it is ahead."""

    __slots__ = ("lead_s",)

    def __init__(self, lead_s: float) -> None:
        self.lead_s = lead_s

    def unix_s(self, now_s: float) -> float:
        """Return the wall clock's time in seconds at *now_s*."""
        return now_s + self.lead_s


class ShellRequests:
    """Actions in the order in which they were decided, until `take`, and frames until they are `settled` and
    seen in the log.
    """

    def __init__(self, settings: MemberSettings, wall: WallClock) -> None:
        self._settings, self._wall = settings, wall
        self._me = (settings.client_id, settings.instance_id)
        self._out: list[Action] = []
        self._send_id = 0
        self.sends: dict[int, SentFrame] = {}
        self._unseen: dict[TopicPartition, tuple[FrameMark, float]] = {}

    def __bool__(self) -> bool:
        """Return whether something is asked for."""
        return bool(self._out)

    def take(self) -> list[Action]:
        """Return the actions requested so far, and forget them."""
        out = self._out
        if out:
            self._out = []
        return out

    # -- frames

    def _frame_s(self, now_s: float) -> int:
        """Return the time for a frame: 0 and less mean "none" to some readers."""
        return max(1, int(self._wall.unix_s(now_s)))

    def _send(self, claim: LocalClaim, frame: Frame, now_s: float) -> int:
        self._send_id += 1
        self.sends[self._send_id] = SentFrame(claim, frame)
        claim.unacknowledged += 1
        mark = frame_mark(frame)
        before = self._unseen.get(claim.place)
        if before is not None and before[0] == mark:
            now_s = before[1]  # two attempts in one second: what the log shows may be the first
        self._unseen[claim.place] = mark, now_s
        claim.note_sent(mark, now_s)
        self._out.append(Send(frame, claim.coordination, self._send_id))
        return self._send_id

    def settled(self, send_id: int) -> SentFrame | None:
        """Forget a frame whose fate is known, and return it; None for one that is not remembered."""
        sent = self.sends.pop(send_id, None)
        if sent is not None:
            sent.claim.unacknowledged -= 1
        return sent

    def own_seen(self, place: TopicPartition, frame: Frame) -> None:
        """Note that the log shows *frame*, which is ours."""
        unseen = self._unseen.get(place)
        if unseen is not None and unseen[0] == frame_mark(frame):
            del self._unseen[place]

    def unmoved(self, place: TopicPartition, offset: int) -> int:
        """Return the offset for a release of *place*, none of whose messages are done, so that it moves
        nothing. The row that was read is at *offset*.

        While the log does not show the last frame that was sent about *place*, as when a member catches up,
        the row is out of date. Since then the claim may have been given back, reset to less, and granted to
        us again: *offset* would undo the reset, and messages to be read again would be lost. 0 moves no
        offset whatever the row is by now. Members of the Go library take an offset as it is; with them there
        are no resets.
        """
        return offset if self._settings.interop or place not in self._unseen else 0

    def send_claiming(self, claim: LocalClaim, now_s: float) -> None:
        client_id, instance_id = self._me
        frame = ClaimingPartition(
            self._frame_s(now_s), instance_id, client_id, self._settings.group_id, *claim.place
        )
        self._send(claim, frame, now_s)

    def send_heartbeat(self, claim: LocalClaim, offset: int, now_s: float) -> int:
        client_id, instance_id = self._me
        claim.offset_logged = max(claim.offset_logged, offset)
        frame = Heartbeat(
            self._frame_s(now_s),
            instance_id,
            client_id,
            self._settings.group_id,
            *claim.place,
            offset,
            claim.topic_mark or UNMARKED,
        )
        return self._send(claim, frame, now_s)

    def send_release(self, claim: LocalClaim, offset: int, now_s: float, *, gives_back: bool = False) -> int:
        client_id, instance_id = self._me
        frame = ReleasingPartition(
            self._frame_s(now_s),
            instance_id,
            client_id,
            self._settings.group_id,
            *claim.place,
            offset,
            claim.topic_mark or (GIVES_BACK if gives_back else UNMARKED),
        )
        return self._send(claim, frame, now_s)

    def send_proposal(self, claim: LocalClaim, offset_end: int, now_s: float) -> None:
        client_id, instance_id = self._me
        frame = ClaimingMessages(
            self._frame_s(now_s),
            instance_id,
            client_id,
            self._settings.group_id,
            *claim.place,
            offset_end,
            claim.topic_mark or UNMARKED,
        )
        self._send(claim, frame, now_s)

    # -- everything else

    def start(self, claim: LocalClaim, offset: int) -> None:
        self._out.append(Start(*claim.place, offset, claim.epoch))

    def stop(self, claim: LocalClaim) -> None:
        self._out.append(Stop(*claim.place))

    def deliver(self, claim: LocalClaim, offset_end: int) -> None:
        self._out.append(Deliver(*claim.place, offset_end))

    def fail(self, error: HoldfastError) -> None:
        self._out.append(Fail(error))

    def commit_offset(self, claim: LocalClaim, offset: int | None, topic_mark: int | None) -> None:
        """Have `__consumer_offsets` follow the log: what the log did not take, as from an owner that was
        replaced, is not committed.
        """
        if offset is not None and offset != claim.kafka_offset:
            claim.kafka_offset = offset
            self._out.append(CommitOffset(*claim.place, offset, topic_mark))

    def identify(self, claim: LocalClaim) -> None:
        self._out.append(Identify(*claim.place))

    def fetch_offsets(self, claim: LocalClaim) -> None:
        self._out.append(FetchOffsets(*claim.place))

    def notify(
        self,
        event: Event,
        claim: LocalClaim | None = None,
        reason: ReleaseReason | None = None,
        text: str = "",
    ) -> None:
        if claim is None:
            self._out.append(Notify(event, reason=reason, text=text))
        else:
            self._out.append(Notify(event, *claim.place, reason=reason, text=text))

    def notify_topics(self, held: tuple[str, ...]) -> None:
        self._out.append(Notify(Event.TOPICS, topics=held))
