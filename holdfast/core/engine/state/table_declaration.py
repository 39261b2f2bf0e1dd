"""The part of a processor's declaration that the state of its table needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class TableDeclaration(Protocol):
    """A processor as its rows know it: declarations name the types of rows, so state names no declaration."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...

    @property
    def tables(self) -> Mapping[str, Any]:
        """Return the named tables, without the processor's own."""
        ...

    @property
    def table(self) -> str:
        """Return the table's name: name and version."""
        ...

    def row_of(self, table: str) -> Any:
        """Return the type of the rows of a table; "" is the processor's own."""
        ...
