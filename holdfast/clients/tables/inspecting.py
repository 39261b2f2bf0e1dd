"""The workers' state as digests: a partition's whole state at one offset, and its rows as they are stored.

For scripts and the command line: every call waits. A state stays pinned at its worker while the inspector is
open, so that a difference found after a long replay can still be looked at; the worker lets it go a minute
after its last request.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.clients.tables.directory import Directory, WorkersTopic
from holdfast.clients.tables.query_router import QueryRouter
from holdfast.clients.tables.questions import Question
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import (
    Inspect,
    InspectReply,
    Reply,
    Stored,
    decode_inspect_reply,
    decode_stored_reply,
    encode,
)
from holdfast.errors import HoldfastError
from holdfast.loop_thread import CLOSE_S, LoopThread

T = TypeVar("T")
A = TypeVar("A", bound=Reply)

TIMEOUT_S = 600.0
PAGE_TIMEOUT_S = 30.0
PAGE_ROWS = 5_000
RENEW_S = 15.0


class StoreInspector:
    """Asks the owners of partitions what they serve. Use it with `with`.

    with StoreInspector(settings) as inspector:
        found = inspector.digest(totals, 0)
        print(found.digest, "as of", found.as_of_offset)
    """

    def __init__(
        self, settings: Settings, *, directory: Directory | None = None, clock: Clock = system_clock
    ) -> None:
        self._clock = clock
        self._asker = QueryRouter(
            settings, WorkersTopic(settings, clock) if directory is None else directory, clock
        )
        self._thread = LoopThread("holdfast-inspector")
        self._wait = self._thread.wait
        self._renewals: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._asker.__aenter__(), CLOSE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop(self._end())

    async def _end(self) -> None:
        for renewal in self._renewals:
            renewal.cancel()
        await asyncio.gather(*self._renewals, return_exceptions=True)
        await self._asker.__aexit__(None, None, None)

    # -- asking

    def partitions(self, processor: Processor[Any, Any], timeout_s: float = PAGE_TIMEOUT_S) -> int:
        """Return how many partitions the table has."""
        return self._wait(self._asker.partitions(processor, self._clock.monotonic_s() + timeout_s), timeout_s)

    def digest(
        self, processor: Processor[Any, Any], partition: int, timeout_s: float = TIMEOUT_S
    ) -> InspectReply:
        """Return the digest of what the partition's owner serves now, all of it as of one offset; raises a
        QueryError.
        """
        body = encode(Inspect(uuid.uuid4().hex))
        found = self._wait(
            self._ask(processor, partition, "digest", body, decode_inspect_reply, timeout_s), timeout_s
        )
        self._wait(self._renew(processor, partition, body), CLOSE_S)
        return found

    def stored(self, processor: Processor[Any, Any], found: InspectReply) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows and timers that *found* is the digest of, as they are stored, in the order of
        their keys.
        """
        after: bytes | None = b""
        while after is not None:
            body = encode(Stored(inspection=found.inspection, after=after, limit=PAGE_ROWS))
            asked = self._ask(processor, found.partition, "stored", body, decode_stored_reply, PAGE_TIMEOUT_S)
            page = self._wait(asked, PAGE_TIMEOUT_S)
            yield from page.rows
            after = page.after

    def _ask(
        self,
        processor: Processor[Any, Any],
        partition: int,
        verb: str,
        body: bytes,
        decode: Callable[[bytes], A],
        timeout_s: float,
    ) -> Coroutine[Any, Any, A]:
        question = Question(
            processor=processor, partition=partition, verb=verb, body=body, at_offset=None, staleness=None
        )
        return self._asker.ask(question, decode, self._clock.monotonic_s() + timeout_s)

    async def _renew(self, processor: Processor[Any, Any], partition: int, body: bytes) -> None:
        """Keep the state pinned until the inspector is closed."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEW_S)
                with contextlib.suppress(HoldfastError):
                    await self._ask(processor, partition, "digest", body, decode_inspect_reply, RENEW_S)

        self._renewals.append(asyncio.ensure_future(renew()))
