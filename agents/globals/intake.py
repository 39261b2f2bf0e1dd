"""Chooses the positions of global tables that a partition's next transaction sees, and waits for copies that
lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from holdfast.agents.globals.copies import GlobalCopies
from holdfast.agents.globals.history import GlobalHistory
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.global_copies import WorkerGlobals
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.global_rows import Vector
from holdfast.tables.partition import Partition


class GlobalIntakeHost(Protocol):
    """The manager, as the intake uses it."""

    @property
    def stalled(self) -> dict[tuple[str, int], str]:
        """Return why partitions are stalled, by partition."""
        ...

    def progressed(self) -> None:
        """Note that something moved: the worker is not stuck."""
        ...

    def crash(self, error: BaseException) -> None:
        """End the worker."""
        ...


class GlobalIntake:
    """The part of a `MergingIntake` for globals.

    Live, a transaction sees the worker's copies as they are when it begins, once they have come to where the
    one before it saw them. While recorded choices are obeyed it sees a history, up to the next position that
    is not staged.
    """

    def __init__(self, host: GlobalIntakeHost, part: Partition, tables: GlobalCopies) -> None:
        assert part.owner.views is not None, "of a processor that reads globals"
        self._host, self._part, self._tables = host, part, tables
        self._views: WorkerGlobals = part.owner.views
        self._held = (part.processor.name, part.partition)
        self._names = [each.name for each in part.processor.reads]
        self._history: GlobalHistory | None = None
        self._wanted: tuple[Vector, ...] | None = None
        self._staging: asyncio.Task[None] | None = None
        self._holding = False
        self.waiting = False
        """True while the next transaction waits for a copy."""

    def begin(self, merger: Merger, marker: Position) -> bool:
        """Choose what the next transaction sees; False when it must wait."""
        vectors = marker.globals
        self.waiting = not (
            self._obey(vectors) if merger.next_choice is not None else self._see(merger, vectors)
        )
        if not self.waiting:
            self._let_on()
        return not self.waiting

    def _let_on(self) -> None:
        if self._holding:
            self._holding = False
            self._host.stalled.pop(self._held, None)

    def _see(self, merger: Merger, vectors: tuple[Vector, ...]) -> bool:
        self._forget_history()
        tables = self._tables
        if not tables.whole or not self._views.reach(vectors):
            wanted = dict(zip(self._names, vectors, strict=True))
            tables.waited_for.update(wanted)
            at = {name: list(tables.copies[name].vector) for name in self._names}
            must = {name: list(vector) for name, vector in wanted.items()} if tables.whole else "their ends"
            self._hold(f"its global tables are at {at} and must come to {must} first {tables.why}".rstrip())
            return False
        for name in self._names:
            tables.waited_for.pop(name, None)
        merger.see(self._views.pin())
        return True

    def _obey(self, vectors: tuple[Vector, ...]) -> bool:
        if self._staging is None and (self._history is None or self._history.staged is None):
            self._wanted = vectors
            self._stage()
        if self._staging is None:
            return True
        self._hold("it reads its global tables again, up to a position that was recorded")
        return False

    def _hold(self, why: str) -> None:
        self._holding = True
        name, partition = self._held
        self._host.stalled[self._held] = f"{name} partition {partition} waits: {why}"

    def admits(self, stretch: Stretch) -> bool:
        """Return whether a stretch can be folded now: not a recorded choice whose positions are not
        staged.
        """
        choice = stretch.choice
        if stretch.decided or choice is None or not choice.globals:
            return True
        if self._history is not None and self._history.staged == choice.globals:
            return True
        self._wanted = choice.globals
        return False

    def settle(self) -> None:
        """Let go of what the transaction saw, and begin to stage what the next needs."""
        self._views.release()
        if self._wanted is not None:
            self._stage()
            self.waiting = True

    def look(self) -> bool:
        """Return whether the waiting transaction can try to begin again."""
        return self.waiting and self._staging is None

    def _stage(self) -> None:
        wanted, self._wanted = self._wanted, None
        assert wanted is not None, "something is to be staged"
        if self._history is None:
            part, tables = self._part, self._tables
            self._history = GlobalHistory(tables, part.processor, part.partition, tables.feed())
        self._staging = asyncio.ensure_future(self._staged(self._history, wanted))

    async def _staged(self, history: GlobalHistory, wanted: tuple[Vector, ...]) -> None:
        try:
            await history.stage(wanted, self._tables.stall_timeout_s)
            self._host.progressed()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  a worker that cannot know what was seen must end
            self._host.crash(error)
        else:
            if history is self._history:
                self._views.history, self._staging = history.replay, None

    def reset(self) -> None:
        """Forget everything: the partition was revoked, or its position changed."""
        self._views.release()
        self._wanted, self.waiting = None, False
        self._forget_history()
        self._let_on()
        for name in self._names:
            self._tables.waited_for.pop(name, None)

    def _forget_history(self) -> None:
        history, self._history, self._views.history = self._history, None, None
        if self._staging is not None:
            self._staging.cancel()
            self._staging = None
        if history is not None:
            _keep(history.close())


_closing: set[asyncio.Task[None]] = set()


def _keep(work: Coroutine[Any, Any, None]) -> None:
    """Run *work* as a task, and hold it until it ends: Python may collect a task that has no reference."""
    task = asyncio.ensure_future(work)
    _closing.add(task)
    task.add_done_callback(_closing.discard)
