"""The stored form of rows and timers, in RocksDB and in the changelog alike.

A key's first byte is its kind, so that a scan of rows meets nothing else:

    00 name            bookkeeping; `00 applied` is the position marker, see `engine/positions.py`
    01 key             a timer: value is the due time, 8 bytes big-endian, ms
    02 key             a row: value is the format byte, then msgpack
    03 key             a timer of the tick clock, as those of 01
    04 table 00 key    a row of a named table of the processor, as those of 02; a table's name has no 00
    05 key             a timer of the event clock, as those of 01

All integers are signed 64 bit unless said. Keys are UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Generic, Optional, TypeVar

import msgspec

from holdfast.core.engine.state.row_types import has_lookalikes, is_plain, nests_without_end
from holdfast.core.untrusted import UNFIT
from holdfast.core.untrusted.nesting import LIMIT_DEPTH, is_shallow_row
from holdfast.errors import ChangelogError, FoldError

R = TypeVar("R")

META, WAKE, ROW, TICK, NAMED, EVENT = b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"
ROW_KINDS = (ROW, NAMED)
TIMER_KINDS = (WAKE, TICK, EVENT)
APPLIED = META + b"applied"
FORMAT = b"\x01"

_DUE = Struct(">q")


def row_key(key: str) -> bytes:
    """Return the stored key of row *key*; raises FoldError if it is not text."""
    return ROW + _utf8(key)


def row_keys(keys: Iterable[str]) -> list[bytes]:
    """Return the stored keys of rows; raises FoldError if one is not text."""
    try:
        return [ROW + each for each in map(str.encode, keys)]
    except (TypeError, UnicodeEncodeError):
        return list(map(row_key, keys))  # says which


def table_prefix(table: str) -> bytes:
    """Return the prefix of the stored keys of a table's rows; "" is the processor's own table.

    >>> table_prefix(""), table_prefix("sessions")
    (b'\\x02', b'\\x04sessions\\x00')
    """
    return NAMED + table.encode() + b"\x00" if table else ROW


def key_in_table(table: str, key: str) -> bytes:
    """Return the stored key of row *key* of a table; raises FoldError if it is not text."""
    return table_prefix(table) + _utf8(key)


def place_of_row(stored: bytes) -> tuple[str, str]:
    """Return the table and key of a stored row; of a timer, its key alone.

    >>> place_of_row(b"\\x02ada"), place_of_row(b"\\x04sessions\\x00ada"), place_of_row(b"\\x01ada")
    (('', 'ada'), ('sessions', 'ada'), ('', 'ada'))
    """
    if stored[:1] != NAMED:
        return "", text_key(stored)
    table, _, key = text_key(stored).partition("\x00")
    return table, key


def wake_key(key: str) -> bytes:
    """Return the stored key of the timer of *key*; raises FoldError if it is not text."""
    return WAKE + _utf8(key)


def tick_key(key: str) -> bytes:
    """Return the stored key of the tick timer of *key*; raises FoldError if it is not text."""
    return TICK + _utf8(key)


def event_key(key: str) -> bytes:
    """Return the stored key of the event timer of *key*; raises FoldError if it is not text."""
    return EVENT + _utf8(key)


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise FoldError(f"key {key!r:.200} is not text: keys are str without lone surrogates") from error


def text_key(stored: bytes) -> str:
    """Return the key of a stored row or timer."""
    try:
        return stored[1:].decode()
    except UnicodeDecodeError as error:
        raise ChangelogError(f"key {stored[:80]!r} is not text: no worker wrote it") from error


def encode_due(at_ms: int) -> bytes:
    """Return the stored value of a timer due at *at_ms*."""
    return _DUE.pack(at_ms)


def decode_due(value: bytes) -> int:
    """Return the time in ms at which a stored timer is due."""
    if len(value) != _DUE.size:
        raise ChangelogError(f"a timer of {len(value)} bytes, it has {_DUE.size}: no worker wrote it")
    return int(_DUE.unpack(value)[0])


def decode_untyped(stored: bytes) -> Any:
    """Return a stored row of which no type is known, as lists, maps and plain values.

    >>> decode_untyped(RowCodec(tuple[int, str]).encode((1, "a")))
    [1, 'a']
    """
    if stored[:1] != FORMAT:
        raise ChangelogError(f"row of format {stored[:1].hex() or 'none'}, this version reads {FORMAT.hex()}")
    try:
        return msgspec.msgpack.decode(stored[1:])
    except UNFIT as error:
        raise ChangelogError(f"row is malformed ({error}): no worker wrote it") from error


class RowCodec(Generic[R]):
    """Turns rows of one type into bytes and back. Equal rows give equal bytes: sets and dicts are written
    sorted.

    `plain` is True if a row of this type reads back exactly as it was given, `lookalikes` if one may hold a
    value that is written the same and can be changed in place (see `rowtypes`).

    >>> class Total(msgspec.Struct, frozen=True):
    ...     count: int = 0
    >>> codec = RowCodec(Total)
    >>> codec.decode(codec.encode(Total(3)))
    Total(count=3)
    """

    __slots__ = ("_decode", "_decode_all", "_encode", "lookalikes", "plain")

    def __init__(self, row: Any) -> None:
        self.plain, self.lookalikes = is_plain(row), has_lookalikes(row)
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        if nests_without_end(row):
            self._encode = _shallow(self._encode)
        self._decode = msgspec.msgpack.Decoder(row).decode
        # a row may be a name in quotes
        self._decode_all = msgspec.msgpack.Decoder(list[Optional[row]]).decode  # noqa: UP045

    def encode(self, row: R) -> bytes:
        return FORMAT + self._encode(row)

    def encode_all(self, rows: Iterable[R]) -> list[bytes]:
        return [FORMAT + encoded for encoded in map(self._encode, rows)]

    def exact_size(self, rows: list[R | None]) -> int | None:
        """Return the size of *rows* together, in bytes, or None when a later reader would find others in
        them; raises FoldError when no reader could decode them. None is no row.
        """
        encoded = self._encode(rows)
        try:
            found = self._decode_all(encoded)
        except msgspec.DecodeError as error:
            raise _unreadable(error) from error
        return len(encoded) if found == rows else None

    def canonical(self, row: R) -> R:
        """Return *row* as any later reader will find it; raises FoldError when none could read it.

        What a type takes in more than one form comes back in the stored one (a float for an int, dicts and
        sets in order), so that a fold meets the same row before and after a restart.

        >>> class Mean(msgspec.Struct, frozen=True):
        ...     of: float
        >>> RowCodec(Mean).canonical(Mean(1))
        Mean(of=1.0)
        """
        try:
            read: R = self._decode(self._encode(row))
        except msgspec.DecodeError as error:
            raise _unreadable(error) from error
        return read

    def size(self, rows: list[R]) -> int:
        """Return the size of *rows* together, in bytes; for a single row, exactly its stored size."""
        return len(self._encode(rows))

    def decode(self, value: bytes) -> R:
        """Return the row in *value*; raises ChangelogError when another format, or not this type of row,
        was written.
        """
        if value[:1] != FORMAT:
            raise ChangelogError(
                f"row of format {value[:1].hex() or 'none'}, this version reads {FORMAT.hex()}: upgrade, or"
                " rebuild the table"
            )
        try:
            row: R = self._decode(memoryview(value)[1:])
        except UNFIT as error:
            raise ChangelogError(
                f"row does not fit its type ({error}): raise the processor's version when the row changes"
            ) from error
        return row


def _shallow(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return *encode*, which raises FoldError for what nests so deep that some reader could not read it."""

    def encode_shallow(row: Any) -> bytes:
        try:
            encoded = encode(row)
            shallow = is_shallow_row(encoded)
        except RecursionError:
            shallow = False
        if not shallow:
            raise FoldError(
                f"row nests more than {LIMIT_DEPTH} deep, and not every reader could read it again: keep what"
                " it nests in rows of their own"
            )
        return encoded

    return encode_shallow


def _unreadable(error: msgspec.DecodeError) -> FoldError:
    return FoldError(f"row does not fit its declared type and could not be read again: {error}")


NOTHING_APPLIED = -1


def digest(items: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the SHA-256 of rows and timers given in key order; bookkeeping keys are left out.

    Two states are equal exactly when their digests are (each length is part of the hashed bytes).

    >>> digest([(b"\\x02a", b"1")]) == digest([(b"\\x00applied", b"x"), (b"\\x02a", b"1")])
    True
    >>> digest([(b"\\x02a", b"1")]) == digest([(b"\\x02", b"a1")])
    False
    """
    import hashlib  # brings most of OpenSSL, which few who read rows need

    sha = hashlib.sha256()
    for key, value in items:
        if key[:1] != META:
            sha.update(b"%d:%d:" % (len(key), len(value)) + key + value)
    return sha.hexdigest()


def hashed(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes that `digest` hashes for *items*, which hold no bookkeeping keys: for readers of a state
    in slices.

    >>> import hashlib
    >>> hashlib.sha256(hashed([(b"\\x02a", b"1")]) + hashed([(b"\\x02b", b"")])).hexdigest() == digest([(b"\\x02a", b"1"), (b"\\x02b", b"")])
    True
    """  # noqa: E501
    return b"".join([b"%d:%d:%b%b" % (len(key), len(value), key, value) for key, value in items])


def combine_digests(partitions: Iterable[tuple[int, str]]) -> str:
    """Return one digest for a whole table from (partition, digest) pairs, in any order."""
    import hashlib  # brings most of OpenSSL, which few who read rows need

    sha = hashlib.sha256()
    for partition, each in sorted(partitions):
        sha.update(f"{partition}:{each};".encode())
    return sha.hexdigest()
