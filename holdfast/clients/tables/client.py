"""Reading tables from any process: ask for a row, get it with the partition and offset it reflects.

async with TableClient(settings, [totals]) as tables:
    answer = await tables.get(totals, "ada")
    print(answer.value, "as of", answer.partition, answer.as_of_offset)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec

from holdfast.clients.tables.answers import (
    NOWHERE,
    Answer,
    AtLeast,
    Bound,
    ReadTerms,
    answering,
    answering_of_copy,
    first_found,
)
from holdfast.clients.tables.arguments import check_page, check_page_rows, check_terms
from holdfast.clients.tables.directory import Directory, WorkersTopic
from holdfast.clients.tables.query_router import QueryRouter
from holdfast.clients.tables.questions import Question
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.config.client_arguments import require_clock, require_parts, require_settings
from holdfast.core.engine.declared.global_tables import Global, globals_by_name
from holdfast.core.engine.declared.processor import Processor, by_name, table_name
from holdfast.core.engine.query_wire import (
    LIMIT_PAGE_ROWS,
    Keys,
    Page,
    PageReply,
    RowsReply,
    WindowsPage,
    decode_global_page_reply,
    decode_global_rows_reply,
    decode_page_reply,
    decode_rows_reply,
)
from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.streams.windowing.rows import (
    WindowResult,
    holds_windows,
    why_no_range,
    window_key,
    windows_of,
    windows_prefix,
)
from holdfast.errors import ConfigError, NoSuchTableError, QueryError

__all__ = ["NOWHERE", "Answer", "AtLeast", "Bound", "TableClient"]

R = TypeVar("R")
T = TypeVar("T")

TIMEOUT_S = 5.0
PAGE_ROWS = 2_000
CHUNK_KEYS = 1_000
CHUNK_BYTES = 4 << 20


class _Table:
    """A table of a processor as its asker needs it; *name* is "" for the processor's own."""

    __slots__ = ("decode", "name", "processor", "route")

    def __init__(self, processor: Processor[Any, Any], name: str) -> None:
        self.processor, self.name, self.route = processor, name, processor.route_of(name)
        codec: RowCodec[Any] = RowCodec(processor.row_of(name))
        self.decode: Callable[[bytes], Any] = codec.decode


class _GlobalTable:
    """A global table as its asker needs it."""

    __slots__ = ("decode", "name")

    def __init__(self, table: Global[Any]) -> None:
        self.name = table.name
        codec: RowCodec[Any] = RowCodec(table.row)
        self.decode: Callable[[bytes], Any] = codec.decode


class TableClient:
    """Reads the tables of *processors* from whichever worker holds each partition.

    A key's partition is the one given, else what the processor's `route` says, else that of *at_least* (a row
    changes only by records of its own partition), else every partition is asked. It is never guessed from the
    key. A table is a processor, or by name: "totals", and "totals.sessions" for its named table.

    A `Global` that one of *processors* reads is a table too, by itself or by its name. Any worker answers
    from its copy, and the answer's *positions* show how far that was; *at_least* takes offsets of the
    global's topic.

    *earlier* are earlier versions of some of *processors*. While a table moves from one version to the next,
    each question is then asked of the version that is current, or of the one that is served; the answer has
    its *version*, and its row is of that version's type.

    Every call ends by its *timeout_s*. Until then it is tried again while partitions move, restore or their
    workers restart; see the QueryErrors for what can be in the way at the end.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Iterable[Processor[Any, Any]],
        *,
        earlier: Iterable[Processor[Any, Any]] = (),
        directory: Directory | None = None,
        clock: Clock = system_clock,
    ) -> None:
        require_settings(settings)
        require_clock(clock)
        if directory is not None:
            require_parts("directory", directory, "workers", "refresh", "close", meant="a Directory")
        self._app, self._clock = settings.app, clock
        processors = by_name(_listed("processors", processors)).values()
        self._earlier = _earlier_tables(processors, _listed("earlier", earlier))
        self._tables = {
            table_name(processor, table): _Table(processor, table)
            for processor in processors
            for table in ("", *processor.tables)
        }
        self._globals = {
            name: _GlobalTable(table)
            for name, table in globals_by_name(
                read for processor in processors for read in processor.reads
            ).items()
        }
        self._turns = count()
        self._asker = QueryRouter(
            settings, WorkersTopic(settings, clock) if directory is None else directory, clock
        )

    async def __aenter__(self) -> Self:
        await self._asker.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._asker.__aexit__(kind, error, traceback)

    # -- one row

    @overload
    async def get(
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
    async def get(
        self,
        table: str,
        key: str,
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> Answer[Any]: ...
    async def get(
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
        answers = await self.get_many(
            table,
            (key,),
            partition=partition,
            at_least=at_least,
            timeout_s=timeout_s,
            max_staleness=max_staleness,
        )
        return answers[key]

    # -- many rows

    @overload
    async def get_many(
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
    async def get_many(
        self,
        table: str,
        keys: Collection[str],
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> dict[str, Answer[Any]]: ...
    async def get_many(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        keys: Collection[str],
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
    ) -> dict[str, Answer[Any]]:
        """Return the answer for each of *keys*.

        Different answers may be from different moments; each says from which.
        """
        check_terms(timeout_s, partition, at_least, max_staleness)
        terms = ReadTerms(at_least, max_staleness, self._clock.monotonic_s() + timeout_s)
        found = await self._answering(self._table(table), terms.deadline_s)
        keys = _checked_keys(keys)
        if isinstance(found, _GlobalTable):
            _refuse_partition(found, partition)
            return await self._rows_of_global(found, keys, terms)
        if partition is None and isinstance(at_least, tuple) and found.route is None:
            partition = at_least[0]
        if partition is not None:
            terms.check([partition])
            return await self._rows(found, partition, keys, terms)
        by_partition, anywhere = await self._routed(found, keys, terms.deadline_s)
        terms.check(by_partition)
        answers = await _all(self._rows(found, each, wanted, terms) for each, wanted in by_partition.items())
        merged = first_found(answers)
        if not anywhere:
            return {key: _routed_miss(answer) for key, answer in merged.items()}
        return {key: merged[key] for key in keys}

    # -- rows in order

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
    ) -> AsyncIterator[Answer[R]]: ...
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
    ) -> AsyncIterator[Answer[Any]]: ...
    async def scan(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        prefix: str = "",
        *,
        partition: int | None = None,
        at_least: AtLeast | None = None,
        timeout_s: float = TIMEOUT_S,
        max_staleness: Bound | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> AsyncIterator[Answer[Any]]:
        """Yield the rows whose key begins with *prefix*, partition by partition, in the order of the keys'
        UTF-8 bytes in each; those of a global table, of all partitions in that order.

        It is read a page at a time, each as of its own moment; *timeout_s* is for each page, since between
        pages the time is yours.
        """
        check_terms(timeout_s, partition, at_least, max_staleness)
        check_page(prefix, page_rows)
        terms = ReadTerms(at_least, max_staleness, self._clock.monotonic_s() + timeout_s)
        found = await self._answering(self._table(table), terms.deadline_s)
        limit = min(page_rows, LIMIT_PAGE_ROWS)
        if isinstance(found, _GlobalTable):
            _refuse_partition(found, partition)
            async for row in self._scan_of_global(found, prefix, limit, terms, timeout_s):
                yield row
            return
        partitions: Iterable[int] = (
            [partition]
            if partition is not None
            else range(await self._asker.partitions(found.processor, terms.deadline_s))
        )
        terms.check(partitions)

        def question(at: int, after: str | None) -> Question:
            page = Page(prefix=prefix, after=after, limit=limit)
            return terms.question(found.processor, found.name, at, "scan", page)

        for each in partitions:
            async for reply in self._pages(partial(question, each), timeout_s):
                answer = answering(found.decode, reply)
                for key, value in reply.rows:
                    yield answer(key, value)

    async def _pages(
        self, question: Callable[[str | None], Question], timeout_s: float
    ) -> AsyncIterator[PageReply]:
        """Yield the pages of one partition, each asked for with the key that it begins after."""
        after: str | None = None
        while True:
            reply = await self._asker.ask(
                question(after), decode_page_reply, self._clock.monotonic_s() + timeout_s
            )
            yield reply
            after = reply.after
            if after is None:
                return

    async def windows(
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
    ) -> AsyncIterator[Answer[WindowResult[Any]]]:
        """Yield the windows of *key*, or of all keys, in a table of windows (`holdfast.streams.Windowed`):
        partition by partition, in the order of their row keys (`window_key`), so that those of one key come
        by start.

        Only those that start at or after *since_ms* and before *until_ms*, if given; sessions and sliding
        windows too count by their start. The rest is as for `scan`: *timeout_s* is for each page. The
        partition of a *key* is found by the table's route, and all are asked where there is no route. Without
        a key, workers look at all windows that the table keeps. NoSuchTableError for a table without windows,
        QueryError for a range in which no window can start.
        """
        pages = self.window_pages(
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
        async for page in pages:
            for each in page:
                yield each

    async def window_pages(
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
    ) -> AsyncIterator[list[Answer[WindowResult[Any]]]]:
        """Yield the windows of `windows` in lists: one for each page that a worker answers with, which may be
        empty.
        """
        check_terms(timeout_s, partition, at_least, max_staleness)
        check_page_rows(page_rows)
        terms = ReadTerms(at_least, max_staleness, self._clock.monotonic_s() + timeout_s)
        windowed = self._windowed(table, key, since_ms, until_ms)
        found = await self._answering(windowed, terms.deadline_s)
        partitions = await self._partitions_of(found, key, partition, terms.deadline_s)
        terms.check(partitions)
        limit = min(page_rows, LIMIT_PAGE_ROWS)

        def question(at: int, after: str | None) -> Question:
            if key is not None:  # as before workers knew of `windows`
                page = Page(prefix=windows_prefix(key, since_ms, until_ms), after=after, limit=limit)
                return terms.question(found.processor, found.name, at, "scan", page)
            windows = WindowsPage(since_ms=since_ms, until_ms=until_ms, after=after, limit=limit)
            return terms.question(found.processor, found.name, at, "windows", windows)

        for each in partitions:
            async for reply in self._pages(partial(question, each), timeout_s):
                answer, windows = answering(found.decode, reply), []
                for answered in (answer(name, value) for name, value in reply.rows):
                    row = (answered.key, answered.value)
                    for window in windows_of([row], key, since_ms=since_ms, until_ms=until_ms):
                        windows.append(msgspec.structs.replace(answered, value=window))
                yield windows

    # -- within

    @overload
    async def _answering(self, table: _Table, deadline_s: float) -> _Table: ...
    @overload
    async def _answering(self, table: _Table | _GlobalTable, deadline_s: float) -> _Table | _GlobalTable: ...
    async def _answering(self, table: _Table | _GlobalTable, deadline_s: float) -> _Table | _GlobalTable:
        """Return the version of *table* that is to be asked."""
        earlier = [] if isinstance(table, _GlobalTable) else self._earlier.get(table.processor.name, [])
        if not earlier or isinstance(table, _GlobalTable):
            return table
        versions = [table.processor, *earlier]
        chosen = await self._asker.answering(versions, deadline_s)
        return table if chosen is table.processor else _Table(chosen, table.name)

    def _table(self, table: Processor[Any, Any] | Global[Any] | str) -> _Table | _GlobalTable:
        if not isinstance(table, str | Processor | Global):
            raise QueryError(f"a table is a Processor, a Global or a name, not {type(table).__name__}")
        name = table if isinstance(table, str) else table.name
        found = None if isinstance(table, Global) else self._tables.get(name)
        if found is None and not isinstance(table, Processor):
            of_global = self._globals.get(name)
            if of_global is not None:
                return of_global
        if found is None:
            known = ", ".join(
                [*sorted(self._tables), *(f"{each} (global)" for each in sorted(self._globals))]
            )
            raise NoSuchTableError(f"this client was not given a table {name!r}, only: {known or 'none'}")
        return found

    async def _rows_of_global(
        self, table: _GlobalTable, keys: Sequence[str], terms: ReadTerms
    ) -> dict[str, Answer[Any]]:
        answers: dict[str, Answer[Any]] = {}
        at, turn = 0, next(self._turns)
        while at < len(keys):
            question = terms.of_global(table.name, "get", Keys(_chunk(keys, at)), turn)
            reply = await self._asker.ask(question, decode_global_rows_reply, terms.deadline_s)
            if not reply.values:
                raise QueryError(
                    f"{question}: the worker answered for none of the keys asked; its version differs"
                )
            answer = answering_of_copy(table.decode, reply)
            for key, value in zip(keys[at : at + len(reply.values)], reply.values, strict=False):
                answers[key] = answer(key, value)
            at += len(reply.values)
        return answers

    async def _scan_of_global(
        self, table: _GlobalTable, prefix: str, limit: int, terms: ReadTerms, timeout_s: float
    ) -> AsyncIterator[Answer[Any]]:
        after, turn = None, next(self._turns)
        while True:
            page = Page(prefix=prefix, after=after, limit=limit)
            question = terms.of_global(table.name, "scan", page, turn)
            reply = await self._asker.ask(
                question, decode_global_page_reply, self._clock.monotonic_s() + timeout_s
            )
            answer = answering_of_copy(table.decode, reply)
            for key, value in reply.rows:
                yield answer(key, value)
            after = reply.after
            if after is None:
                return

    def _windowed(
        self,
        table: Processor[Any, Any] | Global[Any] | str,
        key: str | None,
        since_ms: int | None,
        until_ms: int | None,
    ) -> _Table:
        """Return a table of windows, of which *key* and the range may be asked."""
        found = self._table(table)
        if isinstance(found, _GlobalTable):
            raise NoSuchTableError(
                f"global table {found.name} has no windows; read its rows by `get` and `scan`"
            )
        name, row = table_name(found.processor, found.name), found.processor.row_of(found.name)
        if not holds_windows(row):
            raise NoSuchTableError(f"table {name} has no windows; read its rows by `get` and `scan`")
        if key is not None:
            _checked_keys([key])
        if (why := why_no_range(since_ms, until_ms)) is not None:
            raise QueryError(f"windows of {name}: {why}")
        return found

    async def _partitions_of(
        self, table: _Table, key: str | None, partition: int | None, deadline_s: float
    ) -> Sequence[int]:
        """Return the partitions in which windows of *key*, or of all keys, are looked for."""
        if partition is not None:
            return (partition,)
        partitions = await self._asker.partitions(table.processor, deadline_s)
        place = None if key is None else self._place(table, window_key(key, 0), partitions)
        return range(partitions) if place is None else (place,)

    async def _routed(
        self, table: _Table, keys: Sequence[str], deadline_s: float
    ) -> tuple[dict[int, list[str]], bool]:
        """Return the keys by partition, and whether some are sought in every one."""
        partitions = await self._asker.partitions(table.processor, deadline_s)
        by_partition: dict[int, list[str]] = {}
        anywhere = False
        for key in dict.fromkeys(keys):
            place = self._place(table, key, partitions)
            anywhere = anywhere or place is None
            for each in range(partitions) if place is None else (place,):
                by_partition.setdefault(each, []).append(key)
        return by_partition, anywhere

    @staticmethod
    def _place(table: _Table, key: str, partitions: int) -> int | None:
        if table.route is None:
            return None
        try:
            place = table.route(key, partitions)
        except Exception as error:
            raise QueryError(
                f"key {key[:80]!r} is not a valid key of {table_name(table.processor, table.name)}: its route"
                f" says {error}"
            ) from error
        return None if place is None else int(place)

    async def _rows(
        self, table: _Table, partition: int, keys: Sequence[str], terms: ReadTerms
    ) -> dict[str, Answer[Any]]:
        answers: dict[str, Answer[Any]] = {}
        at = 0
        while at < len(keys):
            question = terms.question(table.processor, table.name, partition, "get", Keys(_chunk(keys, at)))
            reply: RowsReply = await self._asker.ask(question, decode_rows_reply, terms.deadline_s)
            if not reply.values:
                raise QueryError(
                    f"{question}: the worker answered for none of the keys asked; its version differs"
                )
            answer = answering(table.decode, reply)
            for key, value in zip(keys[at : at + len(reply.values)], reply.values, strict=False):
                answers[key] = answer(key, value)
            at += len(reply.values)
        return answers


def _listed(name: str, given: Iterable[Processor[Any, Any]]) -> list[Processor[Any, Any]]:
    if isinstance(given, Processor):
        raise ConfigError(f"{name} is the processor {given.name} alone; write a list: [{given.name}]")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} is {given!r:.200}; write a list of Processor")
    found = [*given]
    for each in found:
        if not isinstance(each, Processor | tuple):
            raise ConfigError(f"{name} holds {each!r:.200}, which is not a Processor")
    return found


def _earlier_tables(
    processors: Iterable[Processor[Any, Any]], earlier: Iterable[Processor[Any, Any]]
) -> dict[str, list[Processor[Any, Any]]]:
    """Return earlier versions by the name of the processor; ConfigError for one that is none."""
    versions = {each.name: each.version for each in processors}
    found: dict[str, list[Processor[Any, Any]]] = {}
    for each in earlier:
        if each.version >= versions.get(each.name, 0):
            own = versions.get(each.name)
            raise ConfigError(
                f"earlier has version {each.version} of {each.name}, and "
                + ("processors has none of it" if own is None else f"processors has version {own}")
                + ": give the latest in processors, and those before it in earlier"
            )
        found.setdefault(each.name, []).append(each)
    return found


def _refuse_partition(table: _GlobalTable, partition: int | None) -> None:
    if partition is not None:
        raise QueryError(
            f"global table {table.name}: a copy has all partitions and is read as one table; leave out"
            " partition"
        )


def _checked_keys(keys: Collection[str]) -> list[str]:
    if not isinstance(keys, Collection):
        raise QueryError(f"keys are a collection of strings, not {type(keys).__name__}")
    if isinstance(keys, str):
        raise QueryError(
            f"keys are a collection of strings, not the single string {keys[:40]!r}: use get, or [key]"
        )
    for key in keys:
        if not isinstance(key, str):
            raise QueryError(f"a key is a string, not {type(key).__name__}: rows are kept by strings")
    return list(keys)


def _chunk(keys: Sequence[str], at: int) -> list[str]:
    """Return the keys of the next request: at least one, else as many as stay within the limits."""
    chunk: list[str] = []
    size = 0
    for key in keys[at : at + CHUNK_KEYS]:
        size += len(key) * 4 if not key.isascii() else len(key)
        if chunk and size > CHUNK_BYTES:
            break
        chunk.append(key)
    return chunk


async def _all(questions: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results; the first failure ends the others."""
    tasks = [asyncio.ensure_future(question) for question in questions]
    if len(tasks) == 1:
        return [await tasks[0]]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _routed_miss(answer: Answer[Any]) -> Answer[Any]:
    """Return *answer*, which the only partition gave that the route names; where it is no row, it says so."""
    return answer if answer.value is not None else msgspec.structs.replace(answer, routed=True)
