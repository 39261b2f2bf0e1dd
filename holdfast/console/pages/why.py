"""Why a row of a table is as it is: the records that made it so."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.clock import system_clock
from holdfast.console.access import RequestDenied
from holdfast.console.asking.why import WhyQuestion, answer_why
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
        "trouble": None,
        "lake": desk.settings.console_lake,
        "able": desk.load is not None,
        "written": written,
    }
    if key is None or desk.load is None:
        return context
    at = query.get("at", "").strip() or str(system_clock.now_ms())
    question = WhyQuestion(processor=name, table=named, key=key, at=at, lake=desk.settings.console_lake)
    try:
        found = await desk.children.run(partial(answer_why, desk.load, question))
    except HoldfastError as error:
        return {**context, "trouble": str(error)}
    return {**context, "found": found}


WHY = ConsolePage(path="/tables/why", menu="Tables", template="why.html", build=build, live=False)
