"""Digests of a worker's stores: one partition at a time, each at one offset, read while folding continues and
never in its way.

An inspection pins the committed state of a moment (a RocksDB iterator), reads it in slices on a thread of its
own that rests three times as long as it reads, and keeps it for a while, so that a client that found a
difference can read the rows of that same moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from holdfast.agents.serving import Replica, ReplicaState
from holdfast.agents.web.replies import RequestRefused
from holdfast.clock import system_clock
from holdfast.core.engine.query_wire import LIMIT_REPLY_BYTES
from holdfast.core.engine.state.codec import META, ROW_KINDS, hashed
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import StoreError

SLICE_ROWS = 512
REST = 3
"""The thread rests for so many times as long as it read: a quarter of a processor at most."""
HELD_S = 60.0
"""A state is released when it was not asked for so long; RocksDB keeps its files until then.
"""
LIMIT_HELD_S = 3_600.0
RETRY_AFTER_MS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The digest of a state, as `holdfast.core.engine.state.codec.digest` computes it, and how much was
    hashed.
    """

    digest: str
    rows: int
    timers: int


@dataclass(slots=True, kw_only=True)
class _Held:
    inspection: str
    replica: Replica
    state: ReplicaState
    work: asyncio.Future[Inspected]
    began_s: float
    asked_s: float
    stop: threading.Event = field(default_factory=threading.Event)


class Inspections:
    """At most one state a partition.

    Lives on the event loop of the web port; `close` ends its thread and lets all states go.
    """

    def __init__(self) -> None:
        self._held: dict[Place, _Held] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-inspect")
        self._sweeper: asyncio.TimerHandle | None = None

    async def digest(
        self, replica: Replica, inspection: str, wait_s: float
    ) -> tuple[ReplicaState, Inspected]:
        """Return the state that *inspection* names, pinned now if it is new, and its digest.

        Raises Refused: 503 while it is still being read (ask again by the same name) or while another
        inspection of the partition is.
        """
        place = (replica.processor.name, replica.partition)
        held = self._held.get(place)
        if held is None or held.inspection != inspection or held.replica is not replica:
            if held is not None and not held.work.done() and held.replica is replica:
                raise self._busy(place, "another inspection of it is under way")
            if held is not None:
                self._let_go(place, held)
            held = self._begin(place, replica, inspection)
        held.asked_s = system_clock.monotonic_s()
        done, _ = await asyncio.wait([held.work], timeout=wait_s)
        if not done:
            raise self._busy(place, "its store is being read")
        try:
            return held.state, held.work.result()
        except (StoreError, asyncio.CancelledError) as error:
            self._let_go(place, held)
            raise self._busy(place, f"its store was closed or is damaged: {error}") from None

    def stored(
        self, replica: Replica, inspection: str, after: bytes, limit: int
    ) -> tuple[ReplicaState, list[tuple[bytes, bytes]], bool]:
        """Return rows and timers of an inspected state as they are stored, from the first key above
        *after*, and whether there are no more.
        """
        place = (replica.processor.name, replica.partition)
        held = self._held.get(place)
        if held is None or held.inspection != inspection or held.replica is not replica:
            raise RequestRefused(
                410, "failed", f"{place[0]}/{place[1]}: that inspection is over; begin another"
            )
        held.asked_s = system_clock.monotonic_s()
        out: list[tuple[bytes, bytes]] = []
        size, start = 0, max(after + b"\x00", META + b"\xff")
        while len(out) < limit and size < LIMIT_REPLY_BYTES // 2:
            try:
                some = held.state.step(start, min(SLICE_ROWS, limit - len(out)))
            except StoreError as error:
                raise self._busy(place, str(error)) from None
            if not some:
                return held.state, out, True
            for key, value in some:
                out.append((key, value))
                size += len(key) + len(value)
                if size >= LIMIT_REPLY_BYTES // 2:
                    break
            start = out[-1][0] + b"\x00"
        return held.state, out, False

    def close(self) -> None:
        for place, held in list(self._held.items()):
            self._let_go(place, held)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- within

    def _begin(self, place: Place, replica: Replica, inspection: str) -> _Held:
        now_s, stop = system_clock.monotonic_s(), threading.Event()
        try:
            state = replica.pin()
        except StoreError as error:
            raise self._busy(place, str(error)) from None
        work = asyncio.get_running_loop().run_in_executor(self._pool, digest_of, state, stop)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # its client may be gone
        held = _Held(
            inspection=inspection,
            replica=replica,
            state=state,
            work=work,
            began_s=now_s,
            asked_s=now_s,
            stop=stop,
        )
        self._held[place] = held
        if self._sweeper is None:
            self._sweep()
        return held

    def _sweep(self) -> None:
        now_s = system_clock.monotonic_s()
        for place, held in list(self._held.items()):
            if now_s - held.asked_s > HELD_S or now_s - held.began_s > LIMIT_HELD_S:
                self._let_go(place, held)
        self._sweeper = asyncio.get_running_loop().call_later(HELD_S / 4, self._sweep) if self._held else None

    def _let_go(self, place: Place, held: _Held) -> None:
        held.stop.set()
        held.work.cancel()
        held.state.close()
        if self._held.get(place) is held:
            del self._held[place]

    @staticmethod
    def _busy(place: Place, why: str) -> RequestRefused:
        return RequestRefused(
            503, "not_ready", f"{place[0]}/{place[1]}: {why}; ask again", retry_after_ms=RETRY_AFTER_MS
        )


def digest_of(state: ReplicaState, stop: threading.Event) -> Inspected:
    """Read all of *state* and return its digest; blocks, at a limited rate.

    Raises StoreError when the store is closed in the meantime, or damaged.
    """
    sha, rows, timers, start = hashlib.sha256(), 0, 0, META + b"\xff"
    while True:
        began_s = system_clock.monotonic_s()
        found = state.step(start, SLICE_ROWS)
        if not found:
            return Inspected(digest=sha.hexdigest(), rows=rows, timers=timers)
        kept = [(key, value) for key, value in found if key[:1] != META]
        sha.update(hashed(kept))
        here = sum(key[:1] in ROW_KINDS for key, _ in kept)
        rows, timers, start = rows + here, timers + len(kept) - here, found[-1][0] + b"\x00"
        if stop.wait(REST * (system_clock.monotonic_s() - began_s)):
            raise StoreError("no client waits for this inspection any more")
