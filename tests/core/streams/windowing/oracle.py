"""Windows by definition: every window is made again from all records so far, at each record.

It knows nothing of rows, indexes or incremental aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.streams import Hopping, Session, Sliding, Tumbling

Window = Tumbling | Hopping | Sliding | Session
Place = tuple[str, int]
"""A key and a start."""
Held = tuple[int, tuple[int, ...]]
"""An end, and the numbers of the records in the window."""


@dataclass(frozen=True, slots=True)
class Given:
    number: int
    key: str
    at: int


@dataclass(frozen=True, slots=True)
class Told:
    """A result; *held* None is a tombstone."""

    place: Place
    held: Held | None


@dataclass(slots=True)
class Oracle:
    window: Window
    mode: str
    retention_ms: int
    every_ms: int = 0
    stream_ms: int = -1
    late: list[int] = field(default_factory=list)
    partly_late: int = 0
    _taken: list[tuple[Given, frozenset[int]]] = field(default_factory=list)
    """Records that were taken; of grids, into the windows with these starts."""
    _sessions: list[tuple[str, list[Given]]] = field(default_factory=list)
    _closed: set[Place] = field(default_factory=set)
    _dropped: set[Place] = field(default_factory=set)
    _told_at: dict[Place, int] = field(default_factory=dict)
    _waiting: set[Place] = field(default_factory=set)

    def add(self, given: Given) -> list[Told]:
        """Take a record and return the results sent for it, in order."""
        told: list[Told] = []
        if given.at > self.stream_ms:
            self.stream_ms = given.at
            told += self._settle()
        before = self.windows()
        self._take(given)
        after = self.windows()
        if self.mode in ("updates", "every"):
            told += self._changes(before, after)
        return told

    def table(self) -> dict[Place, Held]:
        """Return the windows that are still kept."""
        return {place: held for place, held in self.windows().items() if place not in self._dropped}

    # -- which records are in which windows

    def _take(self, given: Given) -> None:
        window, closed_ms = self.window, self.stream_ms - self.window.grace_ms
        match window:
            case Tumbling() | Hopping():
                every = window.every_ms if isinstance(window, Hopping) else window.size_ms
                mine = [start for start in range(0, given.at + 1, every) if start + window.size_ms > given.at]
                into = frozenset(start for start in mine if start + window.size_ms > closed_ms)
                self.partly_late += 0 < len(into) < len(mine)
                if not into:
                    self.late.append(given.number)
                    return
                self._taken.append((given, into))
            case Sliding():
                if given.at + 1 <= closed_ms:
                    self.late.append(given.number)
                    return
                self._taken.append((given, frozenset()))
            case Session():
                self._take_session(given, window.gap_ms, closed_ms)

    def _take_session(self, given: Given, gap_ms: int, closed_ms: int) -> None:
        if given.at + gap_ms + 1 <= closed_ms:
            self.late.append(given.number)
            return
        near = [
            each
            for each in self._sessions
            if each[0] == given.key
            and max(one.at for one in each[1]) + gap_ms + 1 > closed_ms
            and any(abs(one.at - given.at) <= gap_ms for one in each[1])
        ]
        self._sessions = [each for each in self._sessions if each not in near]
        self._sessions.append((given.key, [given, *(one for each in near for one in each[1])]))

    def windows(self) -> dict[Place, Held]:
        """Return all windows that ever were and have not become part of another."""
        match self.window:
            case Tumbling(size_ms=size) | Hopping(size_ms=size):
                return {
                    (given.key, start): (
                        start + size,
                        tuple(one.number for one, at in self._taken if one.key == given.key and start in at),
                    )
                    for given, into in self._taken
                    for start in into
                }
            case Sliding(difference_ms=span):
                return self._sliding(span)
            case Session(gap_ms=gap):
                return {
                    (key, min(one.at for one in records)): (
                        max(one.at for one in records) + gap + 1,
                        tuple(sorted(one.number for one in records)),
                    )
                    for key, records in self._sessions
                }

    def _sliding(self, span: int) -> dict[Place, Held]:
        out: dict[Place, Held] = {}
        for given, _ in self._taken:
            for start in (given.at - span, given.at + 1):
                inside = tuple(
                    one.number
                    for one, _ in self._taken
                    if one.key == given.key and start <= one.at <= start + span
                )
                if inside:
                    out[given.key, start] = start + span + 1, inside
        return out

    # -- the results

    def _changes(self, before: Mapping[Place, Held], after: Mapping[Place, Held]) -> list[Told]:
        told = [Told(place, None) for place in sorted(before) if place not in after]
        for gone in told:
            self._waiting.discard(gone.place)
        for place in sorted(after, key=lambda each: each[1]):
            if before.get(place) == after[place]:
                continue
            at = self._told_at.get(place)
            if self.mode == "every" and at is not None and self.stream_ms < at + self.every_ms:
                self._waiting.add(place)
            elif place not in self._waiting:
                self._told_at[place] = self.stream_ms
                told.append(Told(place, after[place]))
        return told

    def _settle(self) -> list[Told]:
        """Return the results sent because stream time has passed, in order of when they were due, then by row
        key.
        """
        due: list[tuple[int, int, str, Place]] = []
        windows = self.windows()
        for place, (end, _) in windows.items():
            row, close = f"{place[0]}@{place[1]:016d}", end + self.window.grace_ms
            if close <= self.stream_ms and place not in self._closed:
                self._closed.add(place)
                if self.mode == "final":
                    due.append((close, 0, row, place))
            drop = close + self.retention_ms
            if place in self._waiting:
                tell = self._told_at[place] + self.every_ms
                if min(tell, drop) <= self.stream_ms:
                    due.append((min(tell, drop), 1 if drop <= tell else 2, row, place))
                    self._waiting.discard(place)
                    self._told_at[place] = self.stream_ms
            if drop <= self.stream_ms:
                self._dropped.add(place)
        return [Told(place, windows[place]) for _, _, _, place in sorted(due)]
