"""Groups: claim groups, balanced ones among them, and the broker's own."""

from __future__ import annotations

from typing import Any

from holdfast.clients.groups.records import Move
from holdfast.console.access import RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.aims import WORDS, aim_of, kind_of, scope_of
from holdfast.console.showing.paging import PAGE_LINES, page_number, page_of, paged
from holdfast.console.watching.groups import GroupDesk
from holdfast.errors import BrokerError, GroupError, HoldfastError

GROUP_EVERY_S = 2.0
LIMIT_CHANGES = 50


async def build_list(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    groups, wanted = desk.watch.groups, query.get("q", "").strip()
    known = [] if groups is None else [each for each in groups.groups if wanted in each.group]
    return {
        "title": "Groups",
        "wanted": wanted,
        "page": paged(known, "/groups", query),
        "trouble": None if groups is None else groups.trouble,
    }


async def build_view(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    name, kind, groups = query.get("name", ""), kind_of(query), _groups(desk)
    first = (page_number(query) - 1) * PAGE_LINES
    try:
        group, total, lines = await groups.page(name, kind, first, PAGE_LINES)
    except GroupError as error:
        raise RequestDenied(404, str(error)) from None
    except BrokerError as error:
        raise RequestDenied(503, str(error)) from None
    return {
        "title": f"Group {name}",
        "group": group,
        "page": page_of(lines, total, "/groups/view", query),
        "changes": groups.ownership.changes((kind, name))[:LIMIT_CHANGES],
        "since_ms": groups.ownership.since_ms((kind, name)),
    }


def _groups(desk: ConsoleDesk) -> GroupDesk:
    if desk.watch.groups is None:
        raise RequestDenied(404, "This console knows no groups.")
    return desk.watch.groups


async def build_reset(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    """Show the effect that a reset would have at present; a look changes nothing."""
    name, kind, groups = query.get("name", ""), kind_of(query), _groups(desk)
    context: dict[str, Any] = {
        "title": f"Reset group {name}",
        "name": name,
        "kind": kind,
        "ways": WORDS,
        "aim": None,
        "page": None,
        "trouble": None,
    }
    if "where" not in query:
        return context
    aim, scope = aim_of(query), scope_of(query)
    try:
        plan = await groups.ask(lambda admin: admin.plan_reset(name, aim, scope, kind))
    except HoldfastError as error:
        return {**context, "trouble": str(error)}
    moved = [_moved(each) for each in plan.moves]
    return {
        **context,
        "aim": aim,
        "page": paged(plan.moves, "/groups/reset", query),
        "again": -sum(each for each in moved if each < 0),
        "left": sum(each for each in moved if each > 0),
    }


def _moved(move: Move) -> int:
    return 0 if move.current_offset is None else move.new_offset - move.current_offset


GROUPS = ConsolePage(path="/groups", menu="Groups", template="groups.html", build=build_list)
GROUP = ConsolePage(
    path="/groups/view", menu="Groups", template="group.html", build=build_view, every_s=GROUP_EVERY_S
)
RESET = ConsolePage(path="/groups/reset", menu="Groups", template="reset.html", build=build_reset, live=False)
