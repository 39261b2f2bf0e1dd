"""What is due with windows when stream time gets there: an index in rows, read without scanning what is not due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from holdfast.core.engine.rows import NEVER, Rows
from holdfast.core.streams.window_rows import DIGITS, DUE, DueRow

Kind = Literal["c", "d", "t"]
CLOSE: Kind = "c"
DROP: Kind = "d"
TELL: Kind = "t"

Entry = tuple[int, Kind, str]
"""When, what, and with which window (its row key)."""

_DUE = DueRow()


def add_due(rows: Rows[Any], entry: Entry) -> None:
    """Note what is due. Noting it twice is noting it once."""
    due_ms, kind, window = entry
    rows[f"{DUE}{due_ms:016d}/{kind}/{window}"] = _DUE


def cancel_due(rows: Rows[Any], entry: Entry) -> None:
    """Forget what was noted."""
    due_ms, kind, window = entry
    rows[f"{DUE}{due_ms:016d}/{kind}/{window}"] = None


def take_due(rows: Rows[Any], from_ms: int, until_ms: int) -> tuple[list[Entry], int]:
    """Remove and return what is due in [from_ms, until_ms], in order, and when the next is due, NEVER for none.

    Nothing may be due before *from_ms*.

    Keys hold the time in 16 digits, so their first digits name a stretch of time. At most two stretches cover the
    span, each less than ten times as long: what is met in vain is in proportion to the span.
    """
    exponent = len(str(until_ms - from_ms))
    width = 10**exponent
    taken: list[Entry] = []
    next_ms = NEVER
    for stretch in range(from_ms // width, until_ms // width + 1):
        for name, _ in rows.scan(f"{DUE}{stretch:0{DIGITS - exponent}d}"):
            entry = _entry(name)
            if entry[0] > until_ms:
                next_ms = entry[0]
                break
            taken.append(entry)
    for entry in taken:
        cancel_due(rows, entry)
    if next_ms == NEVER:
        next_ms = _first_due(rows, (until_ms // width + 1) * width, exponent, 1 + len(taken) // 100)
    return taken, next_ms


def _first_due(rows: Rows[Any], from_ms: int, exponent: int, step: int) -> int:
    """Return when the first thing is due, which is not before *from_ms*; NEVER for none.

    Stretches are looked at from there on, each 10 ** *step* times as long as the last, so that many entries are met
    only where what is found is as far away. A stretch also holds what was just taken, which is passed over: after
    many, few stretches are looked at.
    """
    while exponent < DIGITS:
        exponent = min(exponent + step, DIGITS)
        width = 10**exponent
        stretch = from_ms // width
        prefix = f"{DUE}{stretch:0{DIGITS - exponent}d}" if exponent < DIGITS else DUE
        found = next(rows.scan(prefix), None)
        if found is not None:
            return _entry(found[0])[0]
        from_ms = (stretch + 1) * width
    return NEVER


def _entry(name: str) -> Entry:
    at = len(DUE) + DIGITS
    return int(name[len(DUE) : at]), name[at + 1], name[at + 3 :]  # type: ignore[return-value]


def within(rows: Rows[Any], prefix: str, first_ms: int, last_ms: int) -> Iterator[tuple[int, Any]]:
    """Yield (start, row) of the windows whose keys are *prefix* and a start in [first_ms, last_ms], ascending.

    Keys of another length that begin alike are passed over.
    """
    if first_ms < 0:  # only when event times are shorter than the windows: their order is not that of keys
        stretches = [prefix]
    else:
        exponent = min(len(str(last_ms - first_ms)), DIGITS - 1)
        width = 10**exponent
        numbers = range(first_ms // width, last_ms // width + 1)
        stretches = [f"{prefix}{number:0{DIGITS - exponent}d}" for number in numbers]
    length = len(prefix) + DIGITS
    found = [
        (int(name[-DIGITS:]), row)
        for stretch in stretches
        for name, row in rows.scan(stretch)
        if len(name) == length and name.startswith(prefix)
    ]
    return (each for each in sorted(found, key=_start) if first_ms <= each[0] <= last_ms)


def _start(found: tuple[int, Any]) -> int:
    return found[0]
