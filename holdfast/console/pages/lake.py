"""What of the topics is landed in the lake, and what is wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.console.access import RequestDenied
from holdfast.console.asking.lake import LakeTopicLine, answer_landed
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import paged
from holdfast.errors import HoldfastError

LIMIT_TOPICS = 100


async def build_list(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    topics = _topics(desk)
    found, trouble = await _ask(desk, topics[:LIMIT_TOPICS])
    return {
        "title": "Lake",
        "lake": desk.settings.console_lake,
        "found": found,
        "left_out": topics[LIMIT_TOPICS:],
        "trouble": trouble,
    }


async def build_view(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    topic = query.get("topic", "")
    if topic not in _topics(desk):
        raise RequestDenied(404, f"{desk.settings.app} folds no topic {topic[:100]}.")
    if desk.settings.console_lake is None:
        raise RequestDenied(404, "No lake is named: set console_lake.")
    found, trouble = await _ask(desk, [topic])
    landed = found[0] if found else LakeTopicLine(topic=topic, table="", trouble=trouble)
    return {
        "title": f"Topic {topic} in the lake",
        "landed": landed,
        "page": paged(landed.partitions, "/lake/view", query),
    }


def _topics(desk: ConsoleDesk) -> list[str]:
    return sorted({str(topic) for each in desk.processors for topic in each.topics})


async def _ask(desk: ConsoleDesk, topics: Sequence[str]) -> tuple[list[LakeTopicLine], str | None]:
    lake = desk.settings.console_lake
    if lake is None or not topics:
        return [], None
    try:
        return await desk.children.run(partial(answer_landed, desk.settings, lake, topics)), None
    except HoldfastError as error:
        return [], str(error)


LAKE = ConsolePage(path="/lake", menu="Lake", template="lake.html", build=build_list, live=False)
LANDED = ConsolePage(path="/lake/view", menu="Lake", template="landed.html", build=build_view, live=False)
