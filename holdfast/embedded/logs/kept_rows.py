"""Rows of one of the models, kept in memory for as long as the broker runs: nothing is cached, and no
transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, overload

from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.engine.state.rows import Rows

R = TypeVar("R")
D = TypeVar("D")


class _NothingStored:
    """A store that is empty."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(())


class KeptRows(Rows[R]):
    """Rows of a dict: deletions leave no trace, and changes are not noted elsewhere."""

    __slots__ = ()

    def __init__(self, row: Any) -> None:
        super().__init__(_NothingStored(), RowCodec(row), 1)

    @overload
    def get(self, key: str) -> R | None: ...
    @overload
    def get(self, key: str, default: D) -> R | D: ...
    def get(self, key: str, default: D | None = None) -> R | D | None:
        """Return the row of *key*, or *default*: there is nowhere else to look."""
        return self._changed.get(key, default)

    def __setitem__(self, key: str, row: R) -> None:
        self._changed[key] = row

    def __delitem__(self, key: str) -> None:
        del self._changed[key]

    def scan(self, prefix: str = "", *, start: str = "") -> Iterator[tuple[str, R]]:
        """Yield (key, row) with *prefix* in the order of the keys, as they are when the scan begins."""
        found = [key for key in self._changed if key.startswith(prefix) and key >= start]
        for key in sorted(found, key=str.encode):
            if (row := self._changed.get(key)) is not None:
                yield key, row
