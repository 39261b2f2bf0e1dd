"""A signal may come at any moment of a wait, and the wait must still end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from holdfast.cli import asked
from holdfast.cli.asked import StopRequest, stopped_by_signals
from tests.support.patience import DEADLINE_S
from tests.support.signals import as_at_a_terminal

# A handler that waits for a lock is a process that no exception ends, so each attempt is made in one of its
# own.
WAITS = """
import random, signal
from holdfast.cli.asked import StopRequest
asked = StopRequest()
signal.signal(signal.SIGALRM, lambda *_: asked.set())
for _ in range(500):
    asked.clear()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.0005))
    while not asked.wait(0):
        pass
print("ended")
"""


@pytest.mark.process
def test_a_signal_in_the_middle_of_a_wait_ends_it() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WAITS], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_it_is_an_event_like_any_other() -> None:
    request = StopRequest()
    began_s = time.monotonic()
    assert not request.wait(0.12)
    assert time.monotonic() - began_s >= 0.12
    before = signal.signal(signal.SIGALRM, lambda *_: request.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert request.wait(DEADLINE_S)
        assert request.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    request.clear()
    assert not request.is_set()


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_wait_of_no_time_only_looks(timeout: float) -> None:
    assert not StopRequest().wait(timeout)


def test_what_comes_at_once_after_the_first_signal_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with as_at_a_terminal(), stopped_by_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        monkeypatch.setattr(asked, "SAME_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stopped_by_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
