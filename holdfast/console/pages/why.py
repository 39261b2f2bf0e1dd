"""Why a row of a table is as it is: the records that made it so."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from holdfast.clock import system_clock
from holdfast.console.access import RequestDenied
from holdfast.console.asking.why import LateQuestion, Load, WhyQuestion, answer_late, answer_why
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.pages.quarantine import written
from holdfast.errors import HoldfastError


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    name, named, key = query.get("name", ""), query.get("of", ""), query.get("key")
    if name not in [each.name for each in desk.processors if not each.stateless]:
        raise RequestDenied(404, f"{desk.settings.app} has no table {name[:100]}.")
    table = f"{name}.{named}" if named else name
    context: dict[str, Any] = {
        "title": f"Why a row of {table}",
        "name": name,
        "named": named,
        "table": table,
        "key": key or "",
        "found": None,
        "late": None,
        "judges": any(each.name == name and each.lateness is not None for each in desk.processors),
        "trouble": None,
        "lake": desk.settings.console_lake,
        "able": desk.load is not None,
        "written": written,
    }
    if desk.load is not None and ("late" in query or query.get("record", "").strip()):
        return {**context, **await _late(desk, desk.load, name, query)}
    if key is None or desk.load is None:
        return context
    at = query.get("at", "").strip() or str(system_clock.now_ms())
    question = WhyQuestion(processor=name, table=named, key=key, at=at, lake=desk.settings.console_lake)
    try:
        found = await desk.children.run(partial(answer_why, desk.load, question))
    except HoldfastError as error:
        return {**context, "trouble": str(error)}
    return {**context, "found": found}


async def _late(desk: ConsoleDesk, load: Load, name: str, query: Query) -> dict[str, Any]:
    """Return why the record that is named was late, or which ones were last."""
    place = _record(query.get("record", "").strip())
    question = LateQuestion(processor=name, place=place, lake=desk.settings.console_lake)
    try:
        return {"late": await desk.children.run(partial(answer_late, load, question))}
    except HoldfastError as error:
        return {"trouble": str(error)}


def _record(text: str) -> tuple[str, int, int] | None:
    """Read TOPIC/PARTITION/OFFSET.

    >>> _record("looks/0/17"), _record("")
    (('looks', 0, 17), None)
    """
    found = re.fullmatch(r"([A-Za-z0-9._-]{1,249})/(\d{1,9})/(\d{1,18})", text)
    if found is None and text:
        raise RequestDenied(400, f"record is {text[:40]!r}: write TOPIC/PARTITION/OFFSET.")
    return None if found is None else (found[1], int(found[2]), int(found[3]))


WHY = ConsolePage(path="/tables/why", menu="Tables", template="why.html", build=build, live=False)
