"""A signal may come at any moment of a wait, and the wait must still end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from holdfast.cli.asked import StopRequest
from tests.support.patience import DEADLINE_S

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
    asked = StopRequest()
    began_s = time.monotonic()
    assert not asked.wait(0.12)
    assert time.monotonic() - began_s >= 0.12
    before = signal.signal(signal.SIGALRM, lambda *_: asked.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert asked.wait(DEADLINE_S)
        assert asked.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    asked.clear()
    assert not asked.is_set()


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_wait_of_no_time_only_looks(timeout: float) -> None:
    assert not StopRequest().wait(timeout)
