"""The time for which a trickle gathers, so that it stays cheap."""

from __future__ import annotations

import pytest

from holdfast.core.engine.linger import LEAST_WAIT_S, SHARE, AdaptiveLinger


def settled(round_cpu_s: float, *, other: float = 0.0, most_s: float = 0.05) -> tuple[float, float]:
    """Return the wait, and the share of a core used, when every round costs *round_cpu_s* and other work
    *other* of a core.
    """
    trickle, now_s, cpu_s, wait_s = AdaptiveLinger(most_s), 100.0, 7.0, 0.0
    share = 0.0
    for _ in range(300):
        wait_s = trickle.wait_s(now_s, cpu_s)
        past_s = wait_s + 0.001
        now_s, cpu_s = now_s + past_s, cpu_s + round_cpu_s + other * past_s
        share = round_cpu_s / past_s + other
    return wait_s, share


def test_a_trickle_takes_no_more_than_its_share_of_a_core() -> None:
    assert settled(0.006)[1] == pytest.approx(SHARE, rel=0.01)
    assert settled(0.006, other=0.1)[1] == pytest.approx(SHARE, rel=0.01)


def test_cheap_rounds_come_soon_but_do_not_burden_the_broker() -> None:
    assert settled(0.0005)[0] == LEAST_WAIT_S
    assert LEAST_WAIT_S < settled(0.004)[0] < settled(0.006)[0]


def test_dear_rounds_wait_no_longer_than_allowed() -> None:
    assert settled(0.5, most_s=0.02)[0] == 0.02
    assert settled(0.006, other=0.9, most_s=0.02)[0] == 0.02
    assert settled(0.006, most_s=0.0)[0] == 0.0


def test_a_pause_changes_nothing() -> None:
    trickle = AdaptiveLinger(0.02)
    before_s = trickle.wait_s(10.0, 1.0)
    assert trickle.wait_s(70.0, 60.0) == before_s


def test_one_dear_round_is_no_reason_to_wait_long() -> None:
    trickle = AdaptiveLinger(0.02)
    trickle.wait_s(10.0, 1.0)
    assert trickle.wait_s(10.05, 1.05) <= 1.1 * LEAST_WAIT_S
