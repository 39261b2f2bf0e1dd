"""The common part of all simulated processes: clocks, faults, and reading the coordination topic."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import TYPE_CHECKING

from holdfast.core.claims.frames import Frame
from tests.simulation.broker import Broker, Log, Wire
from tests.simulation.timeline import BEGAN_S
from tests.simulation.trace import WHOLE, Trace

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

MONO_S = 1000.0
"""Time on a monotonic clock when its process starts."""


class Process:
    """One process.

    All times it sees are those of its own clocks; *faults* are when it cannot be held to any bound.
    """

    def __init__(
        self,
        broker: Broker,
        checks: Checks,
        trace: Trace,
        client: str,
        name: str,
        draws: Random,
        *,
        rate: float,
        skew_s: float,
    ) -> None:
        self.broker, self.checks, self.trace, self.timeline = broker, checks, trace, broker.timeline
        self.client, self.name, self.draws, self.rate, self.skew_s = client, name, draws, rate, skew_s
        self.born_s = self.timeline.now_s
        self.died_s = inf
        self.alive, self.leaving = True, False
        self.paused_until_s = self.deaf_until_s = 0.0
        self.faults: list[tuple[float, float]] = []
        self.wire = Wire(broker, draws, self.sent, self.dropped)
        self._cursors: dict[int, int] = {}
        self._reading: set[int] = set()
        self._readers: list[tuple[Log, Callable[[], None]]] = []

    # -- clocks

    def mono_s(self) -> float:
        """Return the time on the monotonic clock."""
        return MONO_S + (self.timeline.now_s - self.born_s) * self.rate

    def wall_s(self) -> float:
        """Return the time on the wall clock."""
        return BEGAN_S + self.timeline.now_s + self.skew_s

    # -- faults

    def dropped(self) -> None:
        """A frame was refused by the broker."""
        self.fault(0.5 * self.checks.bounds.interval_s)

    def fault(self, for_s: float) -> None:
        """Note that this process cannot be held to its bounds for a while."""
        self.faults.append((self.timeline.now_s, self.timeline.now_s + for_s))

    def healthy(self, since_s: float, until_s: float) -> bool:
        """Return whether nothing was wrong with this process, nor with the broker, all that time."""
        return self.alive and self.was_healthy(since_s, until_s)

    def was_healthy(self, since_s: float, until_s: float) -> bool:
        """Return the same of a process that may have ended since."""
        if self.born_s > since_s or self.died_s < until_s:
            return False
        if any(begin_s < until_s and end_s > since_s for begin_s, end_s in self.faults):
            return False
        return not any(
            begin_s < until_s and end_s > since_s for log in self.broker.logs for begin_s, end_s in log.down
        )

    def pause(self, for_s: float) -> None:
        """Stop the whole process, as SIGSTOP does."""
        self.trace.note(WHOLE, self.name, f"is stopped for {for_s:.2f} s")
        self.fault(for_s + 0.1)
        self.paused_until_s = max(self.paused_until_s, self.timeline.now_s + for_s)

    def isolate(self, for_s: float, *, deaf: bool = True, mute: bool = True) -> None:
        """Cut the network, one way or both."""
        self.trace.note(WHOLE, self.name, f"is cut off for {for_s:.2f} s ({'deaf ' * deaf}{'mute' * mute})")
        self.fault(for_s + 0.1)
        until_s = self.timeline.now_s + for_s
        if deaf:
            self.deaf_until_s = max(self.deaf_until_s, until_s)
        if mute:
            self.wire.blocked_until_s = max(self.wire.blocked_until_s, until_s)

    def kill(self) -> None:
        """End the process, as SIGKILL does. Frames on their way to the broker still arrive."""
        if self.alive:
            self.trace.note(WHOLE, self.name, "is killed")
            self.die()

    def die(self) -> None:
        self.alive = False
        self.died_s = self.timeline.now_s
        for log, reader in self._readers:
            log.readers.remove(reader)
        self._readers = []

    def terminate(self, release: bool) -> None:
        """End in good order."""
        raise NotImplementedError

    def grow(self, topic: str, count: int) -> None:
        """Learn that a topic has more partitions."""
        raise NotImplementedError

    def put_off(self, act: Callable[..., object], *args: object) -> bool:
        """Return whether *act* must not run now: a dead process never runs it, a stopped one does once it
        resumes, in any order.
        """
        if not self.alive:
            return True
        if self.paused_until_s > self.timeline.now_s:
            self.timeline.at(self.paused_until_s + self.draws.random() * 0.01, act, *args)
            return True
        return False

    # -- the coordination topic

    def follow(self, index: int) -> None:
        """Read a log from its beginning to its present end, and follow it from there."""
        self._cursors[index] = 0
        self.timeline.after(self.broker.delay_s() * 3, self._catch_up, index)

    def _catch_up(self, index: int) -> None:
        if self.put_off(self._catch_up, index) or self._deaf(self._catch_up, index):
            return
        self._take(index)
        if not self.alive:
            return
        log = self.broker.logs[index]

        def told() -> None:
            if index not in self._reading:
                self._reading.add(index)
                self.timeline.after(self.broker.delay_s(), self._read, index)

        log.readers.append(told)
        self._readers.append((log, told))
        self.caught_up(index)

    def _deaf(self, act: Callable[..., object], index: int) -> bool:
        until_s = max(self.deaf_until_s, self.broker.logs[index].down_until_s)
        if until_s > self.timeline.now_s:
            self.timeline.at(until_s + self.broker.delay_s(), act, index)
            return True
        return False

    def _read(self, index: int) -> None:
        if self.put_off(self._read, index) or self._deaf(self._read, index):
            return
        self._reading.discard(index)
        self._take(index)

    def _take(self, index: int) -> None:
        records, at = self.broker.logs[index].records, self._cursors[index]
        end = self._cursors[index] = len(records)
        self.observe(index, at, records[at:end])

    # -- reactions of a process

    def observe(self, index: int, offset: int, records: list[tuple[Frame, int]]) -> None:
        """Frames and their append times were read, the first of them at *offset*."""
        raise NotImplementedError

    def caught_up(self, index: int) -> None:
        """All that was in the log when reading began has been read."""
        raise NotImplementedError

    def sent(self, send_id: int, ok: bool) -> None:
        """A frame was acknowledged (*ok*) or has an unknown outcome."""
        raise NotImplementedError
