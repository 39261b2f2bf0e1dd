"""The origins that hold a partition's stream time back: by how much, and since when."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.clock import Clock, system_clock
from holdfast.core.engine.origins import HeldBack

LOOK_EVERY_S = 1.0


class HeldOrigin(NamedTuple):
    """An origin of a source *topic*, its number or "unheard", that windows or a join wait for: *lag_s* is by
    how much event time, infinite for one that has said nothing, and *held_s* for how long by the clock.
    """

    topic: str
    origin: str
    lag_s: float
    held_s: float


class HeldOrigins:
    """Remembers since when each origin holds the stream time of a partition back, without a break.

    It knows of what it was shown: at each commit, a second apart at least.
    """

    __slots__ = ("_clock", "_looked_s", "_since")

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock, self._looked_s = clock, -math.inf
        self._since: dict[tuple[int, int | None], float] = {}

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic_s() - self._looked_s >= LOOK_EVERY_S

    def look(self, held: Iterable[HeldBack], topics: tuple[str, ...]) -> list[HeldOrigin]:
        """Take in the origins that hold time back now; return them with the source names in *topics*."""
        self._looked_s = now_s = self._clock.monotonic_s()
        found = [*held]
        self._since = {each[:2]: self._since.get(each[:2], now_s) for each in found}
        return [
            HeldOrigin(
                topics[each.source],
                "unheard" if each.origin is None else str(each.origin),
                math.inf if each.lag_ms is None else each.lag_ms / 1000,
                now_s - self._since[each[:2]],
            )
            for each in found
        ]
