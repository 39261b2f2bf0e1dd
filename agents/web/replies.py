"""Reads requests to the web port, and writes replies and refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import MultiMapping

from holdfast.core.engine import query_wire
from holdfast.core.engine.query_wire import (
    JSON,
    MSGPACK,
    AtOffset,
    Inspect,
    Keys,
    Page,
    Reason,
    Refusal,
    Staleness,
    Stored,
    WindowsPage,
)
from holdfast.core.streams.windowing.rows import why_no_range
from holdfast.web.headers import NO_PAGE

B = TypeVar("B")
N = TypeVar("N", Inspect, Stored)

BODY_TIMEOUT_S = 10.0
LIMIT_INT = (1 << 63) - 1

_COMMON = frozenset({"at-offset", "timeout-ms", "stale-ok", "version"})
OF_A_COPY = frozenset({"at-offset", "timeout-ms"})
OF_A_SCAN = frozenset({"prefix", "after", "limit"})
OF_WINDOWS = frozenset({"key", "since-ms", "until-ms", "after", "limit"})


class RequestRefused(Exception):
    """A request that gets no answer: HTTP status, reason, what to do."""

    def __init__(
        self,
        status: int,
        error: Reason,
        message: str,
        *,
        owner: str | None = None,
        retry_after_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = message.encode(
            errors="backslashreplace"
        ).decode()  # it may quote a header that is not UTF-8
        super().__init__(message)
        self.status = status
        self.refusal = Refusal(error=error, message=message, owner=owner, retry_after_ms=retry_after_ms)
        self.headers = dict(headers or {})
        if retry_after_ms is not None:
            self.headers["Retry-After"] = str(max(1, round(retry_after_ms / 1000)))


def malformed(message: str) -> RequestRefused:
    return RequestRefused(400, "malformed", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTerms:
    """The terms of a query besides the rows it looks for."""

    at_offset: AtOffset | None
    timeout_ms: int
    staleness: Staleness | None
    version: int | None


def terms_of(
    query: MultiMapping[str], own: frozenset[str] = frozenset(), common: frozenset[str] = _COMMON
) -> QueryTerms:
    """Read the query string, in which the endpoint has names of its *own*; a name that means nothing here is
    refused, so that a slip cannot drop a condition.
    """
    if not query:
        return _NO_TERMS
    known = common | own
    for name in query:
        if name not in known:
            raise malformed(
                f"unknown parameter {name[:40]!r}; this endpoint takes {', '.join(sorted(known))}"
            )
        if len(query.getall(name)) > 1:
            raise malformed(f"parameter {name} is given twice")
    staleness = None
    if (text := query.get("stale-ok")) is not None:
        try:
            staleness = Staleness.parse(text)
        except ValueError as error:
            raise malformed(f"stale-ok: {error}") from None
    timeout_ms = number(query, "timeout-ms")
    return QueryTerms(
        at_offset=_at_offset(query.get("at-offset")),
        timeout_ms=query_wire.WAIT_MS if timeout_ms is None else min(timeout_ms, query_wire.LIMIT_WAIT_MS),
        staleness=staleness,
        version=number(query, "version"),
    )


_NO_TERMS = QueryTerms(at_offset=None, timeout_ms=query_wire.WAIT_MS, staleness=None, version=None)


def _at_offset(text: str | None) -> AtOffset | None:
    """Read an offset, or TOPIC:OFFSET for some of a table's sources, separated by commas."""
    if text is None or ":" not in text:
        return None if text is None else whole(text, "at-offset")
    offsets: dict[str, int] = {}
    for each in text.split(","):
        topic, _, offset = each.rpartition(":")
        if not topic or topic in offsets:
            raise malformed(
                f"at-offset is {text[:80]!r}; write an offset, or TOPIC:OFFSET once for each source"
            )
        offsets[topic] = whole(offset, f"at-offset of {topic[:80]}")
    return offsets


def number(query: MultiMapping[str], name: str) -> int | None:
    """Return a parameter that must be a whole number of 0 or more, None when it is not given."""
    text = query.get(name)
    return None if text is None else whole(text, name)


def whole(text: str, name: str) -> int:
    """Return the number, or refuse any text but a number from 0 to 2^63-1 in plain digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= LIMIT_INT):
        raise malformed(f"{name} is {text[:40]!r}; it must be a whole number from 0 to {LIMIT_INT}")
    return int(text)


def check_form(request: web.Request) -> None:
    """Refuse, before a byte of the body is read, what no endpoint takes: an encoded body, a body where
    none belongs, a path that is no text.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        message = f"the body is sent with Content-Encoding {encoding[:40]!r}; send it as it is"
        raise RequestRefused(
            415, "malformed", message, headers={"Accept-Encoding": "identity", "Connection": "close"}
        )
    if request.match_info.route.method != "POST" and request.body_exists:
        raise RequestRefused(
            413,
            "too_large",
            f"{request.method} {request.path[:200]} takes no body",
            headers={"Connection": "close"},
        )
    if (request.content_length or 0) > query_wire.LIMIT_BODY_BYTES:
        raise _too_large()
    if "%" in request.raw_path or not request.raw_path.isascii():
        _check_text(request.raw_path)


def _too_large() -> RequestRefused:
    message = f"the body is over {query_wire.LIMIT_BODY_BYTES} bytes; ask for fewer keys at a time"
    return RequestRefused(413, "too_large", message, headers={"Connection": "close"})


def _check_text(path: str) -> None:
    if (cut := _CUT_ESCAPE.search(path)) is not None:
        raise malformed(
            f"{path[cut.start() : cut.start() + 3]!a} in the URL is not an escape: write % as %25"
        )
    try:
        unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError as error:
        raise malformed(
            f"the URL is not UTF-8 once its escapes are read: byte {error.object[error.start]:#04x}; keys are"
            " text"
        ) from None


_CUT_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


async def keys_of(request: web.Request) -> Keys:
    """Read the body of a request for many rows."""
    keys = await _body(request, query_wire.decode_keys, query_wire.decode_keys_json)
    if not 1 <= len(keys.keys) <= query_wire.LIMIT_KEYS:
        raise malformed(f"{len(keys.keys)} keys; ask for 1 to {query_wire.LIMIT_KEYS} at a time")
    return keys


async def page_of(request: web.Request) -> Page:
    """Read what a scan asks for, from the query string (GET) or the body (POST)."""
    if request.method == "POST":
        page = await _body(request, query_wire.decode_page, query_wire.decode_page_json)
    else:
        limit = number(request.query, "limit")
        prefix, after = request.query.get("prefix", ""), request.query.get("after")
        page = Page(prefix=prefix, after=after, limit=query_wire.PAGE_ROWS if limit is None else limit)
    if page.limit < 1:
        raise malformed(f"limit is {page.limit}; ask for 1 to {query_wire.LIMIT_PAGE_ROWS} rows a page")
    return page


async def windows_of(request: web.Request) -> WindowsPage:
    """Read what a request for windows asks for, from the query string (GET) or the body (POST)."""
    if request.method == "POST":
        asked = await _body(request, query_wire.decode_windows, query_wire.decode_windows_json)
    else:
        query, limit = request.query, number(request.query, "limit")
        asked = WindowsPage(
            key=query.get("key"),
            since_ms=_moment(query, "since-ms"),
            until_ms=_moment(query, "until-ms"),
            after=query.get("after"),
            limit=query_wire.PAGE_ROWS if limit is None else limit,
        )
    if asked.limit < 1:
        raise malformed(f"limit is {asked.limit}; ask for 1 to {query_wire.LIMIT_PAGE_ROWS} rows a page")
    if (why := why_no_range(asked.since_ms, asked.until_ms)) is not None:
        raise malformed(why)
    return asked


def _moment(query: MultiMapping[str], name: str) -> int | None:
    """Return a parameter that must be a time in ms since 1970, None when it is not given."""
    text = query.get(name)
    if text is not None and text.startswith("-"):
        return -whole(text[1:], name)  # a sliding window may start before 1970
    return None if text is None else whole(text, name)


async def inspect_of(request: web.Request) -> Inspect:
    """Read the body of a request for a digest."""
    return _named(await _body(request, query_wire.decode_inspect, query_wire.decode_inspect_json))


async def stored_of(request: web.Request) -> Stored:
    """Read the body of a request for stored rows."""
    asked = _named(await _body(request, query_wire.decode_stored, query_wire.decode_stored_json))
    if not 1 <= asked.limit <= query_wire.LIMIT_PAGE_ROWS:
        raise malformed(f"limit is {asked.limit}; ask for 1 to {query_wire.LIMIT_PAGE_ROWS} rows a page")
    return asked


def _named(asked: N) -> N:
    if not 1 <= len(asked.inspection) <= query_wire.LIMIT_INSPECTION:
        raise malformed(
            f"inspection has {len(asked.inspection)} characters; name it with 1 to"
            f" {query_wire.LIMIT_INSPECTION}"
        )
    return asked


async def _body(request: web.Request, decode: Callable[[bytes], B], decode_json: Callable[[bytes], B]) -> B:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.read()
    except TimeoutError:
        raise RequestRefused(
            408, "malformed", f"the body did not come within {BODY_TIMEOUT_S:.0f} s"
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except (web.RequestPayloadError, HttpProcessingError, ClientError, ConnectionError) as error:
        raise RequestRefused(
            400, "malformed", f"body: it broke off ({str(error)[:120]})", headers={"Connection": "close"}
        ) from None
    try:
        return decode(body) if request.content_type == MSGPACK else decode_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(f"body: {error}") from None


def wants_msgpack(request: web.Request) -> bool:
    return MSGPACK in request.headers.get("Accept", "")


def respond(
    request: web.Request, body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return *body* in the form the asker accepts; JSON unless MessagePack is asked for."""
    content, content_type = (
        (query_wire.encode(body), MSGPACK)
        if wants_msgpack(request)
        else (query_wire.encode_json(body) + b"\n", JSON)
    )
    return web.Response(
        body=content,
        status=status,
        headers={
            "Content-Type": content_type,
            "Cache-Control": "no-store",
            **(NO_PAGE if content_type == JSON else {}),  # browsers do not ask for packed replies
            **(headers or {}),
        },
    )


def respond_refused(request: web.Request, refused: RequestRefused) -> web.Response:
    response = respond(request, refused.refusal, status=refused.status, headers=refused.headers)
    if request.body_exists and not request.content.is_eof():
        response.force_close()  # the rest of the body is not read
    return response


def respond_malformed(status: int, what: str) -> web.Response:
    """Return the answer to bytes that are no HTTP request; the formats that their sender accepts are
    unknown.
    """
    refusal = Refusal(error="malformed", message=f"this is no HTTP request that the worker reads: {what}")
    return web.Response(
        body=query_wire.encode_json(refusal) + b"\n", status=status, headers={"Content-Type": JSON, **NO_PAGE}
    )
