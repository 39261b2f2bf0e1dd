"""Watermarks of origins: the values remembered between records are those that a look at all of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.declared.emit_rules import EmitRules
from holdfast.core.engine.emit_columns import headers_of
from holdfast.core.engine.emits import Emit, Headers
from holdfast.core.engine.origins import (
    NAMELESS,
    ORIGIN,
    UNHEARD,
    Mark,
    OriginWatermarks,
    StepClock,
    mark_headers,
    quickly_told_of,
    record_header,
    told_of,
)
from holdfast.errors import FoldError

ORIGINS = 3
TIMES = st.integers(-1, 6).map(lambda at: UNHEARD if at < 0 else at)
HEARD = st.tuples(st.integers(NAMELESS, ORIGINS - 1), TIMES)
MARKED = st.builds(Mark, st.integers(0, ORIGINS - 1), TIMES, st.booleans(), st.just(ORIGINS))


def afresh(marks: dict[int, int], ended: set[int], told_origins: bool) -> int:
    """Return the least watermark, by a look at all."""
    named = {origin: at for origin, at in marks.items() if origin != NAMELESS}
    if not named:
        return marks.get(NAMELESS, UNHEARD)
    if not told_origins or len(named) < ORIGINS:
        return UNHEARD
    held = [at for origin, at in named.items() if origin not in ended]
    return min(held) if held else max(marks.values())


@given(st.lists(st.one_of(HEARD, MARKED), max_size=60))
def test_the_least_watermark_is_that_of_a_look_at_all_origins(said: Sequence[Any]) -> None:
    """One origin speaks many times in a row: the others are not looked at again in that time."""
    watermarks, marks, ended, told = OriginWatermarks(), dict[int, int](), set[int](), False
    for each in said:
        if isinstance(each, Mark):
            watermarks.mark(each)
            told = True
        else:
            was_news = each[0] not in marks or each[1] > marks[each[0]] or each[0] in ended
            assert watermarks.hear(*each) == was_news
        origin, at = each[:2]
        marks[origin] = max(at, marks.get(origin, at))
        ended.discard(origin)
        if isinstance(each, Mark) and each.has_ended:
            ended.add(origin)
        assert watermarks.least_ms == afresh(marks, ended, told)


def clock() -> StepClock:
    return StepClock([lambda event: event["at"]])


EVENTS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.just({}),  # without a time
    st.fixed_dictionaries({"at": st.one_of(st.integers(-2, 9), st.just(10**15), st.just(True))}),
)


@given(st.lists(st.tuples(EVENTS, st.sampled_from([(), (("a", b"1"),)])), max_size=30), st.integers(0, 30))
def test_records_in_columns_carry_the_same_as_one_by_one(
    given_: Sequence[tuple[Any, Headers]], cut: int
) -> None:
    """Records that move no watermark share a header, and each still carries its own."""
    one_by_one, columns = clock(), clock()
    wanted = [one_by_one.told(0, event, headers, 4, 0) for event, headers in given_]
    found: list[Headers] = []
    for part in (given_[:cut], given_[cut:]):
        events, headers = [event for event, _ in part], [each for _, each in part]
        sent = columns.told_all(events, headers, [4] * len(part), [0] * len(part))
        found += [*map(headers_of, sent)]
    assert found == wanted
    assert columns.encode() == one_by_one.encode()


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("a", b"1"),),
        ((ORIGIN, None),),
        ((ORIGIN, b""),),
        ((ORIGIN, b"\x01"),),
        ((ORIGIN, b"\x02" + bytes(20)),),
        (record_header(1, 2, 3), ("a", b"1")),
        mark_headers(Mark(1, 2, False, 3)),
    ],
)
def test_headers_other_than_of_a_step_alone_are_left_to_the_careful_look(headers: Headers) -> None:
    assert quickly_told_of(headers) is None
    told = record_header(1, UNHEARD, 3)
    assert quickly_told_of((told,)) == told_of((told,)) == (1, UNHEARD, 3)


def test_the_limit_of_bytes_holds_for_each_record_behind_a_shared_header() -> None:
    """An emit is judged by its own key and value, and by the header that it shares with the one before."""
    rules = EmitRules(SimpleNamespace(name="step", emits=("out",)), 100)  # type: ignore[arg-type]
    told = (record_header(1, 2, 3),)
    fits = Emit("out", b"k", b"v" * 40, told)
    rules.check_all([fits, fits, Emit("out", b"k", b"v" * 99, ()), fits])
    with pytest.raises(FoldError, match="the limit is 100"):
        rules.check_all([fits, Emit("out", b"k", b"v" * 90, told)])
    with pytest.raises(FoldError, match="the limit is 100"):
        rules.check_all([fits, Emit("out", b"k", b"v" * 100, ())])
    with pytest.raises(FoldError, match="not a partition's number"):
        rules.check_all([fits, Emit("out", b"k", b"v", told, 1 << 31)])
    with pytest.raises(FoldError, match="not a pair"):
        rules.check_all([fits, Emit("out", b"k", b"v", ("a",))])  # type: ignore[arg-type]
