"""Emits in columns: what steps send, without an object for each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Self, overload

from holdfast.core.engine.emits import Emit, Headers
from holdfast.core.engine.origins import ORIGIN

Carried = Headers | bytes
"""The headers of a record; if that of its origin is the only one, its content."""


def headers_of(carried: Carried) -> Headers:
    """Return the headers of a record."""
    return ((ORIGIN, carried),) if isinstance(carried, bytes) else carried


class EmitColumns(Sequence[Emit]):
    """Emits as columns of equal length.

    >>> sent = EmitColumns()
    >>> sent.add("totals", [b"ada", b"bob"], [b"1", b"2"], [(), ()])
    >>> len(sent), sent[1].key, sent == [Emit("totals", b"ada", b"1"), Emit("totals", b"bob", b"2")]
    (2, b'bob', True)
    """

    __slots__ = ("carried", "keys", "partitions", "topics", "values")

    def __init__(self, *columns: list[Any]) -> None:
        self.topics: list[str]
        self.keys: list[str | bytes | None]
        self.values: list[bytes | None]
        self.carried: list[Carried]
        self.partitions: list[int | None]
        self.topics, self.keys, self.values, self.carried, self.partitions = columns or ([], [], [], [], [])

    def add(
        self,
        topic: str,
        keys: Iterable[str | bytes | None],
        values: Iterable[bytes | None],
        carried: Iterable[Carried],
        partitions: Iterable[int | None] | None = None,
    ) -> None:
        """Append emits to *topic*; without *partitions*, murmur2 of the key decides."""
        before = len(self.keys)
        self.keys += keys
        self.values += values
        self.carried += carried
        count = len(self.keys) - before
        self.topics += repeat(topic, count)
        self.partitions += repeat(None, count) if partitions is None else partitions
        assert {*map(len, self.columns)} == {len(self.keys)}, "a column lacks records"

    def extend(self, emits: Iterable[Emit]) -> None:
        """Append *emits*."""
        if isinstance(emits, EmitColumns):
            for mine, theirs in zip(self.columns, emits.columns, strict=True):
                mine += theirs
            return
        for each in emits:
            self.topics.append(each.topic)
            self.keys.append(each.key)
            self.values.append(each.value)
            self.carried.append(each.headers)
            self.partitions.append(each.partition)

    def __iadd__(self, emits: Iterable[Emit]) -> Self:
        self.extend(emits)
        return self

    @property
    def columns(self) -> tuple[list[Any], ...]:
        """Return the columns, in the order of the fields of `Emit`."""
        return self.topics, self.keys, self.values, self.carried, self.partitions

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Emit]:
        return map(Emit, self.topics, self.keys, self.values, map(headers_of, self.carried), self.partitions)

    @overload
    def __getitem__(self, at: int) -> Emit: ...
    @overload
    def __getitem__(self, at: slice) -> EmitColumns: ...
    def __getitem__(self, at: int | slice) -> Emit | EmitColumns:
        if isinstance(at, slice):
            return EmitColumns(*(each[at] for each in self.columns))
        topic, key, value, carried, partition = (each[at] for each in self.columns)
        return Emit(topic, key, value, headers_of(carried), partition)

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, EmitColumns | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"EmitColumns({[*self]})"


Emitted = list[Emit] | EmitColumns
"""The emits of a transaction."""


def topics_of(emits: Emitted) -> Iterable[str]:
    """Return the topic of each of *emits*."""
    return emits.topics if isinstance(emits, EmitColumns) else [each.topic for each in emits]
