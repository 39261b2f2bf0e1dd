"""The ledgers of named producers, where the application keeps them."""

from __future__ import annotations

from typing import Any

from holdfast.clients.tables.answers import Answer
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.paging import paged
from holdfast.core.producers.ledger import Book, BookRow, Totals, producer_of_key
from holdfast.errors import HoldfastError

TIMEOUT_S = 5.0
LIMIT_BOOKS = 10_000


async def build(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    kept = [each for each in desk.processors if each.row == BookRow]
    troubled, trouble, unstamped = query.get("trouble") == "1", None, dict[str, int]()
    books: list[dict[str, Any]] = []
    try:
        for processor in kept:
            async for answer in desk.tables.scan(processor, timeout_s=TIMEOUT_S):
                topic, held = processor.topics[0], answer.value
                if isinstance(held, Totals):
                    unstamped[topic] = unstamped.get(topic, 0) + held.unstamped
                elif len(books) < LIMIT_BOOKS:
                    books.append(_book(answer, held, topic))
    except HoldfastError as error:
        trouble = str(error)
    shown = [each for each in books if not troubled or each["wrong"]]
    shown.sort(key=lambda each: (each["producer"], each["topic"], each["partition"]))
    return {
        "title": "Producers",
        "kept": bool(kept),
        "troubled": troubled,
        "page": paged(shown, "/producers", query),
        "unstamped": {topic: count for topic, count in sorted(unstamped.items()) if count},
        "cut": LIMIT_BOOKS if len(books) == LIMIT_BOOKS else None,
        "trouble": trouble,
    }


def _book(answer: Answer[Any], book: Book, topic: str) -> dict[str, Any]:
    faults = book.faults
    seen = faults.trouble
    return {
        "producer": producer_of_key(answer.key),
        "topic": topic,
        "partition": answer.partition,
        "epoch": book.epoch,
        "last_sequence": book.last_sequence,
        "records": book.records,
        "missing": faults.missing,
        "late": faults.late,
        "duplicates": faults.duplicates,
        "zombies": faults.zombies,
        "wrong": bool(faults.missing or faults.duplicates or faults.doubtful or faults.zombies),
        "trouble": None if seen is None else (seen.kind.value, seen.offset),
        "last_at_ms": None if book.last_at_ms < 0 else book.last_at_ms,
        "as_of": answer.as_of_offset,
    }


PRODUCERS = ConsolePage(
    path="/producers", menu="Producers", template="producers.html", build=build, live=False
)
