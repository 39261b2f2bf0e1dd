"""The frames of the coordination topic: what the Go library writes and reads, byte for byte
(PROTOCOL.md#frames).

A value is ASCII or UTF-8 text, fields joined by `/`, nothing escaped; the record has no key and no headers:

    Type/Version/UnixSeconds/InstanceID/ClientID/GroupID/Topic/PartID[/Int64]

No reader compares the version, so a frame with an offset carries there the *mark* of the topic whose offset
it is (`topic_mark`): a topic that was deleted and made again has another id, and another mark.

Reading accepts what the Go decoder accepts, bounded where that decoder would crash or eat memory. Writing is
stricter: only what every reader understands leaves this module.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import NoReturn, TypeAlias, assert_never

import msgspec

from holdfast.core.engine.state.source_ids import NO_TOPIC_ID
from holdfast.errors import FrameError

HEARTBEAT_INTERVAL_S = 60
STALE_AFTER_S = 2 * HEARTBEAT_INTERVAL_S
COORDINATION_TOPIC = "__marshal"

UNMARKED = 1
"""The version of a frame that does not say which topic its offset is of: the Go library's, and earlier ones
of ours.
"""
GIVES_BACK = 0
"""The version of a release that gives back part of a batch (at most once), where the topic has no mark: a
release without either moves no offset back.
"""
LIMIT_MARK = 2**31
"""Marks are from 2 to below this: a reader whose integers have 32 bits reads them too."""
LIMIT_FRAME_BYTES = 4096
LIMIT_PARTITION = 2**31
LIMIT_INTEGER = 2**63
BASE_FIELDS = 8


class FrameReason(StrEnum):
    """Why a value is no frame.

    The first eight are the errors of the Go decoder, which it reports in this order of checks.
    """

    LENGTH = "Invalid message (length)"
    NUMBER = "number"
    TYPE = "Invalid message"
    HB_LENGTH = "hb length"
    CP_LENGTH = "cp length"
    RP_LENGTH = "rp length"
    CM_LENGTH = "cm length"
    RG_LENGTH = "rg length"
    RG_TARGET = "rg topic or partition"
    NULL = "null"
    SIZE = "too large"
    UTF8 = "utf-8"
    PARTITION = "partition range"
    ID = "id"
    RANGE = "range"


class Heartbeat(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="Heartbeat"):
    """The sender holds the claim; *current_offset* is the next offset it will read."""

    time_s: int
    instance_id: str
    client_id: str
    group_id: str
    topic: str
    partition: int
    current_offset: int
    version: int = 1


class ClaimingPartition(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ClaimingPartition"):
    """The sender wants the claim; the first one in the log after the claim went free gets it."""

    time_s: int
    instance_id: str
    client_id: str
    group_id: str
    topic: str
    partition: int
    version: int = 1


class ReleasingPartition(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ReleasingPartition"):
    """The sender gives the claim back; *current_offset* is where the next owner starts."""

    time_s: int
    instance_id: str
    client_id: str
    group_id: str
    topic: str
    partition: int
    current_offset: int
    version: int = 1


class ClaimingMessages(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ClaimingMessages"):
    """At most once: the owner announces the batch up to *proposed_current_offset* (exclusive) before it
    commits it by a heartbeat.
    """

    time_s: int
    instance_id: str
    client_id: str
    group_id: str
    topic: str
    partition: int
    proposed_current_offset: int
    version: int = 1


class ReleaseGroup(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ReleaseGroup"):
    """An administrator pauses the whole group until *msg_expire_time_s*.

    Today's Go library cannot decode it (PROTOCOL.md#pauses).
    """

    time_s: int
    instance_id: str
    client_id: str
    group_id: str
    msg_expire_time_s: int
    version: int = 0


Frame: TypeAlias = Heartbeat | ClaimingPartition | ReleasingPartition | ClaimingMessages | ReleaseGroup

FRAME_TYPES: dict[str, type[Frame]] = {
    "Heartbeat": Heartbeat,
    "ClaimingPartition": ClaimingPartition,
    "ReleasingPartition": ReleasingPartition,
    "ClaimingMessages": ClaimingMessages,
    "ReleaseGroup": ReleaseGroup,
}

_LENGTHS = {
    b"Heartbeat": (BASE_FIELDS + 1, FrameReason.HB_LENGTH),
    b"ClaimingPartition": (BASE_FIELDS, FrameReason.CP_LENGTH),
    b"ReleasingPartition": (BASE_FIELDS + 1, FrameReason.RP_LENGTH),
    b"ClaimingMessages": (BASE_FIELDS + 1, FrameReason.CM_LENGTH),
    b"ReleaseGroup": (BASE_FIELDS + 1, FrameReason.RG_LENGTH),
}

# Partitions are few, and thousands of frames share a second: a look-up is cheaper than int(). Both hold
# canonical spellings only, so "+3", "03" and digits of other scripts take the careful way.
_PARTITIONS = {str(partition): partition for partition in range(4096)}
_TIMES: dict[str, int] = {}
_LIMIT_TIMES = 4096
_MARKS: dict[str, int] = {}


def decode(value: bytes | None) -> Frame:
    """Return the frame in *value*, or raise FrameError.

    Heartbeats in the shape every live client writes are nearly all of the traffic and are taken apart here;
    anything else, good or bad, takes the careful path, which alone decides what counts as an error.

    >>> decode(b"ClaimingPartition/1/1476147590/3c5a0f1e/worker-7/foo.bar_consumer/orders/3").topic
    'orders'
    """
    try:
        if len(value) <= LIMIT_FRAME_BYTES:  # type: ignore[arg-type]
            kind, version, time, instance_id, client_id, group_id, topic, partition, offset = value.decode(  # type: ignore[union-attr]
                "ascii"
            ).split("/", 9)
            if kind == "Heartbeat" and offset.isdigit():
                current_offset = int(offset)
                if current_offset < LIMIT_INTEGER:
                    time_s = _TIMES.get(time) or _known_time(time)
                    return Heartbeat(
                        time_s,
                        instance_id,
                        client_id,
                        group_id,
                        topic,
                        _PARTITIONS[partition],
                        current_offset,
                        UNMARKED if version == "1" else _MARKS.get(version) or _known_mark(version),
                    )
    except (ValueError, KeyError, TypeError):
        pass
    return _decode_carefully(value)


def _known_time(text: str) -> int:
    """Return the time that *text* spells and remember it; ValueError unless it is spelled as every live
    client does.
    """
    if len(text) != 10 or not text.isdigit():
        raise ValueError(text)
    if len(_TIMES) >= _LIMIT_TIMES:
        _TIMES.clear()
    time_s = _TIMES[text] = int(text)
    return time_s


def _known_mark(text: str) -> int:
    """Return the mark that *text* spells and remember it; ValueError unless it is spelled as `encode`
    spells it.
    """
    mark = int(text)
    if not UNMARKED < mark < LIMIT_MARK or str(mark) != text:
        raise ValueError(text)
    if len(_MARKS) >= _LIMIT_TIMES:
        _MARKS.clear()
    _MARKS[text] = mark
    return mark


def _decode_carefully(value: bytes | None) -> Frame:
    """Decode with the checks of the Go decoder in its order, then ours."""
    if value is None:
        raise FrameError(
            "a record without a value on the coordination topic: frames are never deleted by key",
            FrameReason.NULL,
        )
    if len(value) > LIMIT_FRAME_BYTES:
        _refuse_size(value)
    parts = value.split(b"/", BASE_FIELDS + 1)
    if len(parts) < BASE_FIELDS:
        _refuse(value, FrameReason.LENGTH, f"{len(parts)} fields, a frame has at least {BASE_FIELDS}")
    version = _integer(value, "version", parts[1])
    partition = _integer(value, "partition", parts[7])
    time_s = _integer(value, "time", parts[2])
    if parts[0] not in _LENGTHS:
        _refuse(value, FrameReason.TYPE, "unknown type of frame")
    fields, reason = _LENGTHS[parts[0]]
    if len(parts) != fields:
        _refuse(
            value,
            reason,
            f"{'more than ' if len(parts) > fields else ''}{min(len(parts), fields)} fields, this type has"
            f" {fields}",
        )
    if parts[0] == b"ReleaseGroup" and (parts[6] or partition):
        _refuse(value, FrameReason.RG_TARGET, "topic must be empty and partition 0")
    trailing = _integer(value, "last field", parts[8]) if fields > BASE_FIELDS else 0
    if not 0 <= partition < LIMIT_PARTITION:
        _refuse(value, FrameReason.PARTITION, f"partition {partition} is not within 0..{LIMIT_PARTITION - 1}")
    try:
        instance_id, client_id, group_id, topic = (str(part, "utf-8") for part in parts[3:7])
    except UnicodeDecodeError as error:
        raise FrameError(
            f"{_excerpt(value)}: an id is not UTF-8 ({error.reason})", FrameReason.UTF8
        ) from None
    match parts[0]:
        case b"Heartbeat":
            return Heartbeat(time_s, instance_id, client_id, group_id, topic, partition, trailing, version)
        case b"ClaimingPartition":
            return ClaimingPartition(time_s, instance_id, client_id, group_id, topic, partition, version)
        case b"ReleasingPartition":
            return ReleasingPartition(
                time_s, instance_id, client_id, group_id, topic, partition, trailing, version
            )
        case b"ClaimingMessages":
            return ClaimingMessages(
                time_s, instance_id, client_id, group_id, topic, partition, trailing, version
            )
    return ReleaseGroup(time_s, instance_id, client_id, group_id, trailing, version)


_INTEGER = re.compile(rb"([+-]?)0*([0-9]{1,19})")


def _integer(value: bytes, field: str, text: bytes) -> int:
    """Return the result of Go's ParseInt(text, 10, 64): one sign and ASCII digits, nothing else."""
    if len(text) <= 18 and text.isdigit():
        return int(text)
    found = _INTEGER.fullmatch(text)
    number = int(found[1] + found[2]) if found else LIMIT_INTEGER
    if not -LIMIT_INTEGER <= number < LIMIT_INTEGER:
        _refuse(value, FrameReason.NUMBER, f"{field} is not an integer of 64 bits")
    return number


def _refuse(value: bytes, reason: FrameReason, detail: str) -> NoReturn:
    raise FrameError(f"{_excerpt(value)}: {detail}", reason)


def _refuse_size(value: bytes) -> NoReturn:
    _refuse(value, FrameReason.SIZE, f"{len(value)} bytes, a frame has at most {LIMIT_FRAME_BYTES}")


def _excerpt(value: bytes) -> str:
    return repr(value[:80])[1:] + ("..." if len(value) > 80 else "")


def encode(frame: Frame) -> bytes:
    """Return the value to produce for *frame*, with a null key and to `coordination_partition(topic)`.

    Raises FrameError for what some reader would misread: an id that is empty or holds `/` or a control
    character, a number out of range, a time of 0 (which the Go library reads as "no heartbeat").

    >>> encode(ClaimingPartition(1476147590, "3c5a0f1e", "worker-7", "foo.bar_consumer", "orders", 3))
    b'ClaimingPartition/1/1476147590/3c5a0f1e/worker-7/foo.bar_consumer/orders/3'
    """
    kind = type(frame).__name__
    _check_number(kind, "version", frame.version, 0, LIMIT_INTEGER)
    _check_number(kind, "time_s", frame.time_s, 1, LIMIT_INTEGER)
    head = f"{kind}/{frame.version}/{frame.time_s}/{frame.instance_id}/{frame.client_id}/{frame.group_id}"
    ids = {"instance_id": frame.instance_id, "client_id": frame.client_id, "group_id": frame.group_id}
    if isinstance(frame, ReleaseGroup):
        _check_number(kind, "msg_expire_time_s", frame.msg_expire_time_s, 0, LIMIT_INTEGER)
        text = f"{head}//0/{frame.msg_expire_time_s}"
    else:
        ids["topic"] = frame.topic
        _check_number(kind, "partition", frame.partition, 0, LIMIT_PARTITION)
        text = f"{head}/{frame.topic}/{frame.partition}"
        match frame:
            case Heartbeat() | ReleasingPartition():
                _check_number(kind, "current_offset", frame.current_offset, 0, LIMIT_INTEGER)
                text = f"{text}/{frame.current_offset}"
            case ClaimingMessages():
                _check_number(
                    kind, "proposed_current_offset", frame.proposed_current_offset, 0, LIMIT_INTEGER
                )
                text = f"{text}/{frame.proposed_current_offset}"
            case ClaimingPartition():
                pass
            case _:
                assert_never(frame)
    for field, identifier in ids.items():
        check_id(field, identifier)
    value = text.encode()
    if len(value) > LIMIT_FRAME_BYTES:
        _refuse_size(value)
    return value


# C0, DEL, C1, and lone surrogates, which have no UTF-8 form.
_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_id(field: str, identifier: str) -> None:
    """Raise FrameError unless *identifier* may occur in a frame; call it where an id enters the system,
    before anything is produced.

    >>> check_id("client_id", "team/worker")
    Traceback (most recent call last):
    holdfast.errors.FrameError: client_id 'team/worker': '/' is not allowed: a frame with it is unreadable for every member; rename it
    """  # noqa: E501
    if not identifier:
        raise FrameError(f"{field} is empty: give it a name", FrameReason.ID)
    if found := _FORBIDDEN.search(identifier):
        raise FrameError(
            f"{field} {identifier[:80]!r}: {found[0]!r} is not allowed: a frame with it is unreadable for"
            " every member; rename it",
            FrameReason.ID,
        )


def _check_number(kind: str, field: str, number: int, low: int, high: int) -> None:
    if not low <= number < high:
        raise FrameError(f"{kind}: {field} {number} is not within {low}..{high - 1}", FrameReason.RANGE)


def coordination_partition(topic: str, partitions: int) -> int:
    """Return the partition of the coordination topic, out of *partitions*, that carries everything about
    *topic*.

    Give it explicitly when producing; no partitioner chooses it. All groups and all partitions of a topic
    share it.

    >>> [coordination_partition(topic, 4) for topic in ("test1", "test2", "test3", "unknown")]
    [2, 1, 2, 1]
    """
    prefix = hashlib.md5(topic.encode(), usedforsecurity=False).digest()[:8]
    return int.from_bytes(prefix, "little") % partitions


def topic_mark(topic_id: str) -> int | None:
    """Return the mark of the topic with this id, as Kafka's clients write it; None for no id.

    It stands for the id in a frame's version: 31 bits of its MD5. Two topics of one name share a mark once
    in two thousand million.

    >>> topic_mark("0DKTYH8pQ1-XRnKZyc2kgA"), topic_mark("AAAAAAAAAAAAAAAAAAAAAA"), topic_mark("")
    (2047279616, None, None)
    """
    if not topic_id or topic_id == NO_TOPIC_ID:
        return None
    prefix = hashlib.md5(topic_id.encode(), usedforsecurity=False).digest()[:8]
    return UNMARKED + 1 + int.from_bytes(prefix, "little") % (LIMIT_MARK - UNMARKED - 1)


def mark_in(frame: Frame) -> int | None:
    """Return the mark of the topic whose offset *frame* carries; None where it does not say."""
    return frame.version if UNMARKED < frame.version < LIMIT_MARK else None
