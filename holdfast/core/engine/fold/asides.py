"""Deferred results, such as closed windows and unmatched joins. If one fails, the record or tick being folded
is not refused.

At full speed such a failure is raised as any other, and the transaction is folded again with care. Then the
result is put aside: the record is folded all the same, and the folder refuses the result alone, at the stage
"close".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.core.engine.emits import Emit
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import Later

T = TypeVar("T")
_ASIDES = "asides"


class Asides:
    """The deferred results that failed while one record, timer or tick is folded with care."""

    __slots__ = ("_check", "_failures", "failed")

    def __init__(self, check: Callable[[Emit], None], failures: tuple[type[BaseException], ...]) -> None:
        self._check, self._failures = check, failures
        self.failed: list[tuple[str, BaseException]] = []

    def attempt(self, what: str, make: Callable[[], Emit]) -> Emit | None:
        """Return the emit of *make*; None, with its failure put aside, if that raises or cannot be sent."""

        def checked() -> Emit:
            emit = make()
            self._check(emit)
            return emit

        return self.tried(what, checked)

    def tried(self, what: str, make: Callable[[], T]) -> T | None:
        """Return the value of *make*; None, with its failure put aside, if that raises."""
        try:
            return make()
        except (MemoryError, Later):  # the fold is tried again: no result has failed
            raise
        except self._failures as error:
            self.failed.append((what, error))
            return None


def open_asides(rows: Rows[Any], asides: Asides) -> None:
    """Make `emit_result` put failures aside in *asides* until `close_asides`, or until changes are undone."""
    rows.derived[_ASIDES] = asides


def close_asides(rows: Rows[Any]) -> None:
    """Make `emit_result` raise failures again."""
    rows.derived.pop(_ASIDES, None)


def takes_asides(rows: Rows[Any]) -> bool:
    """Return whether failures are put aside now; else `emit_result` just adds an emit."""
    return _ASIDES in rows.derived


def emit_result(rows: Rows[Any], emits: list[Emit], what: str, make: Callable[[], Emit]) -> None:
    """Add to *emits* the deferred result of *make*, which is due.

    *what* names its key and window, and precedes the reason of a failure.
    """
    asides: Asides | None = rows.derived.get(_ASIDES)
    emit = make() if asides is None else asides.attempt(what, make)
    if emit is not None:
        emits.append(emit)


def attempt(rows: Rows[Any], what: str, make: Callable[[], T]) -> T | None:
    """Return the deferred result of *make*; None where its failure is put aside. *what* names it."""
    asides: Asides | None = rows.derived.get(_ASIDES)
    return make() if asides is None else asides.tried(what, make)


def put_aside(rows: Rows[Any]) -> int:
    """Return the number of results put aside since the record, timer or tick was met."""
    asides: Asides | None = rows.derived.get(_ASIDES)
    return 0 if asides is None else len(asides.failed)
