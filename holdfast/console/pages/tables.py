"""The tables: how far each partition is, and what they hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from holdfast.clients.tables.answers import Answer
from holdfast.console.access import RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import number, paged
from holdfast.console.showing.rendering import moment
from holdfast.console.watching.picture import PartitionHealth, TableLine
from holdfast.core.claims.resets import parse_datetime_ms
from holdfast.core.streams.windowing.rows import WindowResult, holds_windows
from holdfast.errors import ConfigError, HoldfastError

LIMIT_ROWS = 50
LIMIT_VALUE = 20_000
TIMEOUT_S = 5.0
VERBS = ("get", "scan", "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLine:
    """A row as it is shown, and what it reflects."""

    key: str
    value: str | None
    partition: str
    as_of: str
    role: str
    start: str | None = None
    end: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """The outcome of a question: lines, whether there are more, or the error."""

    lines: tuple[AnswerLine, ...] = ()
    more: bool = False
    trouble: str | None = None


async def build_list(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    return {"title": "Tables", "tables": desk.watch.picture.tables, "globals": sorted(desk.globals)}


async def build_view(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    name = query.get("name", "")
    table = desk.watch.picture.table(name, number(query, "version"))
    if table is None and name not in desk.globals:
        raise RequestDenied(404, f"{desk.settings.app} has no table {name[:100]}.")
    lines = [] if table is None else list(table.partitions)
    if query.get("state") == "attention":
        lines = [each for each in lines if each.state is not PartitionHealth.SERVED]
    return {
        "title": f"Table {name}" + ("" if table is None else f" v{table.version}"),
        "name": name,
        "table": table,
        "attention": query.get("state") == "attention",
        "asked": "verb" in query,
        "page": paged(lines, "/tables/view", query),
        "readable": table is None or (table.declared and not table.stateless),
        "windowed": table is not None and _windowed(desk, table),
    }


def _windowed(desk: ConsoleDesk, table: TableLine) -> bool:
    return any(
        holds_windows(each.row_of(named))
        for each in desk.processors
        if each.name == table.table and not each.stateless
        for named in ("", *each.tables)
    )


async def read(desk: ConsoleDesk, query: Query) -> TableReading | None:
    """Return the tables' answer to the question of the URL, None where it asks none."""
    verb = query.get("verb")
    if verb is None:
        return None
    if verb not in VERBS:
        raise RequestDenied(400, f"verb is {verb[:40]!r}: write {', '.join(VERBS)}.")
    named = query.get("of", "")
    table = f"{query.get('name', '')}.{named}" if named else query.get("name", "")
    try:
        return await _read(desk, verb, table, query)
    except HoldfastError as error:
        return TableReading(trouble=str(error))


async def _read(desk: ConsoleDesk, verb: str, table: str, query: Query) -> TableReading:
    partition, key = _partition(desk, query), query.get("key", "")
    if verb == "get":
        answer = await desk.tables.get(table, key, partition=partition, timeout_s=TIMEOUT_S)
        return TableReading(lines=(_explained(desk, query, _line(answer, indent=2), answer),))
    if verb == "scan":
        rows = desk.tables.scan(
            table, key, partition=partition, timeout_s=TIMEOUT_S, page_rows=LIMIT_ROWS + 1
        )
        return await _first(rows, lambda each: _explained(desk, query, _line(each), each))
    windows = desk.tables.windows(
        table,
        key or None,
        since_ms=_moment(query, "since"),
        until_ms=_moment(query, "until"),
        partition=partition,
        timeout_s=TIMEOUT_S,
        page_rows=LIMIT_ROWS + 1,
    )
    return await _first(windows, _window)


def _partition(desk: ConsoleDesk, query: Query) -> int | None:
    partition, table = number(query, "partition"), desk.watch.picture.table(query.get("name", ""))
    count = 0 if table is None else len(table.partitions)
    if partition is not None and count and partition >= count:
        raise RequestDenied(400, f"partition is {partition}: this table has {count} partitions, from 0 on.")
    return partition


async def _first(answers: AsyncIterator[Answer[Any]], line: Any) -> TableReading:
    found: list[AnswerLine] = []
    async for each in answers:
        if len(found) == LIMIT_ROWS:
            return TableReading(lines=tuple(found), more=True)
        found.append(line(each))
    return TableReading(lines=tuple(found))


def _moment(query: Query, name: str) -> int | None:
    text = query.get(name, "").strip()
    try:
        return parse_datetime_ms(text) if text else None
    except ConfigError as error:
        raise RequestDenied(400, f"{name}: {error}") from None


def _line(answer: Answer[Any], indent: int = 0) -> AnswerLine:
    positions = sorted(answer.positions.items())
    copy = answer.role == "copy"
    return AnswerLine(
        key=answer.key,
        value=None if answer.value is None else shown(answer.value, indent),
        partition="all" if copy else str(answer.partition),
        as_of=", ".join(f"{at}:{offset}" for at, offset in positions) if copy else str(answer.as_of_offset),
        role=str(answer.role),
    )


def _explained(desk: ConsoleDesk, query: Query, line: AnswerLine, answer: Answer[Any]) -> AnswerLine:
    """Return *line* with the address of the page that explains its row, if the application declares the
    processor that made it.
    """
    processor = next((each for each in desk.processors if each.name == query.get("name")), None)
    if processor is None or answer.version != processor.version or answer.partition < 0:
        return line
    at = answer.as_of or {"": answer.as_of_offset}
    places = [
        f"{answer.partition}:{topic}:{offset}" if topic else f"{answer.partition}:{offset}"
        for topic, offset in at.items()
    ]
    asked = {"name": processor.name, "of": query.get("of", ""), "key": line.key, "at": ",".join(places)}
    return replace(line, why=f"/tables/why?{urlencode(asked)}")


def _window(answer: Answer[WindowResult[Any]]) -> AnswerLine:
    window = answer.value
    line = _line(msgspec.structs.replace(answer, key=window.key, value=window.value))
    return AnswerLine(
        key=line.key,
        value=line.value,
        partition=line.partition,
        as_of=line.as_of,
        role=line.role,
        start=moment(window.start_ms),
        end=moment(window.end_ms),
    )


def shown(value: Any, indent: int = 0) -> str:
    """Return a row as JSON for people, bytes in base64, cut where it is very long.

    >>> shown({"count": 1})
    '{"count": 1}'
    """
    written = msgspec.json.encode(msgspec.to_builtins(value, str_keys=True))
    text = msgspec.json.format(written, indent=indent).decode()
    return text if len(text) <= LIMIT_VALUE else f"{text[:LIMIT_VALUE]}\n… {len(text):,} characters in all"


TABLES = ConsolePage(path="/tables", menu="Tables", template="tables.html", build=build_list)
TABLE = ConsolePage(path="/tables/view", menu="Tables", template="table.html", build=build_view)
