"""Workers in memory with real web ports, two tables on them, and clients that ask: the fixtures that tests of
`TableClient` share.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import msgspec
import pytest

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.clients.tables.query_router import QueryRouter, _Setback
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import TableClaims
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from tests.support.patience import SCENARIO_S

WORKER_WAIT_S = 0.1


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    note: str = ""


def fold(rows: Any, event: Any, at_ms: int) -> None:
    """These rows are put by the tests."""


TOTALS: Processor[Any, Total] = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Total)
ROUTED: Processor[Any, Total] = Processor(
    name="routed",
    source="orders",
    decode=bytes,
    fold=fold,
    row=Total,
    route=lambda key, count: None if key == "*" else int(key) % count,
)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), SCENARIO_S))

    return run


def settings(**changes: Any) -> Settings:
    return Settings(**{"app": "shop", "web_port": free_ports(1)[0], **changes})


def one_worker(partitions: int = 1, **changes: Any) -> MemoryWorker:
    return MemoryWorker(settings(), [TOTALS, ROUTED], partitions=partitions, **changes)


def client(*workers: MemoryWorker, directory: FixedDirectory | None = None, **changes: Any) -> TableClient:
    known = FixedDirectory([worker.claims() for worker in workers]) if directory is None else directory
    return TableClient(Settings(app="shop", **changes), [TOTALS, ROUTED], directory=known)


def asked(worker: MemoryWorker, outcome: str | None = None) -> int:
    """Return how many queries the worker has had."""
    return sum(count for (_, _, told), count in worker.metrics.queries.items() if outcome in (None, told))


@contextmanager
def deadline_after(rounds: int = 2) -> Iterator[None]:
    """Let the deadline of a question come when its client got *rounds* causes for having no answer.

    However slow the machine is, it has got them; and no test waits for a deadline. Workers wait for an offset
    for WORKER_WAIT_S, and the client for their word for as long as it ever does.
    """
    told = 0
    one_round, left_s, url_of = QueryRouter._round, QueryRouter._left_s, QueryRouter._url

    async def counted(router: QueryRouter, *named: Any) -> Any:
        nonlocal told
        met = await one_round(router, *named)
        told += isinstance(met, _Setback) and "did not answer" not in str(met.error)
        return met

    def left(router: QueryRouter, deadline_s: float) -> float:
        return 0.0 if told >= rounds else left_s(router, deadline_s)

    def hurried(router: QueryRouter, url: str, question: Any, attempt_s: float) -> Any:
        return url_of(router, url, question, min(attempt_s, WORKER_WAIT_S))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(QueryRouter, "_round", counted)
        patched.setattr(QueryRouter, "_left_s", left)
        patched.setattr(QueryRouter, "_url", hurried)
        yield


def claiming(*partitions: int, version: int = 1) -> dict[str, TableClaims]:
    """Return the announcement of a worker that owns these partitions of TOTALS."""
    return {"totals": TableClaims(version=version, partitions=1, active=list(partitions))}


class Hanging:
    """A worker that takes connections and requests and never answers, as a stopped process does."""

    def __init__(self) -> None:
        self.asked = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._hang, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _hang(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        self._writers.append(writer)
        await reader.read()
