"""A number for a duration is in ms: below a second, seconds or minutes were meant most often."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.core.engine.declared.durations import ShortDurationWarning
from holdfast.errors import ConfigError
from holdfast.streams import Hopping, Session, Sliding, Tumbling


@pytest.mark.parametrize(
    "declare",
    [lambda: Tumbling(60), lambda: Hopping("1s", every=5), lambda: Sliding(1), lambda: Session(999)],
)
def test_a_number_below_a_second_is_warned_of_at_its_line(declare: Callable[[], object]) -> None:
    with pytest.warns(ShortDurationWarning, match=r"a number is in ms, so this is \d+ ms; write") as caught:
        declare()
    assert [each.filename for each in caught] == [__file__]


def test_what_says_its_unit_is_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Tumbling("60ms") == Tumbling(timedelta(milliseconds=60))
        assert Tumbling(timedelta(minutes=1), grace=0) == Tumbling("1m") == Tumbling(60_000)


@pytest.mark.parametrize("size", [timedelta(microseconds=1), timedelta(0), timedelta(-1)])
def test_a_timedelta_is_of_whole_ms(size: timedelta) -> None:
    with pytest.raises(ConfigError, match="size of tumbling windows"):
        Tumbling(size)
