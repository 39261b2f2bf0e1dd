"""A thread that watches the event loop: a fold that does not return stops everything else on it.

It logs which record that is and where the fold is, answers the web port instead of the loop, and ends the
process: when a signal asks for that, or at the latest after `stall_timeout_s`. Code that keeps Python's lock
stops this thread too; the kernel then has the stacks written, and ends the process, by the processor time
that it has used.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import selectors
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import msgspec

from holdfast.agents.faust.process.fold_now import FoldNow, fold_now, stack_of
from holdfast.clock import system_clock

logger = logging.getLogger(__name__)

TICK_S = 0.5
STUCK_EXIT_CODE = 70
LOCKED_S = 5.0
"""Code may keep Python's lock so much longer than the event loop may be blocked: if this thread has its turns
it ends the process first, and reports more.
"""
ANSWER_S = 1.0
"""The wait for one client, while this thread answers instead of the event loop."""
LIMIT_REQUEST_BYTES = 8_192
SIGNALS = (signal.SIGINT, signal.SIGTERM)
Doors: TypeAlias = Callable[[], tuple[Sequence[socket.socket], ssl.SSLContext | None]]
"""Gives the sockets that a port listens on, and how its connections are made private."""


class LoopWatch:
    """Watches the event loop on which it is started.

    *limit_s* is how long the loop may be blocked before that is logged, *stall_s* before the process ends.
    *doors* are the listening sockets to answer at in that time, with the context of those with TLS.
    """

    def __init__(
        self,
        *,
        limit_s: float,
        stall_s: float,
        doors: Doors,
    ) -> None:
        self._limit_s, self._stall_s, self._doors = limit_s, stall_s, doors
        self._watched = threading.get_ident()
        self._ticked, self._ended = threading.Event(), threading.Event()
        self._asked: list[int] = []
        """The signals that have asked the process to end, and that the event loop has not acted on."""
        self._timed = self._tells = False
        self.why: str | None = None
        """Why the loop is blocked, while it is."""

    def start(self) -> None:
        """Begin to watch."""
        self._heed_signals()
        if (
            hasattr(signal, "setitimer")
            and sys.__stderr__ is not None
            and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
        ):
            # The default of this signal ends the process, and needs no turn of Python's for it.
            faulthandler.register(signal.SIGPROF, sys.__stderr__, all_threads=True, chain=True)
            self._timed = True
            if signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL:
                faulthandler.register(signal.SIGVTALRM, sys.__stderr__, all_threads=True)
                self._tells = True
        self._watched = threading.get_ident()
        self._tick(asyncio.get_running_loop())
        threading.Thread(target=self._run, name="holdfast-watch", daemon=True).start()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that the event loop has its turns."""
        if self._ended.is_set():
            return
        loop.call_later(TICK_S / 2, self._tick, loop)
        self._ticked.set()
        if self._timed:
            signal.setitimer(signal.ITIMER_PROF, self._stall_s + LOCKED_S)
        if self._tells:  # if this thread has its turns, it logs first
            signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s + LOCKED_S)

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()
        if self._timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if self._tells:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    # -- signals

    def _heed_signals(self) -> None:
        """Note signals that ask the process to end, also while the event loop, which acts on them, is
        blocked: Python runs its handlers in the midst of a fold.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            # instead of the one that does nothing: the loop is woken by the number, not by the handler
            before = signal.getsignal(number)
            if callable(before) and before is not signal.default_int_handler:
                signal.signal(number, partial(self._heed, before))
                signal.siginterrupt(number, False)

    def _heed(self, before: Callable[[int, Any], Any], number: int, frame: FrameType | None) -> None:
        self._asked.append(number)
        before(number, frame)

    # -- the thread

    def _run(self) -> None:
        # Own ticks are counted, not the clock: in a process that was frozen both stopped.
        missed, is_told = 0, False
        while not self._ended.is_set():
            self._pass_tick(is_told)
            missed = 0 if self._ticked.is_set() else missed + 1
            self._ticked.clear()
            stood_s = missed * TICK_S
            if not missed:
                if is_told:
                    self._over()
                is_told, self._asked = False, []
                continue
            if not is_told and stood_s >= self._limit_s:
                is_told = True
                self._tell(stood_s)
            # A second signal does not want to wait.
            if self._asked and (stood_s >= self._limit_s or (len(self._asked) > 1 and missed > 1)):
                name = signal.Signals(self._asked[-1]).name
                self._leave(f"{name}, and the event loop has stood still for {stood_s:.0f} s")
            if stood_s > self._stall_s:
                self._leave(f"the event loop has stood still for {stood_s:.0f} s")

    def _pass_tick(self, stands: bool) -> None:
        """Let one tick pass; where the loop is blocked (*stands*), answer clients in that time."""
        until_s = system_clock.monotonic_s() + TICK_S
        while stands and (left_s := until_s - system_clock.monotonic_s()) > 0 and not self._ended.is_set():
            if not self._answer_one(min(left_s, TICK_S / 5)) and self._ticked.is_set():
                return
        if not stands:
            self._ended.wait(TICK_S)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._watched)

    def _tell(self, stood_s: float) -> None:
        frame = self._frame()
        found = self._fold_now(frame)
        what = "the event loop stands still" if found is None else f"a fold does not return ({found})"
        self.why = f"{what}, for more than {stood_s:.0f} s"
        logger.critical(
            "%(why)s; it ends the worker after %(stall_s).0f s. It is at:\n%(stack)s",
            {
                "why": self.why,
                "stall_s": self._stall_s,
                "stack": stack_of(frame),
                **({} if found is None else asdict(found)),
            },
        )

    @staticmethod
    def _fold_now(frame: FrameType | None) -> FoldNow | None:
        try:
            return fold_now(frame)
        except Exception as error:  # noqa: BLE001  the call may have ended while it was read: there is less to say then
            logger.info("the record that is folded is not known: %(error)r", {"error": error})
            return None

    def _over(self) -> None:
        logger.warning("the event loop runs again")
        self.why = None

    def _leave(self, why: str) -> None:
        found = self._fold_now(self._frame())
        logger.critical(
            "%(why)s: %(what)s; leaving",
            {"why": why, "what": "a fold that does not return?" if found is None else f"a fold ({found})"},
        )
        with suppress(Exception):
            faulthandler.dump_traceback(sys.__stderr__ or 2)
        logging.shutdown()
        os._exit(STUCK_EXIT_CODE)

    # -- the web port

    def _answer_one(self, wait_s: float) -> bool:
        """Answer one client that comes within *wait_s* instead of the event loop; return whether one has."""
        doors, tls = self._doors()
        if not doors:
            self._ended.wait(wait_s)
            return False
        with selectors.DefaultSelector() as selector:
            for door in doors:
                selector.register(door, selectors.EVENT_READ)
            ready = selector.select(wait_s)
        for key, _ in ready:
            with suppress(OSError):
                listening = key.fileobj
                assert isinstance(listening, socket.socket)
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(ANSWER_S)
                    if tls is None:
                        self._answer(connection)
                    else:
                        with tls.wrap_socket(connection, server_side=True) as private:
                            self._answer(private)
        return bool(ready)

    def _answer(self, connection: socket.socket) -> None:
        head = connection.recv(LIMIT_REQUEST_BYTES)
        is_live = head.startswith(b"GET /health/live ")
        status_word = "live" if is_live else "unready"
        body = msgspec.json.encode({"status": status_word, "cause": self.why}) + b"\n"
        status = b"200 OK" if is_live else b"503 Service Unavailable"
        connection.sendall(
            b"HTTP/1.1 %s\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%s" % (status, len(body), body)
        )
