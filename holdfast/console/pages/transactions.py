"""The states of transactional ids, and transactions whose end is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.console.asking.transactions import answer_transactions
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import paged
from holdfast.errors import HoldfastError

PATH = "/producers/transactions"


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    wanted = query.get("q", "").strip()
    context: dict[str, Any] = {"title": "Transactions", "wanted": wanted, "found": None, "trouble": None}
    topics = sorted({str(topic) for each in desk.processors for topic in (*each.topics, *each.emits)})
    try:
        found = await desk.children.run(partial(answer_transactions, desk.settings, topics, wanted))
    except HoldfastError as error:
        return {**context, "trouble": str(error)}
    return {**context, "found": found, "page": paged(found.ids, PATH, query)}


TRANSACTIONS = ConsolePage(path=PATH, menu="Producers", template="transactions.html", build=build, live=False)
