"""The clock of leases and deadlines."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from holdfast.clock import sleepless, system_clock


def test_the_monotonic_clock_advances_while_the_machine_is_asleep() -> None:
    """A claim, a lease or an election that ended while a laptop was closed is over when it opens."""
    slept_s = 3_600.0
    clocks = {7: 100.0 + slept_s, 1: 100.0}
    linux = SimpleNamespace(
        CLOCK_BOOTTIME=7, CLOCK_MONOTONIC=1, clock_gettime=clocks.__getitem__, monotonic=lambda: 100.0
    )
    assert sleepless(linux)() == 100.0 + slept_s


def test_where_there_is_no_such_clock_the_plain_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(CLOCK_MONOTONIC=1, clock_gettime=lambda clock: 7.0, monotonic=lambda: 5.0)
    monkeypatch.setattr(sys, "platform", "win32")
    assert sleepless(other)() == 5.0
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sleepless(other)() == 7.0


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has it")
def test_the_systems_clock_is_that_one() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before_s <= system_clock.monotonic_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
