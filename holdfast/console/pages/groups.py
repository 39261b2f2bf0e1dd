"""Groups: claim groups, balanced ones among them, and the broker's own."""

from __future__ import annotations

from typing import Any

from holdfast.clients.groups.records import GroupKind
from holdfast.console.access import RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import PAGE_LINES, page_number, page_of, paged
from holdfast.errors import BrokerError, GroupError

GROUP_EVERY_S = 2.0


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
    name, asked, groups = query.get("name", ""), query.get("kind", ""), desk.watch.groups
    if groups is None or asked not in [str(each) for each in GroupKind]:
        raise RequestDenied(400, f"kind is {asked[:40]!r}: write {' or '.join(GroupKind)}.")
    first = (page_number(query) - 1) * PAGE_LINES
    try:
        group, total, lines = await groups.page(name, GroupKind(asked), first, PAGE_LINES)
    except GroupError as error:
        raise RequestDenied(404, str(error)) from None
    except BrokerError as error:
        raise RequestDenied(503, str(error)) from None
    return {
        "title": f"Group {name}",
        "group": group,
        "page": page_of(lines, total, "/groups/view", query),
    }


GROUPS = ConsolePage(path="/groups", menu="Groups", template="groups.html", build=build_list)
GROUP = ConsolePage(
    path="/groups/view", menu="Groups", template="group.html", build=build_view, every_s=GROUP_EVERY_S
)
