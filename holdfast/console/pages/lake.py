"""The landed part of the topics in the lake, and the faults there."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.console.access import RequestDenied
from holdfast.console.asking.lake import LIMIT_TOPICS, LakeTopicLine, answer_landed, lake_topics
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import paged
from holdfast.errors import HoldfastError


async def build_list(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    look = desk.lake
    if look is not None:
        await look.now()
    return {
        "title": "Lake",
        "lake": desk.settings.console_lake,
        "found": [] if look is None or look.trouble is not None else look.found,
        "left_out": lake_topics(desk.processors)[LIMIT_TOPICS:],
        "trouble": None if look is None else look.trouble,
    }


async def build_view(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    topic, lake = query.get("topic", ""), desk.settings.console_lake
    if topic not in lake_topics(desk.processors):
        raise RequestDenied(404, f"{desk.settings.app} folds no topic {topic[:100]}.")
    if lake is None:
        raise RequestDenied(404, "No lake is named: set console_lake.")
    try:
        (landed,) = await desk.children.run(partial(answer_landed, desk.settings, lake, [topic]))
    except HoldfastError as error:
        landed = LakeTopicLine(topic=topic, table="", trouble=str(error))
    return {
        "title": f"Topic {topic} in the lake",
        "landed": landed,
        "page": paged(landed.partitions, "/lake/view", query),
    }


LAKE = ConsolePage(path="/lake", menu="Lake", template="lake.html", build=build_list, live=False)
LANDED = ConsolePage(path="/lake/view", menu="Lake", template="landed.html", build=build_view, live=False)
