"""Logs troubles: one line at WARNING when one begins and one when it is over, however often it strikes in
between.
"""

from __future__ import annotations

import logging

from holdfast.clock import Clock, system_clock

logger = logging.getLogger(__name__)

RIGHTS = "`holdfast acls harvester --topic TOPIC` prints the rights that a harvester needs"
"""The remedy where a right is missing."""

FORGOTTEN_S = 300.0
"""A trouble that was silent for so long, its end included, is logged again when it returns."""
LIMIT_KINDS = 20


class Trouble:
    """Logs what blocks the work, once for each kind. For one thread at a time."""

    def __init__(self, who: str, clock: Clock = system_clock) -> None:
        self.who, self._clock = who, clock
        self._kinds: set[str] = set()
        self._began_s = self._last_s = 0.0

    @property
    def under_way(self) -> bool:
        return bool(self._kinds)

    def has(self, kind: str) -> bool:
        """Return whether a reason of this *kind* was logged since the trouble began."""
        return kind in self._kinds

    def strikes(self, kind: str, reason: str) -> None:
        """Log *reason*, unless its *kind* was logged since the trouble began."""
        now_s = self._clock.monotonic_s()
        if self._kinds and now_s - self._last_s > FORGOTTEN_S:
            self._kinds.clear()
        if not self._kinds:
            self._began_s = now_s
        self._last_s = now_s
        is_new = kind not in self._kinds and len(self._kinds) < LIMIT_KINDS
        self._kinds.add(kind)
        fields = {"outbox": self.who, "kind": kind, "reason": " ".join(reason.split())}
        if is_new:
            logger.warning(
                "outbox %(outbox)s: %(reason)s; nothing is published until this is over; retrying"
                " automatically",
                fields,
            )
        else:
            logger.info("outbox %(outbox)s: %(reason)s", fields)

    def ends(self) -> None:
        """Log that the trouble is over, when there was one."""
        if self._kinds:
            self._kinds.clear()
            logger.warning(
                "outbox %(outbox)s: the trouble is over after %(lasted_s).0f s",
                {"outbox": self.who, "lasted_s": self._clock.monotonic_s() - self._began_s},
            )
