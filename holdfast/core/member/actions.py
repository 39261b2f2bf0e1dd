"""The actions that a Member asks of its shell, which does them in the order given and decides nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.core.claims.frames import Frame
from holdfast.errors import HoldfastError


class DeliveryToken(NamedTuple):
    """Names one delivered message. *epoch* is that of the claim it was delivered under, from `Start`."""

    topic: str
    partition: int
    offset: int
    epoch: int


class Send(msgspec.Struct, frozen=True, gc=False):
    """Produce *frame* to *coordination_partition* of the coordination topic (null key, no headers, acks=all,
    idempotent, in order).

    Then call `sent(send_id, ok)`: ok when the broker acknowledged it, not ok when the outcome is an error or
    unknown after the deadline.
    """

    frame: Frame
    coordination_partition: int
    send_id: int


class FetchOffsets(msgspec.Struct, frozen=True, gc=False):
    """Find out earliest and latest offset of the partition, its offset in `__consumer_offsets`, and the
    topic's mark, all for the same topic, and call `watermarks`.
    """

    topic: str
    partition: int


class Identify(msgspec.Struct, frozen=True, gc=False):
    """Find out the mark of the topic as it is from now on, and call `identity`."""

    topic: str
    partition: int


class Start(msgspec.Struct, frozen=True, gc=False):
    """The claim is held: fetch from *offset*.

    *epoch* goes into the tokens of its messages and can fence what they cause elsewhere.
    """

    topic: str
    partition: int
    offset: int
    epoch: int


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Stop fetching and drop the fetched messages that were not handed out.

    If some of those were already reported by `delivered`, give them back by `withdrawn` at once: a release
    waits for the rest only. At most once call `kept_back` instead, since a release is to name where that
    begins.
    """

    topic: str
    partition: int


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """At most once: the batch whose end is *offset_end* is committed in the log; hand it out (as long as
    `may_deliver`).
    """

    topic: str
    partition: int
    offset_end: int


class CommitOffset(msgspec.Struct, frozen=True, gc=False):
    """Commit *offset* to `__consumer_offsets` too: best effort, for lag tools; nothing waits for it."""

    topic: str
    partition: int
    offset: int
    topic_mark: int | None = None
    """Stands for the topic that the offset is of (PROTOCOL.md#topics-that-are-made-again)."""


class Event(StrEnum):
    """Events for logs, metrics and the user's hooks."""

    CLAIMED = "claimed"
    RECLAIMED = "reclaimed"
    RACE_LOST = "race-lost"
    ATTEMPT_TIMED_OUT = "attempt-timed-out"
    RELEASING = "releasing"
    RELEASED = "released"
    FENCED = "fenced"
    ABANDONED = "abandoned"
    UNDELIVERED = "undelivered"
    HANDLER_SLOW = "handler-slow"
    FETCH_FAILED = "fetch-failed"
    PAUSED = "paused"
    RESUMED = "resumed"
    TOPICS = "topics"
    CLOCK_SKEW = "clock-skew"
    RIVAL = "rival"
    TOPIC_MADE_AGAIN = "topic-made-again"
    TERMINATED = "terminated"


class ReleaseReason(StrEnum):
    """Why a claim is given back."""

    EXPIRED = "heartbeat-expired"
    PAUSED = "group-paused"
    HANDLER_TIMEOUT = "handler-timeout"
    WEDGED = "wedged"
    BEHIND = "behind"
    FETCH_FAILED = "fetch-failed"
    TERMINATED = "terminated"
    HANDED_OVER = "handed-over"
    TOPIC_INCOMPLETE = "topic-incomplete"
    PARTITION_GONE = "partition-gone"
    UNREADABLE = "watermarks-unknown"
    TOPIC_MADE_AGAIN = "topic-made-again"
    UNWANTED = "unwanted"


class Notify(msgspec.Struct, frozen=True, gc=False):
    """Something the user may want to know. *topic* is "" and *partition* -1 when it is about the whole
    member.

    `topics` is set on Event.TOPICS only: all topics now held (whole-topic mode: those whose partition 0 is).
    """

    event: Event
    topic: str = ""
    partition: int = -1
    reason: ReleaseReason | None = None
    text: str = ""
    topics: tuple[str, ...] = ()


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The member must stop: raise *error* to the user.

    Everything is stopped already; frames to release may precede this.
    """

    error: HoldfastError


Action: TypeAlias = Send | FetchOffsets | Identify | Start | Stop | Deliver | CommitOffset | Notify | Fail
