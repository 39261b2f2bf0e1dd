"""What the state of a table needs to know of the processor that is declared for it."""

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
        """Return the named tables beside the processor's own."""
        ...

    @property
    def table(self) -> str:
        """Return the table's name: name and version."""
        ...

    def row_of(self, table: str) -> Any:
        """Return the type of the rows of a table; "" is the processor's own."""
        ...
