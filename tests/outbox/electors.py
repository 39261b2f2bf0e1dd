"""Processes that take part in an election, for tests: in this process, or as one of its own that can be
killed and frozen.

python -P -m tests.outbox.electors BOOTSTRAP GROUP TOPIC NAME     prints a line per event
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.outbox.election import ElectionSettings, FenceReason, Leadership
from holdfast.errors import HoldfastError
from holdfast.kafka.clients import make_member
from holdfast.outbox.election import Election

TIMEOUT_S, CALM_S = 2.0, 60.0
"""Heartbeat timeouts: the shortest, for leaders that die, and one that no machine uses up by freezing."""


@dataclass
class Journal:
    """The calls of handlers of several processes, in order: (what, who, role, epoch)."""

    entries: list[tuple[str, str, int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, who: str, held: Leadership) -> None:
        with self.lock:
            self.entries.append((what, who, held.role, held.epoch))

    def of(self, what: str, role: int = 0) -> list[tuple[str, int]]:
        """Return (who, epoch) of each event of that kind."""
        with self.lock:
            return [
                (who, epoch) for kind, who, of_role, epoch in self.entries if kind == what and of_role == role
            ]


class Noting:
    """A handler that writes down its calls."""

    def __init__(self, journal: Journal, who: str, *, drain_s: float = 0.0) -> None:
        self.journal, self.who, self.drain_s = journal, who, drain_s
        self.error: HoldfastError | None = None

    def acquired(self, leadership: Leadership) -> None:
        self.journal.note("acquired", self.who, leadership)

    def revoked(self, leaderships: Sequence[Leadership], deadline_s: float) -> None:
        time.sleep(min(self.drain_s, max(0.0, deadline_s - time.monotonic())))
        for each in leaderships:
            self.journal.note("revoked", self.who, each)

    def fenced(self, leadership: Leadership, reason: FenceReason) -> None:
        self.journal.note("fenced", self.who, leadership)

    def failed(self, error: HoldfastError) -> None:
        self.error = error


def election(
    config: dict[str, str],
    topic: str,
    name: str,
    handler: Noting,
    *,
    roles: int = 1,
    instance_id: str | None = None,
    interop: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Election:
    """Return a member that hears of changes of its group at once, however long its session is."""
    settings = ElectionSettings(
        group_id=topic,
        leader_topic=topic,
        name=name,
        roles=roles,
        instance_id=instance_id,
        heartbeat_timeout_s=timeout_s,
        consumer=config,
        producer=config,
        interop=interop,
    )
    return Election(settings, handler, make_consumer=_attentive)


def _attentive(config: dict[str, Any]) -> Any:
    return make_member({**config, "heartbeat.interval.ms": 300})


class Printing(Journal):
    def note(self, what: str, who: str, held: Leadership) -> None:
        print(what, held.role, held.epoch, flush=True)


def main() -> None:
    bootstrap, topic, name = sys.argv[1:]
    with election({"bootstrap.servers": bootstrap}, topic, name, Noting(Printing(), name)) as running:
        sys.stdin.read()
        assert running.running


if __name__ == "__main__":
    main()
