"""Migrations: how a version of a processor makes its first rows of those of an earlier version."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.state.row_types import why_unfit
from holdfast.core.engine.state.rows import Rows

RowMigration: TypeAlias = Callable[[Rows[Any], str, Any], None]
"""Called with the new rows, and the key and the row of an earlier version; sets the rows that replace it."""
TAKES = ("rows", "key", "row")
_PLAIN = (inspect.Parameter.empty, Any, object)


@dataclass(frozen=True, slots=True)
class Migration:
    """The functions that turn rows of *version* into rows of a later one, by table: "" for the processor's
    own.

    Rows of a table without a function stay as they are. A function gets rows of the type that its third
    parameter is annotated with; without that, as lists, maps and plain values.
    """

    version: int
    functions: Mapping[str, RowMigration]

    def type_of(self, table: str) -> Any | None:
        """Return the type of the rows that the function of *table* gets, None for plain values."""
        return _annotated(self.functions[table])


def declared_migrations(migrate: Mapping[int, Any]) -> dict[int, Migration]:
    """Return the migrations that a processor's `migrate` declares, by the version that they begin from."""
    return {
        version: Migration(version, dict(made) if isinstance(made, Mapping) else {"": made})
        for version, made in migrate.items()
    }


def why_wrong_migrations(migrate: Any, version: int) -> str | None:
    """Return the first fault of `migrate` of a processor's *version* and what to write; None when it has
    none.

    >>> why_wrong_migrations({1: lambda rows, key, row: None}, 2) is None
    True
    >>> why_wrong_migrations({2: lambda rows, key, row: None}, 2)
    'migrate from version 2: it is no version before 2'
    """
    if not isinstance(migrate, Mapping):
        return f"migrate is {migrate!r:.200}; write a dict: migrate={{1: function}}"
    for earlier, made in migrate.items():
        if type(earlier) is not int or not 1 <= earlier < version:
            return f"migrate from version {earlier!r:.80}: it is no version before {version}"
        functions = made if isinstance(made, Mapping) else {"": made}
        for table, function in functions.items():
            where = f"migrate from version {earlier}" + (f", table {table!r:.80}," if table else "")
            if not isinstance(table, str):
                return f"{where} names no table: write {{'sessions': function}}, \"\" for the processor's own"
            if (why := _why_wrong(function)) is not None:
                return f"{where} {why}"
    return None


def _why_wrong(function: Any) -> str | None:
    if (why := why_uncallable(function, TAKES)) is not None:
        return why
    try:
        kind = _annotated(function)
    except NameError as error:
        return f"is annotated with what cannot be found ({error}): declare the row type where the function is"
    if kind is not None and (why := why_unfit(kind)) is not None:
        return f"gets rows of type {kind!r:.200}: {why}"
    return None


def _annotated(function: Any) -> Any | None:
    try:
        parameters = [*inspect.signature(function, eval_str=True).parameters.values()]
    except (TypeError, ValueError):
        return None  # many functions written in C have no signature
    kind = parameters[2].annotation if len(parameters) > 2 else Any
    return None if kind in _PLAIN else kind
