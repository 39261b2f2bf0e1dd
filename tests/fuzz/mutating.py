"""Bytes that a decoder was not made for: any, and valid ones with something done to them."""

from __future__ import annotations

from hypothesis import strategies as st

LIMIT_BYTES = 4_096
_LENGTHS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_WORDS = (
    b"[" * 2_000,
    b"\x91" * 2_000,
    b'{"a":' * 1_000,
    b"\\ud800",
    b"\xff\xfe",
    b"9" * 400,
    b"1e999",
    b"\x00",
    b"/",
    b"%",
    b"null",
)


@st.composite
def mutated(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Draw one of *seeds* after some changes: bits flipped, cut, lengths grown, pieces taken out, doubled,
    or put in from another.
    """
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        to = draw(st.integers(at, min(len(data), at + 64)))
        match draw(st.integers(0, 7)):
            case 0 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[at:]
            case 2:
                del data[at:to]
            case 3:
                data[at:at] = data[at:to] * draw(st.integers(1, 8))
            case 4:
                size = draw(st.sampled_from((1, 2, 4, 8)))
                data[at : at + size] = (draw(st.sampled_from(_LENGTHS)) & (1 << 8 * size) - 1).to_bytes(
                    size, "big"
                )
            case 5:
                other = draw(st.sampled_from(seeds))
                begin = draw(st.integers(0, len(other)))
                data[at:to] = other[begin : begin + 64]
            case 6:
                data[at:at] = draw(st.sampled_from(_WORDS))
            case _:
                data[at:to] = draw(st.binary(max_size=32))
    return bytes(data[: max(LIMIT_BYTES, 64 << 10)])


def inputs(seeds: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Return the inputs of a decoder: mostly changed seeds, the rest any bytes."""
    return st.one_of(mutated(seeds), mutated(seeds), mutated(seeds), st.binary(max_size=512))
