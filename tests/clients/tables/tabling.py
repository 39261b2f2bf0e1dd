"""Workers in memory behind real web ports, two tables on them, and clients that ask: what the tests of
`TableClient` share.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports

DEADLINE_S = 30.0


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
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), DEADLINE_S))

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
