"""Bodies of answers, which come in as many pieces as networks make of them."""

from __future__ import annotations

from aiohttp import ClientResponse


async def whole_body(response: ClientResponse, limit_bytes: int) -> bytes:
    """Return the body of an answer; ValueError for one of more than *limit_bytes*, of which no more is
    read.
    """
    pieces, size_bytes = list[bytes](), 0
    async for piece in response.content.iter_any():
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise ValueError(f"it sent more than {limit_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)
