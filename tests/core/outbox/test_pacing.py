"""The rest of a producer between transactions, so that no transaction is sent back."""

from __future__ import annotations

from holdfast.core.outbox.pacing import FEW_RECORDS, LEAST_S, MOST_S, SENT_BACK_S, TransactionPacing


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
