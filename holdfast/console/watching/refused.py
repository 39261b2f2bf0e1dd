"""Counts the refused records that wait in the quarantine: its end is read again only once something was
written to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.clients.quarantine.records import Quarantine
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.console.watching.findings import HealthFinding, Urgency
from holdfast.errors import TopicError

TIMEOUT_S = 8.0
LIMIT_OFFSETS = 500
RECENT_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCount:
    """Records among the newest LIMIT_OFFSETS offsets that were not retried: all, and those set aside within
    RECENT_MS. *more*: there are older offsets.
    """

    waiting: int
    recent: int
    more: bool


class RefusedLooks:
    """Looks at the end of the quarantine. Calls block, one at a time."""

    def __init__(self, settings: Settings, clock: Clock = system_clock) -> None:
        self._quarantine = Quarantine(settings, timeout_s=TIMEOUT_S, tail=LIMIT_OFFSETS, clock=clock)
        self._clock = clock
        self._ends: Mapping[int, int] | None = None
        self._set_aside_ms: list[int] = []

    def look(self) -> RefusedCount:
        """Return the count of now; HoldfastError if Kafka does not answer."""
        try:
            ends = self._quarantine.ends()
            if ends != self._ends:
                found = self._quarantine.records(lambda each: True, limit=LIMIT_OFFSETS)
                self._set_aside_ms = [each.at_ms for each in found if each.retried_to is None]
                self._ends = ends
        except TopicError:  # no worker has run yet, or only workers that refuse nothing
            self._ends, self._set_aside_ms = None, []
        since_ms = self._clock.now_ms() - RECENT_MS
        return RefusedCount(
            waiting=len(self._set_aside_ms),
            recent=sum(each >= since_ms for each in self._set_aside_ms),
            more=self._quarantine.left_out > 0,
        )


def judge_refused(found: RefusedCount) -> Iterator[HealthFinding]:
    """Yield the faults of the quarantine. Records that have been there for long, people have seen."""
    if not found.waiting:
        return
    shown = found.recent or found.waiting
    count = (
        f"{'At least ' if found.more else ''}{shown:,} {'record was' if shown == 1 else 'records were'}"
        " refused"
    )
    yield HealthFinding(
        urgency=Urgency.WARNING if found.recent else Urgency.NOTE,
        what=(
            f"{count} within a day, and not tried again" if found.recent else f"{count}, and not tried again"
        ),
        cure="Each has its reason. Once that is mended, `holdfast quarantine retry` sends it again.",
        page="/quarantine?open=1",
    )
