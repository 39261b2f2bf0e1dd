"""The compressions of a record batch, by libraries, and bounded: what unpacks to more than a limit is an
error, not a full memory.

cramjam is imported only when a batch is packed or unpacked: its 1.6 MB are a twentieth of an embedded broker.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, assert_never

from holdfast.core.kafka.wire import WireReader, WireReason
from holdfast.errors import WireError

LIMIT_UNPACKED_BYTES = 64 << 20
_FIRST_BYTES = 1 << 16
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 << 10
_GZIP_BITS = 31
_TOO_SMALL = "whole buffer"
_FEW_MEMBERS = 100
"""Members of a gzip file after so many are unpacked by one call, which holds up no other thread: zlib takes
two turns of the interpreter for each.
"""
_FIRST_STEP = 64
"""So many bytes of a gzip member are unpacked first, then twice as many each time: the bytes after a member
are copied when it ends, and are never many more than the member.
"""


class Compression(IntEnum):
    """The compression of a batch's records; the number is in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(kind: Compression, data: bytes) -> bytes:
    """Return *data* packed as Kafka's Java clients pack it: snappy in xerial's frames, lz4 in independent
    blocks.
    """
    import cramjam

    match kind:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            packer = zlib.compressobj(wbits=_GZIP_BITS)
            return packer.compress(data) + packer.flush()
        case Compression.SNAPPY:
            out = bytearray(_XERIAL_HEADER)
            for at in range(0, len(data), _XERIAL_BLOCK):
                block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
                out += len(block).to_bytes(4, "big") + block
            return bytes(out)
        case Compression.LZ4:
            # Kafka's brokers refuse blocks that depend on each other.
            frames = cramjam.lz4.Compressor(level=9, content_checksum=False, block_linked=False)
            frames.compress(data)
            return bytes(frames.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3))
        case _:
            assert_never(kind)


def decompress(
    kind: Compression,
    data: bytes,
    *,
    limit_bytes: int = LIMIT_UNPACKED_BYTES,
    limit_parts: int | None = None,
    base: int = 0,
) -> bytes:
    """Return *data* unpacked; WireError (at *base*, or within) when it is corrupt, takes more than
    *limit_bytes*, or consists of more than *limit_parts* (gzip members, blocks of snappy).

    The time is linear in the sizes of both, however many parts there are: a part takes 2 us besides its
    bytes.

    >>> decompress(Compression.ZSTD, compress(Compression.ZSTD, b"abc" * 9), limit_bytes=27)[:6]
    b'abcabc'
    """
    if kind is Compression.NONE:
        return data
    import cramjam

    try:
        match kind:
            case Compression.GZIP:
                return _gunzip(data, limit_bytes, limit_parts, base)
            case Compression.SNAPPY:
                return _unsnappy(data, limit_bytes, limit_parts, base)
            case Compression.LZ4:
                return _grown(cramjam.lz4.decompress_into, data, limit_bytes, base)
            case Compression.ZSTD:
                return _grown(cramjam.zstd.decompress_into, data, limit_bytes, base)
            case _:
                assert_never(kind)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise WireError(f"{kind.name.lower()}: {error}", offset=base, reason=WireReason.COMPRESSION) from None


def _too_large(limit_bytes: int, base: int) -> WireError:
    return WireError(
        f"the records unpack to more than {limit_bytes} bytes", offset=base, reason=WireReason.SIZE
    )


def _grown(unpack: Callable[[bytes, Any], int], data: bytes, limit_bytes: int, base: int) -> bytes:
    """Unpack into a buffer that grows only after it was really filled: what the data say of their size is
    not believed.
    """
    import cramjam

    size = min(limit_bytes, max(_FIRST_BYTES, 4 * len(data)))
    while True:
        out = bytearray(size)
        try:
            return bytes(memoryview(out)[: unpack(data, out)])
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise
        if size >= limit_bytes:
            raise _too_large(limit_bytes, base)
        size = min(limit_bytes, 4 * size)


def _check_parts(parts: int, limit_parts: int | None, base: int) -> None:
    if limit_parts is not None and parts > limit_parts:
        raise WireError(
            f"the records are packed in more than {limit_parts} parts", offset=base, reason=WireReason.SIZE
        )


def _gunzip(data: bytes, limit_bytes: int, limit_parts: int | None, base: int) -> bytes:
    import cramjam

    out, view, at, members = bytearray(), memoryview(data), 0, 0
    while at < len(view):  # a gzip file may have several members, one after the other
        members += 1
        _check_parts(members, limit_parts, base)
        if members > _FEW_MEMBERS and limit_parts is None:
            rest = bytes(view[at:])
            try:
                out += _grown(cramjam.gzip.decompress_into, rest, limit_bytes - len(out), base)
            except WireError:
                raise _too_large(limit_bytes, base) from None
            break
        at = _gunzip_member(view, at, out, limit_bytes, base)
    return bytes(out)


def _gunzip_member(view: memoryview, at: int, out: bytearray, limit_bytes: int, base: int) -> int:
    """Add what the member at *at* holds to *out*; return where it ends."""
    member, step = zlib.decompressobj(wbits=_GZIP_BITS), _FIRST_STEP
    while not member.eof:
        if at >= len(view):
            raise zlib.error("incomplete stream")
        packed = view[at : at + step]
        out += member.decompress(packed, limit_bytes - len(out) + 1)
        if len(out) > limit_bytes:
            raise _too_large(limit_bytes, base)
        at, step = at + len(packed), 2 * step
    return at - len(member.unused_data)


def _unsnappy(data: bytes, limit_bytes: int, limit_parts: int | None, base: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _snappy_block(data, limit_bytes, base)
    out, reader, blocks = bytearray(), WireReader(data, base=base), 0
    reader.raw(len(_XERIAL_HEADER), "xerial header")
    while reader.left:
        blocks += 1
        _check_parts(blocks, limit_parts, base)
        at = reader.at
        size = reader.int32("length of a snappy block")
        if size < 0:
            raise reader.error(f"a snappy block of {size} bytes", WireReason.LENGTH, at)
        out += _snappy_block(reader.raw(size, "snappy block"), limit_bytes - len(out), base + at)
    return bytes(out)


def _snappy_block(data: bytes, limit_bytes: int, base: int) -> bytes:
    import cramjam

    told = int(cramjam.snappy.decompress_raw_len(data))
    if told > limit_bytes:
        raise _too_large(limit_bytes, base)
    # Snappy writes at most 64 bytes for three of its own: a larger promise is a lie, and no memory is made
    # for it.
    if told > 64 * len(data):
        raise WireError(
            f"snappy: {len(data)} bytes cannot hold {told}", offset=base, reason=WireReason.COMPRESSION
        )
    out = bytearray(told)
    written = int(cramjam.snappy.decompress_raw_into(data, out))
    return bytes(out[:written])
