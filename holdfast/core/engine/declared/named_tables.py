"""Named tables of a processor: their declarations and the checks of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.state.row_types import why_unfit

LIMIT_TABLES = 16
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Table:
    """A named table with a *route* for queries: `tables={"sessions": Table(Session, route=by_key)}`.

    A type alone declares one without a route: a query asks every partition, unless it names one.
    """

    row: Any
    route: Callable[[str, int], int | None] | None = None


def declared_table(declared: Any) -> Table:
    """Return the table that a value of `tables` declares."""
    return declared if isinstance(declared, Table) else Table(declared)


def why_wrong_tables(tables: Any) -> str | None:
    """Return the first fault of a processor's `tables` and what to write; None when it has none.

    >>> why_wrong_tables({"sessions": int}) is None
    True
    >>> why_wrong_tables({"a.b": int})
    "tables has table name 'a.b': use 1 to 100 letters, digits, '_' or '-'; queries name it PROCESSOR.TABLE"
    """
    if not isinstance(tables, Mapping):
        return f"tables is {tables!r:.200}; write a dict: {{name: Row}}"
    if len(tables) > LIMIT_TABLES:
        return f"tables names {len(tables)} tables, {LIMIT_TABLES} are the most: declare more processors"
    for name, declared in tables.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return (
                f"tables has table name {name!r:.200}: use 1 to 100 letters, digits, '_' or '-'; queries name"
                " it PROCESSOR.TABLE"
            )
        table = declared_table(declared)
        if (why := why_unfit(table.row)) is not None:
            return f"row type {table.row!r:.200} of table {name}: {why}"
        if (
            table.route is not None
            and (why := why_uncallable(table.route, ("key", "partitions"))) is not None
        ):
            return f"route of table {name} {why}"
    return None
