"""A client-side limit for calls to a database: a server whose process is frozen keeps no limit of its own,
and its kernel continues to acknowledge what it is sent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Final

TICK_S: Final = 1.0


class CallWatch:
    """Cuts a call that lasts longer than *limit_s*, by *cut* from another thread, within two ticks more.

    It counts ticks, not the time: a process that was frozen itself saw few of them, and finds its answer
    there. The calls belong to one thread. One thread watches all calls of the process.
    """

    def __init__(self, limit_s: float, cut: Callable[[], None]) -> None:
        self.limit_s = limit_s
        self.has_cut = False
        self._cut = cut
        self._call: object | None = None  # the one that runs; each has an object of its own
        self._seen: object | None = None
        self._ticks = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Watch the body of the with statement."""
        self.begin()
        try:
            yield
        finally:
            self._call = None

    def begin(self) -> None:
        """Restart the count: a call begins, or another part of it."""
        self._call = object()
        _watchman.attend(self)

    @contextlib.contextmanager
    def patient(self, limit_s: float) -> Iterator[None]:
        """Let calls inside last as long as *limit_s*."""
        before, self.limit_s = self.limit_s, limit_s
        try:
            yield
        finally:
            self.limit_s = before

    def stop(self) -> None:
        """Watch no more, and forget that a call was cut; the next call is watched again."""
        self._call, self.has_cut = None, False
        _watchman.leave(self)

    def tick(self) -> None:
        """Count a tick, and cut a call that has seen too many; from the watching thread."""
        call = self._call
        self._ticks = self._ticks + 1 if call is not None and call is self._seen else 0
        self._seen = call
        if self._ticks * TICK_S >= self.limit_s:
            self.has_cut, self._ticks = True, 0
            self._cut()


class _Watchman:
    """The thread that ticks for every watch, while there are any."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Watch no call, as in a process that was just forked: the calls that the other process had under way
        never end here, and to cut one would cut the connection there, which is the same.
        """
        self._watches: weakref.WeakSet[CallWatch] = weakref.WeakSet()
        self._lock = threading.Lock()  # the one before may have been taken by a thread that is not here
        self._thread: threading.Thread | None = None

    def attend(self, watch: CallWatch) -> None:
        """Tick for *watch*; from any thread."""
        if watch in self._watches and self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="holdfast-outbox-watch", daemon=True)
                self._thread.start()

    def leave(self, watch: CallWatch) -> None:
        """Tick for *watch* no more."""
        with self._lock:
            self._watches.discard(watch)

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self._lock:
                watches = list(self._watches)
                if not watches:
                    self._thread = None
                    return
            for watch in watches:
                watch.tick()
            del watches


_watchman = _Watchman()
if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_watchman.begin_anew)
