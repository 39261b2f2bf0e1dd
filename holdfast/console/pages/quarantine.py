"""Records that were refused, and why."""

from __future__ import annotations

from typing import Any

from holdfast.clients.quarantine.records import Quarantine, QuarantinedRecord
from holdfast.console.access import RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage, Query
from holdfast.console.showing.depths import deeper, depth_of
from holdfast.console.showing.paging import paged
from holdfast.errors import HoldfastError, TopicError

TIMEOUT_S = 8.0
LIMIT_RECORDS = 10_000
LIMIT_SHOWN = 20_000
LIMIT_VIEWED = 100
"""So many processors can have refused one record, and be shown with it."""


async def build_list(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    processor, still_open = query.get("processor", "").strip(), query.get("open") == "1"
    trouble, found, left_out = None, list[QuarantinedRecord](), 0
    try:
        found, left_out = await _records(desk, query, lambda each: processor in ("", each.processor))
    except TopicError:
        pass  # no worker has run yet, or only workers that refuse nothing
    except HoldfastError as error:
        trouble = str(error)
    shown = [each for each in reversed(found) if not still_open or each.retried_to is None]
    return {
        "title": "Quarantine",
        "processors": sorted(each.name for each in desk.processors),
        "processor": processor,
        "still_open": still_open,
        "page": paged(shown, "/quarantine", query),
        "limit": LIMIT_RECORDS if len(found) == LIMIT_RECORDS else None,
        "trouble": trouble,
        **deeper(query, "/quarantine", left_out),
    }


async def build_view(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    name = query.get("name", "")
    try:
        found, left_out = await _records(desk, query, lambda each: each.is_named(name), values=True)
    except HoldfastError as error:
        raise RequestDenied(503, str(error)) from None
    if not found and not left_out:
        raise RequestDenied(404, f"The quarantine holds no {name[:200]}.")
    return {
        "title": "Refused record",
        "name": name,
        "records": found,
        "written": written,
        **deeper(query, "/quarantine/view", left_out),
    }


async def _records(
    desk: ConsoleDesk, query: Query, wanted: Any, *, values: bool = False
) -> tuple[list[QuarantinedRecord], int]:
    """Return the records that *wanted* selects at the end of the quarantine, and how many offsets before that
    were not read.
    """
    quarantine = Quarantine(desk.settings, timeout_s=TIMEOUT_S, tail=depth_of(query))
    limit = LIMIT_VIEWED if values else LIMIT_RECORDS
    found = await desk.calls.run(lambda: quarantine.records(wanted, values=values, limit=limit))
    return found, quarantine.left_out


def written(data: bytes | None) -> str:
    r"""Return bytes for people: text where it is text, else hexadecimal; cut where they are very many.

    >>> written(b'{"a": 1}'), written(b"\xff\x00"), written(None)
    ('{"a": 1}', '0xff00', 'none')
    """
    if data is None:
        return "none"
    rest = f"… {len(data):,} bytes in all" if len(data) > LIMIT_SHOWN else ""
    cut = data[:LIMIT_SHOWN]
    try:
        text = cut.decode(errors="strict" if not rest else "ignore")
    except UnicodeDecodeError:
        return f"0x{cut.hex()}{rest}"
    readable = all(each.isprintable() or each in "\n\t" for each in text)
    return f"{text}{rest}" if readable else f"0x{cut.hex()}{rest}"


QUARANTINE = ConsolePage(
    path="/quarantine", menu="Quarantine", template="quarantine.html", build=build_list, live=False
)
QUARANTINED = ConsolePage(
    path="/quarantine/view", menu="Quarantine", template="quarantined.html", build=build_view, live=False
)
