"""The web port's answers from this worker's copies of global tables. Any worker answers, with the position of
its copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, TypeVar

from aiohttp import web

from holdfast.agents.serving import GlobalReplica, Serving
from holdfast.agents.web.bounding import bounded, size_of_row, size_of_value
from holdfast.agents.web.reaching import ids_of, require_topics
from holdfast.agents.web.replies import (
    OF_A_COPY,
    OF_A_SCAN,
    QueryTerms,
    RequestRefused,
    keys_of,
    malformed,
    page_of,
    respond,
    terms_of,
    wants_msgpack,
    whole,
)
from holdfast.core.engine.merge.global_copies import GlobalView
from holdfast.core.engine.query_wire import (
    LIMIT_PAGE_ROWS,
    GlobalPageReply,
    GlobalRowReply,
    GlobalRowsReply,
    Page,
    render,
)
from holdfast.core.engine.state.codec import RowCodec, row_key, text_key
from holdfast.errors import FoldError

T = TypeVar("T")

RETRY_AFTER_MS = 200
READS_AT_ONCE = 4
"""The number of queries that read copies at a time. They do so on the worker's threads, on which it commits
and restores too.
"""


class GlobalPages:
    """Handlers of `rows`, `get` and `scan` of global tables. Each reply is of one position of the copy."""

    def __init__(self, app: str, serving: Serving) -> None:
        self._app, self._serving = app, serving
        self._codecs: dict[str, RowCodec[Any]] = {}
        self._reading = asyncio.Semaphore(READS_AT_ONCE)

    def declares(self, asked: str) -> bool:
        """Return whether this application has such a global table."""
        return asked in self._serving.global_tables()

    async def row(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        copy = await self._copy(request, terms_of(request.query, common=OF_A_COPY))
        about, (value,) = await self._read(copy, lambda view: _values(view, [key]))
        if wants_msgpack(request):
            return respond(request, GlobalRowReply(**about, key=key, found=value is not None, value=value))
        shown = self._rendered(copy, value)
        return respond(request, {**about, "key": key, "found": value is not None, "value": shown})

    async def rows(self, request: web.Request) -> web.Response:
        terms, keys = terms_of(request.query, common=OF_A_COPY), (await keys_of(request)).keys
        copy = await self._copy(request, terms)
        about, values = await self._read(copy, lambda view: _values(view, keys))
        if wants_msgpack(request):
            return respond(request, GlobalRowsReply(**about, values=values))
        return respond(request, {**about, "values": [self._rendered(copy, value) for value in values]})

    async def scan(self, request: web.Request) -> web.Response:
        own = OF_A_SCAN if request.method == "GET" else frozenset[str]()
        terms, page = terms_of(request.query, own, OF_A_COPY), await page_of(request)
        copy = await self._copy(request, terms)
        about, (rows, after) = await self._read(copy, lambda view: _page(view, page))
        if wants_msgpack(request):
            return respond(request, GlobalPageReply(**about, rows=rows, after=after))
        shown = [[key, self._rendered(copy, value)] for key, value in rows]
        return respond(request, {**about, "rows": shown, "after": after})

    async def _read(self, copy: GlobalReplica, work: Callable[[GlobalView], T]) -> tuple[dict[str, Any], T]:
        """Return a reply's fields about the copy, and the result of *work* on it, both of one position."""
        count = len(copy.applied)

        def read(view: GlobalView) -> tuple[dict[str, Any], T]:
            position = [*view.vector, *[-1] * (count - len(view.vector))]
            about = {"table": copy.table.name, "position": position, "stream_ms": view.stream_ms}
            return {**about, **ids_of(copy)}, work(view)

        try:
            async with self._reading:
                _require_ready(copy)
                return await copy.read(read)
        except FoldError as error:  # a key has rows in two partitions
            raise RequestRefused(500, "failed", str(error)) from None

    def _rendered(self, copy: GlobalReplica, value: bytes | None) -> Any:
        if value is None:
            return None
        codec = self._codecs.get(copy.table.name)
        if codec is None:
            codec = self._codecs[copy.table.name] = RowCodec(copy.table.row)
        return render(codec.decode(value))

    async def _copy(self, request: web.Request, terms: QueryTerms) -> GlobalReplica:
        """Return the copy that may answer, once it holds the offsets asked for; raises RequestRefused."""
        name, copies = request.match_info["table"], self._serving.global_tables()
        copy = copies.get(name)
        if copy is None:
            names = ", ".join(sorted(copies)) or "none"
            raise RequestRefused(
                404,
                "no_such_table",
                f"no global table {name[:100]!r} in application {self._app}; its global tables: {names}",
            )
        _require_ready(copy)
        require_topics(request, f"global table {name}", [copy.table.topic], copy)
        wanted = _wanted(copy, terms)
        if not wanted or await copy.reached(wanted, terms.timeout_ms / 1000):
            return copy
        asked = ",".join(f"{partition}:{offset}" for partition, offset in wanted.items())
        raise RequestRefused(
            504,
            "offset_timeout",
            f"the copy of global table {name} is at {_shown(copy.applied)}, not yet at {asked} after"
            f" {terms.timeout_ms} ms; ask again, or see whether its worker keeps up (holdfast_global_lag)",
        )


def described(copy: GlobalReplica) -> dict[str, Any]:
    """Return the entry of a copy in the list of tables; with its lag if the ends of its topic are known."""
    lags = copy.lags
    return {
        "source": copy.table.topic,
        "serving": copy.unready() is None,
        "position": [*copy.applied.values()],
        **({"behind": sum(lags.values())} if lags else {}),
        "approximate_rows": copy.approximate_rows(),
    }


def _require_ready(copy: GlobalReplica) -> None:
    if (cause := copy.unready()) is not None:
        raise RequestRefused(503, "not_ready", f"{cause}; ask again", retry_after_ms=RETRY_AFTER_MS)


def _wanted(copy: GlobalReplica, terms: QueryTerms) -> dict[int, int]:
    """Return the offsets to be reached by partition; refuse offsets of other topics."""
    asked, partitions = terms.at_offset, copy.applied
    if asked is None:
        return {}
    if isinstance(asked, int):
        raise malformed(
            f"at-offset={asked} names no partition of {copy.table.topic}; write at-offset=0:{asked}, or"
            " several, separated by commas"
        )
    wanted = {whole(name, "the partition of at-offset"): offset for name, offset in asked.items()}
    if strange := sorted(wanted.keys() - partitions.keys()):
        raise malformed(
            f"at-offset names partition {strange[0]} of {copy.table.topic}, which has {len(partitions)}"
        )
    return wanted


def _shown(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())


def _values(view: GlobalView, keys: list[str]) -> list[bytes | None]:
    values, _ = bounded(
        len(keys),
        lambda got, count: [view.get(row_key(key)) for key in keys[len(got) : len(got) + count]],
        size_of_value,
    )
    return values


def _page(view: GlobalView, page: Page) -> tuple[list[tuple[str, bytes]], str | None]:
    start = b"" if page.after is None else row_key(page.after) + b"\x00"
    found = ((text_key(key), value) for key, value in view.scan(row_key(page.prefix), start))
    rows, ended = bounded(
        min(page.limit, LIMIT_PAGE_ROWS), lambda got, count: [*islice(found, count)], size_of_row
    )
    return rows, None if ended else rows[-1][0]
