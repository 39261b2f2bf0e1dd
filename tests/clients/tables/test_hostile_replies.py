"""A false worker may answer without end, or with a bomb: the client holds a bounded piece of the answer and
raises a typed error.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import repeat

import pytest

from holdfast.clients.tables.query_router import LIMIT_READ_BYTES
from holdfast.core.engine.query_wire import (
    LIMIT_KEYS,
    LIMIT_PAGE_ROWS,
    LIMIT_REPLY_BYTES,
    PageReply,
    RowsReply,
    decode_page_reply,
    decode_rows_reply,
    encode,
)
from tests.clients.tables.tabling import TOTALS, Total, client, one_worker, scenario
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

MIB = 1 << 20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT_PEAK_BYTES = 4 * LIMIT_READ_BYTES
"""The most memory that one answer may cost the client: the pieces, their join, and the buffers of the sockets
and the parser.
"""


def bomb() -> bytes:
    packed = gzip.compress(bytes(100 * MIB), 1)
    return OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "a body without end": (OK + b"\r\n", bytes(64 << 10)),
    "a body that is announced too long": (OK + b"Content-Length: 99999999999\r\n\r\n", bytes(64 << 10)),
    "chunks without end": (CHUNKED, b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
    "small chunks without end": (CHUNKED, b"1\r\nx\r\n" * 10_000),
    "an extension of a chunk without end": (CHUNKED + b"1;", b"x" * (64 << 10)),
    "trailers without end": (CHUNKED + b"0\r\n", b"X-A: b\r\n" * 8_000),
    "headers without end": (OK, b"X-A: b\r\n" * 8_000),
    "one header without end": (OK + b"X-A: ", b"x" * (64 << 10)),
    "a status without end": (b"HTTP/1.1 200 ", b"x" * (64 << 10)),
    "another answer will follow, without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
    "an error without end": (b"HTTP/1.1 503 Busy\r\n\r\n", bytes(64 << 10)),
    "a gzip bomb": (bomb(), b""),
}
"""The beginning of an answer, sent once, and the piece that is sent until the client hangs up."""

_TOO_LONG = f"more than {LIMIT_READ_BYTES} bytes, which no worker does"
REFUSED = {
    **dict.fromkeys(
        (
            "a body without end",
            "a body that is announced too long",
            "chunks without end",
            "an error without end",
        ),
        _TOO_LONG,
    ),
    "a gzip bomb": "what this client cannot read",
}
"""Answers that are refused for good at once; the others are asked again until the deadline."""
IN_VAIN_S = 1.0

ASKER = """
import asyncio, json, resource, sys
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.core.engine.query_wire import TableClaims, WorkerClaims
from holdfast.errors import HoldfastError
from tests.clients.tables.tabling import TOTALS, client

async def main():
    began, told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for url, timeout_s in zip(sys.argv[1::2], map(float, sys.argv[2::2])):
        claims = WorkerClaims(url=url, generation=1, started_ms=1, at_ms=1, tables={"totals": TableClaims(version=1, partitions=1, active=[0], standby=[])})
        async with client(directory=FixedDirectory([claims])) as tables:
            try:
                error = repr(await tables.get(TOTALS, "ada", partition=0, timeout_s=timeout_s))
            except HoldfastError as met:
                error = type(met).__name__ + ": " + str(met)
        told.append([error, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began) * 1024])
    print(json.dumps(told))

asyncio.run(main())
"""  # noqa: E501


async def _answer(
    first: bytes, more: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    endless: Iterator[bytes] = repeat(more) if more else iter(())
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first)
        await writer.drain()
        for piece in endless:
            writer.write(piece)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # the client has hung up
    finally:
        writer.close()


@pytest.mark.process
def test_an_answer_without_end_costs_the_asker_a_bounded_piece_of_it() -> None:
    async def run() -> list[tuple[str, int]]:
        servers = [
            await asyncio.start_server(partial(_answer, *what), "127.0.0.1", 0) for what in ANSWERS.values()
        ]
        asked: list[str] = []
        for name, server in zip(ANSWERS, servers, strict=True):
            asked += (
                f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                str(DEADLINE_S if name in REFUSED else IN_VAIN_S),
            )
        asker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            ASKER,
            *asked,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            out, _ = await asyncio.wait_for(asker.communicate(), DEADLINE_S)
        finally:
            if asker.returncode is None:
                asker.kill()
                await asker.wait()
            for server in servers:
                server.close()
        assert asker.returncode == 0
        return [(error, peak_bytes) for error, peak_bytes in json.loads(out)]

    told = dict(zip(ANSWERS, asyncio.run(run()), strict=True))
    for name, (error, _) in told.items():
        assert error.partition(":")[0] in {"QueryError", "NotReadyError"}, f"{name}: {error}"
    for name, said in REFUSED.items():
        assert said in told[name][0], told[name]
    assert max(peak_bytes for _, peak_bytes in told.values()) < LIMIT_PEAK_BYTES, told


def test_an_answer_of_more_rows_than_are_ever_asked_for_is_refused_before_it_is_unpacked() -> None:
    told = {
        "table": "totals",
        "version": 1,
        "partition": 0,
        "role": "active",
        "as_of_offset": 5,
        "stream_ms": 7,
    }
    assert len(decode_rows_reply(encode(RowsReply(**told, values=[None] * LIMIT_KEYS))).values) == LIMIT_KEYS  # type: ignore[arg-type]
    page = encode(PageReply(**told, rows=[("", b"")] * LIMIT_PAGE_ROWS, after=None))  # type: ignore[arg-type]
    assert len(decode_page_reply(page).rows) == LIMIT_PAGE_ROWS
    with pytest.raises(ValueError, match="length <= 10000"):
        decode_rows_reply(encode(RowsReply(**told, values=[None] * (LIMIT_KEYS + 1))))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length <= 10000"):
        decode_page_reply(encode(PageReply(**told, rows=[("", b"")] * (LIMIT_PAGE_ROWS + 1), after=None)))  # type: ignore[arg-type]


@pytest.mark.long
@scenario
async def test_the_largest_page_that_a_worker_sends_is_read() -> None:
    """Keys count in bytes: in characters, those of four bytes made a page four times too large."""
    async with one_worker() as worker, client(worker) as tables:
        for number in range(5_000):
            worker.put(TOTALS, 0, f"{number:05}" + "\N{GRINNING FACE}" * 1_000, Total(number), offset=number)
        found = [
            answer.value.count
            async for answer in tables.scan(
                TOTALS, partition=0, page_rows=LIMIT_PAGE_ROWS, timeout_s=DEADLINE_S
            )
        ]
    assert found == list(range(5_000))
    assert 2 * LIMIT_REPLY_BYTES < 5_000 * 4_000
