"""Marks of a progress record's rows besides their numbers, as a header of it.

    holdfast-row-marks: 5f0c2d9a51be7703/5021/0/0/4/ and four bytes a row

A number alone identifies no row: a table that was emptied with its numbers, restored from a backup, or lost
its last commits numbers other rows alike. So a row counts as published only where its mark is that of the
record. The header begins with which outbox it was (the token in its database), the highest number ever
published, from which number and when numbers last began again (0 for never), and how many bytes each mark
has. The marks follow in the order of `rows`. Harvesters that do not know the header go by numbers alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from holdfast.core.engine.declared.processor import Headers
from holdfast.core.outbox.created_times import LIMIT_TIMES, read_created
from holdfast.errors import DecodeError

MARKS: Final = "holdfast-row-marks"
LIMIT_MARKS_BYTES: Final = 200_000
"""Of all marks of one record; where there are many rows, each mark is shorter."""
_FORMS: Final = {4: "I", 2: "H", 1: "B"}
_HEAD = re.compile(rb"([0-9a-f]{0,32})/([0-9]{1,19})/([0-9]{1,19})/([0-9]{1,15})/([124])/")
WHOLE: Final = 0xFFFFFFFF
ALL_KNOWN: Final = WHOLE << 32

Known = int
"""A mark in the lower 32 bits, and above them which of its bits are known."""


def row_mark(key: bytes | None, value: bytes | None, created_ms: int | None, headers: Headers) -> int:
    """Return the mark of a row: 32 bits of its content and of when it was created, or of its headers, among
    which is the id of the event, where its layout has no time.

    >>> row_mark(b"k", b"v", 1764072000000, ()) == row_mark(b"k", b"v", 1764072000001, ())
    False
    """
    began = crc32(repr(headers).encode()) if created_ms is None else created_ms & WHOLE
    return crc32(value or b"", crc32(key or b"", began))


def known(mark: int) -> Known:
    """Return *mark* as one whose bits are all known."""
    return mark | ALL_KNOWN


def fits(mark: int, expected: Known) -> bool:
    """Return whether a row with *mark* is the one that is *expected*.

    >>> fits(0x12345678, known(0x12345678)), fits(0x12345678, known(0x12345679)), fits(0x12345678, 0x78 | 0xff << 32)
    (True, False, True)
    """  # noqa: E501
    return (mark ^ expected) & (expected >> 32) == 0


class RowMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The header, read. *outbox* is empty where the database has no token."""

    outbox: str = ""
    highest: int = 0
    again_from: int = 0
    again_ms: int = 0
    marks: Sequence[Known] = ()

    def encode(self) -> tuple[str, bytes]:
        """Return the header, its marks cut to what there is room for."""
        count = len(self.marks)
        width = next((each for each in (4, 2) if count * each <= LIMIT_MARKS_BYTES), 1)
        cut = (1 << 8 * width) - 1
        head = f"{self.outbox}/{self.highest}/{self.again_from}/{self.again_ms}/{width}/".encode()
        return MARKS, head + struct.pack(f"<{count}{_FORMS[width]}", *[each & cut for each in self.marks])


def read_marks(headers: Headers, rows: int) -> RowMarks | None:
    """Return the marks of a progress record of so many *rows*; None if it has no such header, as in an
    earlier release. DecodeError if that is malformed.
    """
    told = next((value for name, value in headers if name == MARKS), None)
    if told is None:
        return None
    head = _HEAD.match(told)
    width = int(head[5]) if head else 0
    if head is None or len(told) - head.end() != rows * width:
        raise DecodeError(f"{MARKS} {told[:60]!r}: not the marks of {rows} row(s)")
    bits = (1 << 8 * width) - 1 << 32
    marks = [each | bits for each in struct.unpack_from(f"<{rows}{_FORMS[width]}", told, head.end())]
    return RowMarks(
        outbox=head[1].decode(),
        highest=int(head[2]),
        again_from=int(head[3]),
        again_ms=int(head[4]),
        marks=marks,
    )


class WrittenBefore(msgspec.Struct, frozen=True):
    """Times in a progress record without marks: when the rows of its transaction were created, as far as it
    names that, and when it was written itself.
    """

    created_ms: frozenset[int]
    at_ms: int

    def names(self, created_ms: int | None) -> bool:
        """Return whether a row of a number that the record names, created then, can be the one that it
        means: a row that is younger than the record is another.

        >>> before = WrittenBefore(frozenset({1_010}), 1_000)
        >>> before.names(1_010), before.names(1_011), before.names(900), before.names(None)
        (True, False, True, True)
        """
        if created_ms is None or created_ms <= self.at_ms:
            return True
        return created_ms - created_ms % self._step() in self.created_ms

    def _step(self) -> int:
        """Return to how many ms the times are rounded down: they are where there are very many."""
        step = 1
        while len(self.created_ms) >= LIMIT_TIMES // 10 and not any(
            each % (step * 10) for each in self.created_ms
        ):
            step *= 10
        return step


def written_before(headers: Headers, at_ms: int) -> WrittenBefore:
    """Return the times of a record without marks, from its other headers."""
    try:
        times = frozenset(each for each, _ in read_created(headers))
    except DecodeError:
        times = frozenset()
    return WrittenBefore(times, at_ms)
