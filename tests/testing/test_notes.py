"""The notes of a test's folds, and the differences found when two runs of it are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Emit, FoldWith, Global, Processor, Source
from holdfast.core.engine.declared.serdes import Text
from holdfast.testing import Topology
from holdfast.testing.notes import LIMIT_STEPS, NotedStep, compare, noting

Fold = Callable[..., Any]
Steps = list[list[NotedStep]]


def keep(rows: Any, word: str, at_ms: int) -> None:
    rows[word] = (rows.get(word) or 0) + 1


def steps(fold: Fold, *words: str, row: Any = int, **declared: Any) -> Steps:
    """Return the notes of a fold that is given *words*."""
    with noting() as notes:
        words_of = Processor(
            name="words", source="lines", decode=bytes.decode, fold=fold, row=row, **declared
        )
        with Topology([words_of]) as topology:
            for word in words:
                topology.pipe("lines", word, partition=1)
            assert len(topology.refused) <= len(words), "some of these tests are about what is refused"
    return notes.steps


def test_equal_runs_are_equal_step_by_step() -> None:
    found = compare(steps(keep, "to", "be", "to"), steps(keep, "to", "be", "to"))
    assert (found.difference, found.compared, found.parted) == (None, 3, False)


def test_another_row_is_named_with_its_record_table_and_key() -> None:
    def other(rows: Any, word: str, at_ms: int) -> None:
        rows[word] = 7 if word == "be" else (rows.get(word) or 0) + 1

    found = compare(steps(keep, "to", "be"), steps(other, "to", "be"))
    assert found.difference == "words partition 1: record lines/1/1 gives other rows: words['be'] was 1, is 7"


def test_a_row_that_is_written_in_one_run_alone_is_reported() -> None:
    def less(rows: Any, word: str, at_ms: int) -> None:
        pass

    found = compare(steps(keep, "to"), steps(less, "to"))
    assert str(found.difference).endswith("words['to'] was 1, is not written")


def test_rows_may_be_assigned_in_another_order() -> None:
    def one(rows: Any, word: str, at_ms: int) -> None:
        rows["a"] = rows["b"] = 1

    def other(rows: Any, word: str, at_ms: int) -> None:
        rows["b"] = rows["a"] = 1

    assert compare(steps(one, "to"), steps(other, "to")).difference is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("a", "b"), "emits other records to out: number 0 was Emit(topic='out', key='b'"),
        (("b",), "emits other records to out: number 1 was one of 2, is one of 1"),
    ],
)
def test_emits_are_compared_in_their_order(given: tuple[str, ...], told: str) -> None:
    def emitting(*keys: str) -> Fold:
        def fold(rows: Any, word: str, at_ms: int) -> Iterator[Emit]:
            yield from (Emit("out", key) for key in keys)

        return fold

    one = steps(emitting("b", "a"), "to", emits=("out",))
    assert told in str(compare(one, steps(emitting(*given), "to", emits=("out",))).difference)


def test_timers_are_compared() -> None:
    def waking(after_ms: int) -> Fold:
        def fold(rows: Any, word: str, at_ms: int) -> None:
            rows.wake_at(word, at_ms + after_ms)

        return fold

    def wake(rows: Any, key: str, at_ms: int) -> None:
        pass

    one, other = (steps(waking(each), "to", on_wake=wake) for each in (5, 6))
    assert "the append timer of 'to' was 1700000000005, is 1700000000006" in str(
        compare(one, other).difference
    )


def test_refusals_are_compared_by_position_and_kind_since_their_text_may_hold_an_address() -> None:
    def refusing(error: Exception) -> Fold:
        def fold(rows: Any, word: str, at_ms: int) -> None:
            raise error

        return fold

    one = steps(refusing(ValueError("at 0x1")), "to")
    assert compare(one, steps(refusing(ValueError("at 0x2")), "to")).difference is None
    assert "refuses other records" in str(compare(one, steps(refusing(KeyError("at 0x1")), "to")).difference)


def test_a_long_row_differs_beyond_the_noted_part_of_it() -> None:
    def long(end: str) -> Fold:
        def fold(rows: Any, word: str, at_ms: int) -> None:
            rows[word] = "x" * 10_000 + end

        return fold

    one, other = (steps(long(each), "to", row=str) for each in "ab")
    assert "gives other rows: words['to'] was" in str(compare(one, other).difference)


def test_a_fold_is_not_blamed_for_other_records() -> None:
    found = compare(steps(keep, "to", "be"), steps(keep, "to", "or"))
    assert (found.difference, found.compared, found.parted) == (None, 1, True)


def test_a_run_that_ends_early_is_compared_up_to_there() -> None:
    found = compare(steps(keep, "to", "be"), steps(keep, "to"))
    assert (found.difference, found.compared, found.parted) == (None, 1, True)


def test_a_chain_blames_the_processor_that_begins_to_differ() -> None:
    def chained(value: bytes) -> Steps:
        def first(rows: Any, word: str, at_ms: int) -> Iterator[Emit]:
            yield Emit("between", word, value)

        declared = [
            Processor(name="z", source="lines", decode=bytes.decode, fold=first, row=int, emits=("between",)),
            Processor(name="a", source="between", decode=bytes.decode, fold=keep, row=int),
        ]
        with noting() as notes, Topology(declared) as topology:
            topology.pipe("lines", "to", key="to")
        return notes.steps

    assert str(compare(chained(b"1"), chained(b"2")).difference).startswith("z partition")


def test_globals_and_ticks_are_noted_and_later_folds_depend_on_them() -> None:
    def made(of: Callable[[str], str], *, rate: str = "2") -> Steps:
        def learn(rows: Any, event: str, at_ms: int, key: str) -> None:
            rows[key] = of(event)

        rates: Global[str] = Global("rates", Source("rates", Text()), FoldWith(learn, ("key",)), row=str)
        source = Source("lines", Text())
        words_of: Processor[Any, Any] = Processor(
            name="words", on={source: waking}, row=int, reads=(rates,), on_tick=waking
        )
        with noting() as notes, Topology([words_of]) as topology:
            topology.pipe(rates.source, rate, key="usd")
            topology.pipe(source, "to")
            topology.tick(1_800_000_000_000)
        return notes.steps

    def waking(rows: Any, word: str, at_ms: int) -> None:
        rows.wake_at(word, at_ms + 5, clock="tick")

    found = compare(made(str.lower), made(lambda event: event + "!"))
    assert "rates partition" in str(found.difference)
    assert "rates['usd'] was '2', is '2!'" in str(found.difference)
    other = compare(made(str.lower), made(str.lower, rate="3"))
    assert (other.difference, other.compared, other.parted) == (None, 0, True)
    assert compare(made(str.lower), made(str.lower)).compared == 3, "a global's record, a record and a tick"


def test_a_test_is_noted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIMIT_STEPS > 1_000
    with noting() as notes:
        notes.left = 3
        for _ in range(2):
            with Topology(
                [Processor(name="w", source="lines", decode=bytes.decode, fold=keep, row=int)]
            ) as topology:
                topology.pipe("lines", "to")
                topology.pipe("lines", "to")
    assert [len(each) for each in notes.steps] == [2, 1]


def test_nothing_is_noted_without_a_request() -> None:
    with noting() as notes:
        pass
    with Topology([Processor(name="w", source="lines", decode=bytes.decode, fold=keep, row=int)]) as topology:
        topology.pipe("lines", "to")
    assert notes.topologies == []
