"""The report to a test about records that its processors refused, and where the code failed."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.core.engine.fold.user_frames import UserFrame, calls_line
from holdfast.errors import UnseenRefusalsError
from holdfast.testing.logs import TopicRecord
from holdfast.testing.tracebacks import of_the_kit

__tracebackhide__ = of_the_kit
NOTED_REFUSALS = 5
"""The most refused records that a failed test shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """A record that a worker would put to quarantine, and why; None for a timer that failed at a tick.

    One of a global's topic, of which *processor* is the name, is only logged there.
    """

    processor: str
    record: TopicRecord | None
    stage: str
    error: str
    reason: str
    frames: tuple[UserFrame, ...] = field(default=(), compare=False)
    """The calls of the application's code that failed, the innermost last: file, line, function."""


def require_none(refused: Sequence[RefusedRecord], stopped: Sequence[RefusedRecord]) -> None:
    """Raise UnseenRefusalsError if there are any: the test has looked at none."""
    if not refused and not stopped:
        return
    first = (*refused, *stopped)[0]
    where = f" in {calls_line(first.frames)}" if first.frames else ""
    raise UnseenRefusalsError(
        f"{first.record or 'a timer'} was refused by {first.processor}, at {first.stage}: {first.error}:"
        f" {first.reason:.300}{where}; this test has not looked at `topology.refused`: mend what raised, or"
        f" assert what is refused\n{_summary([*refused, *stopped], _with_code)}"
    )


def refused_note(refused: Sequence[RefusedRecord]) -> str:
    """Return the first of *refused*, a line each."""
    return _summary(refused, _in_a_line)


def _summary(refused: Sequence[RefusedRecord], show: Callable[[RefusedRecord], list[str]]) -> str:
    lines = [line for each in refused[:NOTED_REFUSALS] for line in show(each)]
    more = len(refused) - NOTED_REFUSALS
    return "\n".join(
        ["holdfast refused in this topology:", *lines, *([f"  and {more} more"] if more > 0 else [])]
    )


def _in_a_line(each: RefusedRecord) -> list[str]:
    return [f"  {each.record} by {each.processor}, at {each.stage}: {each.error}: {each.reason:.300}"]


def _with_code(each: RefusedRecord) -> list[str]:
    found = _in_a_line(each)
    for frame in each.frames:
        found.append(f'    File "{frame.file}", line {frame.line}, in {frame.function}')
        if code := linecache.getline(frame.file, frame.line).strip():
            found.append(f"      {code}")
    return found
