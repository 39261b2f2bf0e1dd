"""How long a producer rests between transactions, so that none is sent back, and a trickle gathers, so
that it stays cheap.
"""

from __future__ import annotations

import pytest

from holdfast.core.outbox.pacing import (
    FEW_RECORDS,
    LEAST_S,
    LEAST_WAIT_S,
    MOST_S,
    SENT_BACK_S,
    SHARE,
    AdaptiveLinger,
    TransactionPacing,
)


def after(*took_s: float, records: int = 1) -> float:
    """Return the rest after transactions that took so long."""
    pace = TransactionPacing()
    for each_s in took_s:
        pace.ended(100.0, 100.0 + each_s, records=records)
    return round(pace.rest_s(100.0 + took_s[-1], records=1), 6)


def test_the_first_transaction_does_not_wait() -> None:
    assert TransactionPacing().rest_s(0.0, records=1) == 0.0
    assert TransactionPacing().rest_s(1_000.0, records=1) == 0.0


def test_a_quick_broker_is_given_a_millisecond() -> None:
    assert after(0.004) == LEAST_S == after(*[0.004] * 100)


def test_the_rest_doubles_with_each_transaction_that_may_have_been_sent_back_and_has_an_end() -> None:
    assert [after(*[SENT_BACK_S + 0.005] * times) for times in (1, 2, 3, 4, 50)] == [
        0.002,
        0.004,
        MOST_S,
        MOST_S,
        MOST_S,
    ]


def test_the_rest_shrinks_when_the_broker_is_quick_again() -> None:
    slow, quick = [0.03] * 3, [0.004]
    assert MOST_S > after(*slow, *quick) > after(*slow, *quick * 10) > after(*slow, *quick * 60) == LEAST_S


def test_it_is_over_when_as_much_time_has_passed() -> None:
    pace = TransactionPacing()
    pace.ended(10.0, 10.004, records=3)
    assert pace.rest_s(10.0045, records=3) > 0
    assert pace.rest_s(10.004 + LEAST_S, records=3) == 0.0 == pace.rest_s(99.0, records=3)


def test_a_backlog_neither_rests_nor_is_taken_for_slow() -> None:
    pace = TransactionPacing()
    pace.ended(10.0, 10.002, records=3)
    assert pace.rest_s(10.002, records=FEW_RECORDS) == 0.0
    assert after(0.5, records=FEW_RECORDS) == LEAST_S


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


def test_a_pause_tells_nothing() -> None:
    trickle = AdaptiveLinger(0.02)
    before_s = trickle.wait_s(10.0, 1.0)
    assert trickle.wait_s(70.0, 60.0) == before_s


def test_one_dear_round_is_no_reason_to_wait_long() -> None:
    trickle = AdaptiveLinger(0.02)
    trickle.wait_s(10.0, 1.0)
    assert trickle.wait_s(10.05, 1.05) <= 1.1 * LEAST_WAIT_S
