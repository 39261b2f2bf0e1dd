"""Global tables as folds read them: rows of any partition, as of a position that is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar, overload

from holdfast.core.engine.state.codec import RowCodec, row_key, text_key
from holdfast.errors import FoldError

R = TypeVar("R")
D = TypeVar("D")

LIMIT_CACHED_ROWS = 10_000
"""The number of rows, or keys without one, that a reader of a global caches decoded while its position is the
same.
"""

Vector: TypeAlias = tuple[int, ...]
"""The position of a global: the last offset applied of each partition, -1 for none. Partitions at the end of
which nothing was applied are left out, so () is the position before any record.
"""


@dataclass(frozen=True, slots=True, eq=False)
class GlobalName(Generic[R]):
    """The name by which a fold reads a global, and the type of its rows."""

    name: str
    row: Any = field(kw_only=True)


def trimmed(vector: Sequence[int]) -> Vector:
    """Return *vector* without partitions at its end of which nothing was applied.

    >>> trimmed([3, -1, 0, -1]), trimmed([-1])
    ((3, -1, 0), ())
    """
    end = len(vector)
    while end and vector[end - 1] < 0:
        end -= 1
    return tuple(vector[:end])


def covers(vector: Vector, other: Vector) -> bool:
    """Return whether *vector* lies nowhere before *other*.

    >>> covers((3, 1), (3,)), covers((3,), (2, 0))
    (True, False)
    """
    return len(vector) >= len(other) and all(mine >= its for mine, its in zip(vector, other, strict=False))


class GlobalStoreView(Protocol):
    """A global as of one position."""

    def get(self, key: bytes) -> bytes | None:
        """Return the stored row of a stored key; raises FoldError when two partitions have one."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield stored (key, row) with *prefix* in key order."""
        ...


class GlobalViews(Protocol):
    """The source of a folder's globals; each is named by its index among the processor's `reads`."""

    def move(self, number: int, vector: Vector) -> None:
        """Set the *vector* at which the next records see the global."""

    def view(self, number: int, vector: Vector) -> GlobalStoreView:
        """Return the global as of exactly *vector*; GlobalsError when that is not available."""
        ...

    def settle(self, number: int, vector: Vector) -> None:
        """Begin a transaction at *vector*: nothing before it is read any more."""


class GlobalRows(Generic[R]):
    """The rows of a global as a fold sees them: `get`, `[]`, `in`, `scan`. All records of a transaction see
    one position.
    """

    __slots__ = ("_cache", "_codec", "_failures", "_name", "_number", "_view", "_views", "vector")

    def __init__(
        self, number: int, table: GlobalName[R], views: GlobalViews, failures: list[Exception], vector: Vector
    ) -> None:
        self._number, self._name, self._views, self._failures = number, table.name, views, failures
        self._codec: RowCodec[R] = RowCodec(table.row)
        self._cache: dict[str, R | None] = {}
        self._view: GlobalStoreView | None = None
        self.vector = vector

    @overload
    def get(self, key: str) -> R | None: ...
    @overload
    def get(self, key: str, default: D) -> R | D: ...
    def get(self, key: str, default: D | None = None) -> R | D | None:
        """Return the row of *key*, or *default*; raises FoldError when two partitions of the topic have
        one.
        """
        try:
            row = self._cache[key]
        except KeyError:
            row = self._load(key)
        return default if row is None else row

    def _load(self, key: str) -> R | None:
        stored = row_key(key)
        try:
            value = self._at().get(stored)
            row = None if value is None else self._codec.decode(value)
        except FoldError:
            raise
        except Exception as error:
            self._failures.append(error)
            raise
        if len(self._cache) >= LIMIT_CACHED_ROWS:
            self._cache.clear()
        self._cache[key] = row
        return row

    def _at(self) -> GlobalStoreView:
        if self._view is None:
            self._view = self._views.view(self._number, self.vector)
        return self._view

    def __getitem__(self, key: str) -> R:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def scan(self, prefix: str = "") -> Iterator[tuple[str, R]]:
        """Yield (key, row) with *prefix* in the order of the keys' UTF-8 bytes."""
        within = row_key(prefix)
        try:
            for stored, value in self._at().scan(within):
                yield text_key(stored), self._codec.decode(value)
        except FoldError:
            raise
        except Exception as error:
            self._failures.append(error)
            raise

    def __setitem__(self, key: str, row: object) -> None:
        self._refuse(f"[{key!r:.200}] = ...")

    def __delitem__(self, key: str) -> None:
        self._refuse(f"del [{key!r:.200}]")

    def wake_at(self, key: str, at_ms: int | None, *, clock: str = "append") -> None:
        """Refuse: timers are the processor's own."""
        self._refuse(f"wake_at({key!r:.200})")

    def _refuse(self, what: str) -> NoReturn:
        raise FoldError(
            f"{what} on global table {self._name}: folds of processors only read it; what it holds is written"
            " by records of its topic"
        )

    def move(self, vector: Vector) -> None:
        """Show another position from here on. For the folder only."""
        self._view = None
        if vector != self.vector:
            self.vector = vector
            self._cache.clear()
        self._views.move(self._number, vector)

    def settle(self, vector: Vector) -> None:
        """Begin a transaction at *vector*. For the folder only."""
        self._view = None
        if vector != self.vector:
            self.vector = vector
            self._cache.clear()
        self._views.settle(self._number, vector)


class GlobalTables:
    """The globals that a processor reads: `rows.globals[rates]`."""

    __slots__ = ("_by_name", "_tables")

    def __init__(
        self,
        reads: Sequence[GlobalName[Any]] = (),
        views: GlobalViews | None = None,
        failures: list[Exception] | None = None,
        vectors: Sequence[Vector] = (),
    ) -> None:
        found: list[GlobalRows[Any]] = []
        for number, table in enumerate(reads):
            assert views is not None, "globals are read from somewhere"
            assert failures is not None, "what fails there is told"
            found.append(GlobalRows(number, table, views, failures, vectors[number]))
        self._tables = tuple(found)
        self._by_name = {table.name: rows for table, rows in zip(reads, found, strict=True)}

    def __getitem__(self, table: GlobalName[R]) -> GlobalRows[R]:
        # By name: a Spark task has its own copy of the declaration.
        found = self._by_name.get(getattr(table, "name", ""))
        if found is None:
            raise FoldError(
                f"global table {getattr(table, 'name', table)!r:.200} is not among the reads of this"
                f" processor ({', '.join(self._by_name) or 'none'}): write Processor(..., reads=(...,))"
            )
        return found

    def move(self, vectors: Sequence[Vector]) -> None:
        """Show other positions from here on. For the folder only."""
        for table, vector in zip(self._tables, vectors, strict=True):
            table.move(vector)

    def settle(self, vectors: Sequence[Vector]) -> None:
        """Begin a transaction at *vectors*. For the folder only."""
        for table, vector in zip(self._tables, vectors, strict=True):
            table.settle(vector)
