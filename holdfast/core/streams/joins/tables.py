"""`JoinTables`: two tables of one key as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import EmitsFrom, OnError, Processor
from holdfast.core.engine.declared.sources import FoldWith, Readable
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.joins.joining import (
    How,
    Route,
    check_apart,
    check_result_key,
    check_tombstones,
    held_type,
    joined_sources,
    key_of,
)

L = TypeVar("L")
R = TypeVar("R")
J = TypeVar("J")


class Joined(msgspec.Struct, Generic[L, R], frozen=True, array_like=True):
    """The rows of one key in both tables; None where a table has none."""

    left: L | None = None
    right: R | None = None


class JoinTables(Processor[Any, Any], Generic[L, R, J]):
    """The rows of two tables that have one key, joined whenever either changes.

    *left* and *right* are topics of tables: a record sets the row of its key, one without value (a tombstone)
    removes it. *join* gets the two rows, and its result is sent to *to*. *how* is "inner": there is a result
    while both rows exist; "left": while the left one does, and the right one may be None; or "outer": while
    either does. *join* must not return None, which would be sent as a tombstone. When a result is gone, a
    tombstone is sent, so the values of *to* must allow None.

    Rows are `Joined` by key. A record without a key is refused. Raises ConfigError, at the declaration, for
    parameters that do not fit together.

    >>> from holdfast import Json, Source, Stream
    >>> from holdfast.testing import Topology
    >>> names, towns = Source("names", Json(str | None)), Source("towns", Json(str))
    >>> homes = Stream("homes", Json(str | None))
    >>> joined = JoinTables(name="homes", left=names, right=towns, join=lambda name, town: f"{name} of {town}", to=homes)
    >>> with Topology([joined]) as topology:
    ...     for source, value in ((names, "ada"), (towns, "york"), (names, None)):
    ...         _ = topology.pipe(source, value, key="a")
    ...     topology.values(homes)
    [('a', 'ada of york'), ('a', None)]
    """  # noqa: E501

    __slots__ = ()

    @overload
    def __init__(
        self,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        join: Callable[[L, R], J],
        to: Stream[J | None],
        how: Literal["inner"] = "inner",
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        join: Callable[[L, R | None], J],
        to: Stream[J | None],
        how: Literal["left"],
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        join: Callable[[L | None, R | None], J],
        to: Stream[J | None],
        how: How,
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        left: Readable[Any],
        right: Readable[Any],
        join: Callable[[Any, Any], J],
        to: Stream[Any],
        how: How = "inner",
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose = f"processor {name}"
        given = {"left": left, "right": right}
        one, other = joined_sources(whose, given, to, how, ("inner", "left", "outer"), join)
        check_apart(whose, {"left": one, "right": other})
        check_tombstones(whose, to)
        check_result_key(whose, to)

        def changed(rows: Rows[Any], key: str, after: Joined[Any, Any]) -> Emits:
            before = rows.get(key, _NEITHER)
            if after != _NEITHER:
                rows[key] = after
            elif key in rows:
                del rows[key]
            if _there(after, how):
                return (to.emit(key, join(after.left, after.right)),)
            # checked above
            return (to.emit(key, None),) if _there(before, how) else None

        def set_left(rows: Rows[Any], value: Any, at_ms: int, key: Any) -> Emits:
            key = key_of(key)
            return changed(rows, key, Joined(value, rows.get(key, _NEITHER).right))

        def set_right(rows: Rows[Any], value: Any, at_ms: int, key: Any) -> Emits:
            key = key_of(key)
            return changed(rows, key, Joined(rows.get(key, _NEITHER).left, value))

        super().__init__(
            name=name,
            on={one: FoldWith(set_left, ("key",)), other: FoldWith(set_right, ("key",))},
            # types as values
            row=Joined[held_type(whose, one), held_type(whose, other)],  # type: ignore[misc]
            version=version,
            route=route,
            emits=(to,),
            in_place=in_place,
            on_error=on_error,
            emits_from=emits_from,
        )


_NEITHER: Joined[Any, Any] = Joined()


def _there(rows: Joined[Any, Any], how: How) -> bool:
    """Return whether two rows make a result."""
    match how:
        case "inner":
            return rows.left is not None and rows.right is not None
        case "left":
            return rows.left is not None
        case "outer":
            return rows.left is not None or rows.right is not None
