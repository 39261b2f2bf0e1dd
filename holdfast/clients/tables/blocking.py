"""`TableClient` for callers without an event loop of their own: scripts, threads, the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from holdfast.clients.tables.answers import Answer, AtLeast, Bound
from holdfast.clients.tables.arguments import check_page_rows, check_timeout
from holdfast.clients.tables.client import PAGE_ROWS, TIMEOUT_S, TableClient
from holdfast.clients.tables.directory import Directory
from holdfast.config import Settings
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.streams.windowing.rows import WindowResult
from holdfast.loop_thread import CLOSE_S, LoopThread

T = TypeVar("T")
R = TypeVar("R")


class BlockingTableClient:
    """The same reads as a `TableClient`, each waiting for its answer.

    Use it with `with`, from any number of threads.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Iterable[Processor[Any, Any]],
        *,
        earlier: Iterable[Processor[Any, Any]] = (),
        directory: Directory | None = None,
    ) -> None:
        self._client = TableClient(settings, processors, earlier=earlier, directory=directory)
        self._thread = LoopThread("holdfast-tables")
        self._wait = self._thread.wait

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._client.__aenter__(), CLOSE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop(self._client.__aexit__(kind, error, traceback))

    @overload
    def get(
        self,
        table: Processor[Any, R] | Global[R],
        key: str,
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> Answer[R | None]: ...
    @overload
    def get(
        self,
        table: str,
        key: str,
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> Answer[Any]: ...
    def get(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        key: str,
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> Answer[Any]:
        """Return the row of *key*; its value is None when there is none."""
        check_timeout(timeout_s)
        asked = self._client.get(
            table,
            key,
            partition=partition,
            at_least=at_least,
            timeout_s=timeout_s,
            max_staleness=max_staleness,
        )
        return self._wait(asked, timeout_s)

    @overload
    def get_many(
        self,
        table: Processor[Any, R] | Global[R],
        keys: Collection[str],
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> dict[str, Answer[R | None]]: ...
    @overload
    def get_many(
        self,
        table: str,
        keys: Collection[str],
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> dict[str, Answer[Any]]: ...
    def get_many(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        keys: Collection[str],
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> dict[str, Answer[Any]]:
        """Return the answer for each of *keys*."""
        check_timeout(timeout_s)
        asked = self._client.get_many(
            table,
            keys,
            partition=partition,
            at_least=at_least,
            timeout_s=timeout_s,
            max_staleness=max_staleness,
        )
        return self._wait(asked, timeout_s)

    @overload
    def scan(
        self,
        table: Processor[Any, R] | Global[R],
        prefix: str = "",
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[Answer[R]]: ...
    @overload
    def scan(
        self,
        table: str,
        prefix: str = "",
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[Answer[Any]]: ...
    def scan(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        prefix: str = "",
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[Answer[Any]]:
        """Yield the rows whose key begins with *prefix*; *timeout_s* is for each page."""
        check_timeout(timeout_s)
        check_page_rows(page_rows)
        rows = self._client.scan(
            table,
            prefix,
            partition=partition,
            at_least=at_least,
            timeout_s=timeout_s,
            max_staleness=max_staleness,
            page_rows=page_rows,
        )
        yield from self._paged(rows, page_rows, timeout_s)

    def windows(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        key: str | None = None,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[Answer[WindowResult[Any]]]:
        """Yield the windows of *key*, or of all keys, that start at or after *since_ms* and before
        *until_ms*; *timeout_s* is for each page.
        """
        check_timeout(timeout_s)
        pages = self._client.window_pages(
            table,
            key,
            since_ms=since_ms,
            until_ms=until_ms,
            partition=partition,
            at_least=at_least,
            timeout_s=timeout_s,
            max_staleness=max_staleness,
            page_rows=page_rows,
        )
        while (page := self._wait(_page(pages), timeout_s * 2)) is not None:
            yield from page

    def _paged(self, rows: AsyncIterator[T], page_rows: int, timeout_s: float) -> Iterator[T]:
        while True:
            batch = self._wait(_next(rows, page_rows), timeout_s * 2)
            yield from batch
            if len(batch) < page_rows:
                return


async def _next(rows: AsyncIterator[T], count: int) -> list[T]:
    """Take up to *count* rows, so that a hop between threads is paid once a page and not once a row."""
    batch: list[T] = []
    async for row in rows:
        batch.append(row)
        if len(batch) >= count:
            break
    return batch


async def _page(pages: AsyncIterator[list[T]]) -> list[T] | None:
    """Take one page, None after the last."""
    return await anext(pages, None)
