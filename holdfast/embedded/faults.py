"""Faults on request: what a network, a disk or a coordinator may do to clients, when a test says so.

An answer that a fault concerns has been worked out already: the request was carried out, and only the client
does not receive it as it should.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

import msgspec

EVERY_API = "*"


class FaultKind(StrEnum):
    """The treatment of an answer."""

    DROP = "drop"
    """It is never sent; the connection stays."""
    CUT = "cut"
    """It is never sent, and the connection ends: the outcome is unknown to the client."""
    DELAY = "delay"
    """It is sent *delay_ms* later, together with the answers to the connection's requests in between."""
    REPEAT = "repeat"
    """It is sent twice."""
    REORDER = "reorder"
    """It is sent after the next answer of its connection, or after *delay_ms*."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: of the answers to *api* ("*": to any) that a client whose id begins with *client* gets, the
    first *skip* are left alone, then *times* of them are hit, each with the probability *share*.
    """

    kind: FaultKind
    api: str = EVERY_API
    client: str = ""
    skip: int = 0
    times: int = 1
    share: float = 1.0
    delay_ms: int = 100


class _Running:
    """A fault with how often it may still be passed over, and hit."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.skip, self.times = fault, fault.skip, fault.times

    def concerns(self, api: str, client_id: str) -> bool:
        return self.fault.api in (EVERY_API, api) and client_id.startswith(self.fault.client)


class RequestedFaults:
    """The faults of one cluster, in the order in which they were asked for: the first that concerns an answer
    hits it.

    Chance follows from *seed* alone, so a conversation fails in the same steps again.
    """

    def __init__(self, seed: int | None) -> None:
        self._chance = Random(seed)
        self._running: list[_Running] = []
        self.hits: list[tuple[FaultKind, str]] = []
        """(kind, api) of each answer that was hit."""
        self.lost_markers = 0
        """The number of markers of transactions that are not written from now on, though their coordinator
        holds them for written.
        """
        self.disk_is_full = False
        """True if leaders answer KAFKA_STORAGE_ERROR to every write."""
        self.clock_ms = 0
        """The offset of the clock of every broker."""

    def __bool__(self) -> bool:
        return bool(self._running)

    def add(self, fault: Fault) -> None:
        """Have *fault* happen."""
        self._running.append(_Running(fault))

    def clear(self) -> None:
        """Let no fault happen any more."""
        self._running.clear()
        self.lost_markers, self.disk_is_full, self.clock_ms = 0, False, 0

    def next(self, api: str, client_id: str) -> Fault | None:
        """Return the fault that hits this answer to *api*, None for none."""
        for each in self._running:
            if not each.concerns(api, client_id):
                continue
            if each.skip:
                each.skip -= 1
            elif each.fault.share >= 1 or self._chance.random() < each.fault.share:
                each.times -= 1
                if not each.times:
                    self._running.remove(each)
                self.hits.append((each.fault.kind, api))
                return each.fault
        return None

    def loses_marker(self) -> bool:
        """Return whether the next marker is lost, and count it."""
        if not self.lost_markers:
            return False
        self.lost_markers -= 1
        return True
