"""Announcements of members of balanced groups, as bytes: read back as written, limits kept, noise refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.groups.announcements import (
    Announcement,
    AnnouncementReason,
    Beat,
    Leave,
    Summary,
    decode,
    encode,
)
from holdfast.errors import AnnouncementError
from tests.core.groups.balancing import announce
from tests.support.scale import scaled


@pytest.mark.parametrize(
    "said",
    [
        announce("a", static="s", owned=(("t", (0, 5)),), generation=3),
        announce("a", pattern="logs.*", topics=(), counts=()),
        Beat("g", "a", -1),
        Leave("g", "", "s"),
        Summary("g", 4, 2, "range", (), (), ("x",)),
    ],
    ids=lambda said: type(said).__name__,
)
def test_announcements_read_back_as_written(said: Announcement) -> None:
    assert decode(encode(said)) == said


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (announce("a/b"), AnnouncementReason.ID),
        (announce("a", topics=("u", "t")), AnnouncementReason.ORDER),
        (announce("a", counts=(("t", -1),)), AnnouncementReason.LIMIT),
        (announce("a", counts=(("t", 60_000), ("u", 60_000))), AnnouncementReason.LIMIT),
        (announce("a", owned=(("t", (1, 0)),)), AnnouncementReason.ORDER),
        (announce("a", owned=(("t", ()),)), AnnouncementReason.ORDER),
        (announce("a", assignors=()), AnnouncementReason.LIMIT),
        (announce("a", assignors=("mine",)), AnnouncementReason.LIMIT),
        (announce("a", session_ms=10), AnnouncementReason.LIMIT),
        (announce("a", pattern=""), AnnouncementReason.LIMIT),
        (Beat("", "a", 0), AnnouncementReason.ID),
        (Leave("g", ""), AnnouncementReason.ID),
        (Summary("g", -1, 2, "", (), (), ()), AnnouncementReason.LIMIT),
        (Summary("g", 1, 2, "range", (), (("a", 1),), ()), AnnouncementReason.ORDER),
    ],
)
def test_what_breaks_a_limit_is_refused_at_writing_and_at_reading(
    said: Announcement, reason: AnnouncementReason
) -> None:
    with pytest.raises(AnnouncementError) as writing:
        encode(said)
    with pytest.raises(AnnouncementError) as reading:
        decode(b"\x01" + msgspec.msgpack.encode(said))
    assert writing.value.reason == reading.value.reason == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, AnnouncementReason.NULL),
        (b"", AnnouncementReason.FORMAT),
        (b"\x02\x93", AnnouncementReason.FORMAT),
        (b"\x01", AnnouncementReason.SHAPE),
        (b"\x01\x91\xa5crowd", AnnouncementReason.SHAPE),
        (b"\x01" + msgspec.msgpack.encode(Beat("g", "a", 1)) + b"\x00", AnnouncementReason.SHAPE),
        (b"\x01" + bytes(900_000), AnnouncementReason.SIZE),
    ],
)
def test_bytes_that_are_no_announcement_are_refused_with_the_reason(
    value: bytes | None, reason: AnnouncementReason
) -> None:
    with pytest.raises(AnnouncementError) as refused:
        decode(value)
    assert refused.value.reason == reason


@given(st.binary(max_size=60))
@settings(max_examples=scaled(200))
def test_no_bytes_raise_anything_but_the_typed_error(noise: bytes) -> None:
    try:
        decode(b"\x01" + noise)
    except AnnouncementError:
        pass
