"""The exceptions of decoding untrusted bytes. msgspec raises DecodeError for most faults, but not all: text
that is not UTF-8, and nesting without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

UNFIT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Everything that a decoder of msgspec raises on bytes that are not what it expects."""


def careful(decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Return *decode* as callers expect it: whatever is wrong with the bytes is a msgspec.DecodeError.

    >>> careful(msgspec.json.Decoder(list[str]).decode)(b'["\\xff"]')
    Traceback (most recent call last):
    msgspec.DecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte
    """

    def read(data: bytes) -> T:
        try:
            return decode(data)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from None

    return read
