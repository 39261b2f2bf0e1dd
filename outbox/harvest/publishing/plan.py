"""In which parts the rows of a take go to Kafka. Values only: `Refusals` makes a plan, a strategy carries it
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from holdfast.outbox.harvest.publishing.destinations import Destinations
from holdfast.outbox.schema.layouts import OutboxRow


class Part(NamedTuple):
    """Rows that go to Kafka together, or one row that cannot go at all, with the *flaw* that keeps it."""

    rows: Sequence[OutboxRow]
    flaw: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The rest of a take: *parts*, none of them empty, one after the other.

    Every row after a refused row of its key has left the plan, so the parts keep the order of every key.
    """

    parts: tuple[Part, ...] = ()
    is_plain: bool = False
    """No topic is refused, no row failed before or has a flaw: the next rows may be taken ahead."""

    @property
    def rows(self) -> list[OutboxRow]:
        """The rows of all parts, in the order of the plan."""
        return [row for part in self.parts for row in part.rows]

    @property
    def flaws(self) -> dict[int, str]:
        """Why rows cannot go at all, by id: of those before the first part that can."""
        flawed = takewhile(lambda part: part.flaw is not None, self.parts)
        return {part.rows[0].id: part.flaw or "" for part in flawed}

    def first(self, *parts: Sequence[OutboxRow]) -> Plan:
        """Return the plan with *parts* instead of its first part; empty ones are left out.

        >>> rows = [OutboxRow(id, "t", b"k", b"v", [], None, None, 0, 0, None) for id in range(4)]
        >>> [[row.id for row in part.rows] for part in Plan((Part(rows),)).first([], rows[:1], rows[1:]).parts]
        [[0], [1, 2, 3]]
        """  # noqa: E501
        return replace(self, parts=(*(Part(rows) for rows in parts if rows), *self.parts[1:]))

    def kept(self, keep: Callable[[OutboxRow], bool]) -> Plan:
        """Return the plan for the rows that *keep* returns True for; it is asked in the order of the plan."""
        parts = (part._replace(rows=list(filter(keep, part.rows))) for part in self.parts)
        return replace(self, parts=tuple(part for part in parts if part.rows))


def plan_for(rows: Iterable[OutboxRow], destinations: Destinations) -> Plan:
    """Return the plan for *rows* in their order: a row that failed before is alone, and so is one with a
    flaw.

    A row that failed before is likely to fail again, and would take the others of its part with it.
    """
    parts: list[Part] = []
    plain: list[OutboxRow] = []
    for row in rows:
        flaw = row.flaw
        if flaw is None and destinations.outside(row):
            flaw = f"topic {row.topic} has no partition {row.partition}"
        if flaw is None and not row.attempts:
            plain.append(row)
            continue
        if plain:
            parts.append(Part(plain))
            plain = []
        parts.append(Part([row], flaw))
    if plain:
        parts.append(Part(plain))
    return Plan(tuple(parts), is_plain=all(part.flaw is None and not part.rows[0].attempts for part in parts))
