"""Limits of time fire on an idle machine, and grow with what other programs take."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support import limits
from tests.support.harness import wait_for
from tests.support.limits import Slowness, at_most, check
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

STALLED = """
import os, signal
from tests.support.limits import at_most
with at_most(0.5, "the block"):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_block_that_takes_too_long_fails_and_says_what() -> None:
    with pytest.raises(AssertionError, match="the release took"), at_most(0.01, "the release"):
        time.sleep(0.5)


def test_a_block_that_ends_in_time_passes_and_leaves_no_thread() -> None:
    with at_most(60.0):
        pass


def test_an_error_of_the_block_comes_through() -> None:
    with pytest.raises(ZeroDivisionError), at_most(60.0):
        _ = 1 / 0


def test_the_limit_grows_with_what_other_programs_take() -> None:
    check(59.0, 3.0, 20.0, "it")
    with pytest.raises(AssertionError, match=r"1/20\.0 of a core"):
        check(61.0, 3.0, 20.0, "it")


@pytest.mark.long
def test_work_with_busy_threads_is_slower_than_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads share one interpreter: a burst takes about twice its processor time."""
    monkeypatch.setattr(limits, "_REST_S", 0.001)
    slowness = Slowness()
    slowness.start()
    until_s = time.monotonic() + DEADLINE_S
    # ten bursts, of which the machine lets some run at the same time as this thread
    while slowness._worked_s < 0.2:
        assert time.monotonic() < until_s
        sum(range(1000))
    assert slowness.stop() > 1.2


@pytest.mark.process
def test_the_limit_is_stopped_while_the_machine_is() -> None:
    """A process that is stopped for longer than its limit."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", STALLED],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    try:
        status = psutil.Process(process.pid).status
        wait_for("it to stop", lambda: status() == psutil.STATUS_STOPPED, DEADLINE_S)
        time.sleep(1.0)
    finally:
        process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said


SLEEPING = """
import sys, time
from tests.support.limits import AwakeClock
with AwakeClock() as clock:
    lag_s = time.monotonic() - clock.monotonic_s()
    print("begun", flush=True)
    sys.stdin.readline()
    print(time.monotonic() - clock.monotonic_s() - lag_s)
    began_s = clock.monotonic_s()
    time.sleep(0.5)
    print(clock.monotonic_s() - began_s)
"""


@pytest.mark.process
def test_the_clock_is_stopped_while_the_machine_is_and_goes_while_it_waits() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SLEEPING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    told, _ = process.communicate("\n", timeout=DEADLINE_S)
    stood_still_s, waited_s = map(float, told.split())
    assert stood_still_s > 1.0
    assert waited_s > 0.2
