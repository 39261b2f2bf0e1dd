"""Resets of claim groups: the decision in one record, and the frames that follow from it
(PROTOCOL.md#pausing-and-resetting-a-group).

Partitions of a group lie in several logs, and no write covers two of them. So a reset is decided by *one*
record on a topic of its own. A member that finds a partition in the hands of an unfinished reset reads that
topic, and gives the partition back with the decision's offset. The first decision about a reset in the
log is the decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.core.claims.claim_keys import RESET_INSTANCE, ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import UNMARKED, ReleasingPartition
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ConfigError, DecodeError

RESETS_TOPIC = "holdfast.resets"
LIMIT_DECISION_BYTES = 900_000
LIMIT_RESET_PARTITIONS = 10_000
LANE_MARK = "~"


# -- decisions


class ResetCommit(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="commit", tag_field="decision"
):
    """Every partition named starts at its new offset.

    *offsets* is topic -> (partition, old offset, new offset). *topic_marks* has the mark of each topic of
    Kafka's whose offsets the new ones are (`topic_mark` of frames.py), as far as it is known.
    """

    reset_id: str
    group: str
    client: str
    at_s: int
    offsets: dict[str, tuple[tuple[int, int, int], ...]]
    topic_marks: dict[str, int] = msgspec.field(default_factory=dict)

    def new_offset(self, key: ClaimKey) -> int | None:
        """Return where *key* starts by this reset; None when it is not part of it."""
        if key.group_id != self.group:
            return None
        return next(
            (new for partition, _, new in self.offsets.get(key.topic, ()) if partition == key.partition), None
        )


class ResetAbort(msgspec.Struct, frozen=True, kw_only=True, tag="abort", tag_field="decision"):
    """Every partition keeps its old offset: the reset failed, or its caller stopped waiting and gave it
    up.
    """

    reset_id: str
    group: str
    client: str
    at_s: int
    reason: str


Decision: TypeAlias = ResetCommit | ResetAbort

_decoder: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(ResetCommit | ResetAbort)


def encode_decision(decision: Decision) -> bytes:
    """Return the value to produce; its key is the group. ConfigError when one record cannot hold it.

    >>> encode_decision(ResetCommit(reset_id="5e", group="g", client="admin", at_s=7, offsets={"orders": ((0, 40, 0),)}))
    b'{"decision":"commit","reset_id":"5e","group":"g","client":"admin","at_s":7,"offsets":{"orders":[[0,40,0]]}}'
    """  # noqa: E501
    value = msgspec.json.encode(decision)
    if len(value) > LIMIT_DECISION_BYTES:
        raise ConfigError(
            f"a reset of {decision.group} takes {len(value)} bytes, one record holds {LIMIT_DECISION_BYTES}:"
            " reset fewer topics"
        )
    return value


def decode_decision(value: bytes | None) -> Decision:
    """Return the decision in *value*, or raise DecodeError."""
    if value is None:
        raise DecodeError("a record without a value on the topic of resets: decisions are never deleted")
    if len(value) > LIMIT_DECISION_BYTES:
        raise DecodeError(f"{len(value)} bytes, a decision has at most {LIMIT_DECISION_BYTES}")
    try:
        return _decoder.decode(value)
    except UNFIT as error:
        raise DecodeError(f"{value[:80]!r}: {error}") from None


class Decisions:
    """The decisions in the order of the log: of several about one reset the first counts.

    >>> seen = Decisions()
    >>> abort = ResetAbort(reset_id="5e", group="g", client="c", at_s=1, reason="silent")
    >>> seen.add(abort); seen.add(ResetCommit(reset_id="5e", group="g", client="admin", at_s=2, offsets={}))
    >>> seen["5e"] is abort, seen["other"]
    (True, None)
    """

    def __init__(self) -> None:
        self._first: dict[str, Decision] = {}

    def add(self, decision: Decision) -> None:
        self._first.setdefault(decision.reset_id, decision)

    def __getitem__(self, reset_id: str) -> Decision | None:
        return self._first.get(reset_id)


# -- what follows from them


def reset_id_of(instance_id: str) -> str | None:
    """Return the reset whose administrator runs under *instance_id*; None for a member's.

    >>> reset_id_of("reset-5e"), reset_id_of("3c5a0f1e")
    ('5e', None)
    """
    return instance_id.removeprefix(RESET_INSTANCE) if instance_id.startswith(RESET_INSTANCE) else None


def held_by_reset(claim: Claim) -> str | None:
    """Return the reset that holds *claim*, however old its last heartbeat; None if a member holds it or it is
    unowned.
    """
    return None if claim.heartbeat_at_s is None else reset_id_of(claim.instance_id)


def final_offset(decision: Decision, key: ClaimKey, claim: Claim) -> int | None:
    """Return where *key*, in the hands of the reset that *decision* is about, starts; None when no offset is
    known.
    """
    new = decision.new_offset(key) if isinstance(decision, ResetCommit) else None
    return claim.current_offset if new is None else new


def final_mark(decision: Decision, key: ClaimKey, claim: Claim) -> int | None:
    """Return which topic `final_offset` is of; None where that is not known."""
    if isinstance(decision, ResetCommit) and decision.new_offset(key) is not None:
        return decision.topic_marks.get(data_topic(key.topic))
    return claim.topic_mark


def release(
    key: ClaimKey, claim: Claim, offset: int, at_s: int, topic_mark: int | None
) -> ReleasingPartition:
    """Return the frame by which *claim* is given back in its owner's name, at *offset* of the topic with this
    mark: anybody may send it who knows the decision.
    """
    return ReleasingPartition(
        at_s,
        claim.instance_id,
        claim.client_id,
        key.group_id,
        key.topic,
        key.partition,
        offset,
        UNMARKED if topic_mark is None else topic_mark,
    )


# -- where a group is sent


class Where(StrEnum):
    """The ways of kafka-consumer-groups to say a new offset."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    OFFSET = "to-offset"
    DATETIME = "to-datetime"
    DURATION = "by-duration"
    SHIFT = "shift-by"


class Spot(NamedTuple):
    """The offsets of one partition from which its new offset is computed.

    *at_time* is the first offset at the time asked for, None for none.
    """

    current: int | None
    earliest: int
    latest: int
    at_time: int | None = None

    @property
    def start(self) -> int:
        """Return where a member would start."""
        return self.earliest if self.current is None else self.current


class Aim(msgspec.Struct, frozen=True):
    """A new offset for every partition: *value* is an offset, a shift, or a time in ms, as *where* says."""

    where: Where
    value: int = 0

    @property
    def at_ms(self) -> int | None:
        """Return the time whose offsets are needed."""
        return self.value if self.where in (Where.DATETIME, Where.DURATION) else None

    def offset(self, spot: Spot) -> int:
        """Return the new offset, never outside the log: one before its beginning or after its end is moved to
        it.

        A shift counts from the current offset; without one, from the beginning, where a member would start.

        >>> spot = Spot(current=40, earliest=10, latest=50, at_time=None)
        >>> [Aim(Where.SHIFT, by).offset(spot) for by in (-5, -100, 100)], Aim(Where.OFFSET, 0).offset(spot)
        ([35, 10, 50], 10)
        >>> Aim(Where.DATETIME, 1_700_000_000_000).offset(spot), Aim(Where.EARLIEST).offset(Spot(None, 0, 0))
        (50, 0)
        """
        match self.where:
            case Where.EARLIEST:
                wanted = spot.earliest
            case Where.LATEST:
                wanted = spot.latest
            case Where.OFFSET:
                wanted = self.value
            case Where.DATETIME | Where.DURATION:
                wanted = spot.latest if spot.at_time is None else spot.at_time
            case Where.SHIFT:
                wanted = spot.start + self.value
        return min(max(wanted, spot.earliest), spot.latest)


class Scope(msgspec.Struct, frozen=True):
    """The partitions of a group that are meant: all its topics when *topics* is empty, all partitions of a
    topic whose set is empty.
    """

    topics: Mapping[str, frozenset[int]] = msgspec.field(default_factory=dict)

    def has(self, topic: str, partition: int) -> bool:
        """Return whether the partition is meant.

        A lane is meant by its own name, and by that of the topic it is a part of.
        """
        if not self.topics:
            return True
        partitions = self.topics.get(topic, self.topics.get(data_topic(topic)))
        return partitions is not None and (not partitions or partition in partitions)


def data_topic(topic: str) -> str:
    """Return the topic whose offsets a claim counts: the topic itself, or of a lane (PROTOCOL.md#lanes) the
    topic that is split.

    >>> data_topic("orders~lane-3-of-8"), data_topic("orders")
    ('orders', 'orders')
    """
    return topic.partition(LANE_MARK)[0]


def parse_scope(texts: Iterable[str]) -> Scope:
    """Return the partitions that `--topic` options name.

    >>> parse_scope(["orders:0,2", "orders:5", "clicks"]) == Scope({"orders": frozenset({0, 2, 5}), "clicks": frozenset()})
    True
    """  # noqa: E501
    topics: dict[str, frozenset[int]] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        partitions = numbers.split(",") if colon else []
        if not topic or not all(number.isascii() and number.isdigit() for number in partitions):
            raise ConfigError(f"--topic {text}: write TOPIC or TOPIC:PARTITION,PARTITION")
        named = frozenset(map(int, partitions))
        before = topics.get(topic)
        topics[topic] = named if before is None else before | named if before and named else frozenset()
    return Scope(topics)


# -- durations and times, as people and Kafka's tools write them

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PLAIN = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+")
_PLAIN_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
_ISO = re.compile(
    r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?", re.IGNORECASE
)


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms: `90s`, `10m`, `1h30m`, `2d`, or as Kafka's tools take it, `P1DT2H`.

    >>> [parse_duration_ms(text) for text in ("90s", "1h30m", "250ms", "PT10M", "P1DT0.5S")]
    [90000, 5400000, 250, 600000, 86400500]
    """
    if _PLAIN.fullmatch(text):
        return round(sum(float(number) * _UNITS_S[unit] for number, unit in _PLAIN_PART.findall(text)) * 1000)
    found = _ISO.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ConfigError(f"{text!r} is not a duration: write 90s, 10m, 1h30m, 2d or PT10M")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds() * 1000)


def parse_datetime_ms(text: str) -> int:
    """Return a moment in ms since the epoch: ISO 8601, UTC where it names no zone, as Kafka's tools read it.

    >>> [parse_datetime_ms(text) for text in ("1970-01-01T00:00:01.500", "1970-01-01T01:00:00+01:00", "1970-01-02")]
    [1500, 0, 86400000]
    """  # noqa: E501
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a valid time: write 2026-11-21T08:30:00Z, or with .500 and +01:00"
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    at_ms = round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    if at_ms < 0:
        raise ConfigError(f"{text!r} is before 1970, when no record was written")
    return at_ms
