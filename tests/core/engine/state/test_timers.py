"""Timers of one clock: the due ones, and the two ways back."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.core.engine.state import timers as module
from holdfast.core.engine.state.timers import NEVER, Timer, TimerTable


def test_they_are_due_by_time_and_then_by_key() -> None:
    timers = TimerTable([("b", 5), ("a", 5), ("c", 1), ("d", 9)])
    assert timers.next_ms == 1
    assert timers.due(5) == [("c", 1), ("a", 5), ("b", 5)]
    assert timers.next_ms == 9


def test_one_that_was_moved_or_cancelled_does_not_fire() -> None:
    timers = TimerTable([("a", 1), ("b", 1), ("c", 1)])
    timers.due(1)
    timers.set("a", None)
    timers.set("b", 7)
    assert [timers.fire(key, 1) for key in "abc"] == [False, False, True]
    assert timers.changed == {"a": None, "b": 7, "c": None}
    assert timers.next_ms == 7


def test_what_a_record_changed_is_taken_back() -> None:
    timers = TimerTable([("a", 1)])
    timers.set("b", 2)
    timers.keep()
    timers.set("a", None)
    timers.set("b", 3)
    timers.set("c", 4)
    timers.undo()
    assert timers.changed == {"b": 2}
    assert timers.due(9) == [("a", 1), ("b", 2)]


def test_a_rollback_takes_back_everything_also_timers_that_were_taken_as_due() -> None:
    timers = TimerTable([("a", 1), ("b", 2)])
    timers.due(1)
    timers.fire("a", 1)
    timers.set("b", None)
    timers.rollback()
    assert timers.changed == {}
    assert timers.due(9) == [("a", 1), ("b", 2)]


def test_without_any_the_next_is_never() -> None:
    timers = TimerTable([("a", 1)])
    timers.set("a", None)
    assert timers.next_ms == NEVER
    assert timers.due(NEVER - 1) == []


def test_they_are_what_a_dict_of_times_says_whatever_was_done() -> None:
    for seed in range(200):
        rng, timers, plain, committed = Random(seed), TimerTable(), dict[str, int](), dict[str, int]()
        for _ in range(60):
            match rng.choice(("set", "set", "cancel", "fire", "keep", "commit", "rollback")):
                case "set":
                    key, at_ms = rng.choice("abcdef"), rng.randrange(20)
                    timers.set(key, at_ms)
                    plain[key] = at_ms
                case "cancel":
                    key = rng.choice("abcdef")
                    timers.set(key, None)
                    plain.pop(key, None)
                case "fire":
                    now_ms = rng.randrange(20)
                    due = timers.due(now_ms)
                    assert due == [
                        (key, at_ms)
                        for at_ms, key in sorted((b, a) for a, b in plain.items())
                        if at_ms <= now_ms
                    ]
                    for key, at_ms in due:
                        assert timers.fire(key, at_ms)
                        del plain[key]
                case "keep":
                    timers.keep()
                case "commit":
                    timers.commit()
                    committed = dict(plain)
                case "rollback":
                    timers.rollback()
                    plain = dict(committed)
            assert timers.next_ms == min(plain.values(), default=NEVER)


class Ordered:
    """Stored timers, in order; what a transaction changed is there once it is committed."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.read = 0

    def first(self, after: Timer, limit: int) -> list[Timer]:
        self.read += 1
        return sorted(each for each in ((at, key) for key, at in self.of.items()) if each > after)[:limit]

    def find(self, key: str) -> int | None:
        return self.of.get(key)

    def take(self, timers: TimerTable) -> None:
        for key, at_ms in timers.changed.items():
            if at_ms is None:
                self.of.pop(key, None)
            else:
                self.of[key] = at_ms
        timers.commit()


@pytest.mark.long
def test_of_many_stored_ones_only_the_first_are_held_and_all_are_what_a_dict_of_times_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST", 4)
    monkeypatch.setattr(module, "FEW", 2)
    for seed in range(1_500):
        rng, store = Random(seed), Ordered()
        timers, plain, committed = TimerTable(store=store), dict[str, int](), dict[str, int]()
        kept = dict(plain)
        for _ in range(60):
            key = rng.choice("abcdefghijklmnop")
            match rng.choice(
                ("set", "set", "set", "cancel", "fire", "keep", "undo", "commit", "rollback", "look")
            ):
                case "set":
                    at_ms = rng.randrange(20)
                    timers.set(key, at_ms)
                    plain[key] = at_ms
                case "cancel":
                    timers.set(key, None)
                    plain.pop(key, None)
                case "fire":
                    now_ms = rng.randrange(20)
                    due = timers.due(now_ms)
                    wanted = sorted((at, each) for each, at in plain.items() if at <= now_ms)
                    assert due == [(each, at) for at, each in wanted], seed
                    for each, at_ms in due:
                        assert timers.fire(each, at_ms)
                        del plain[each]
                case "keep":
                    timers.keep()
                    kept = dict(plain)
                case "undo":
                    timers.undo()
                    plain = dict(kept)
                case "commit":
                    store.take(timers)
                    committed, kept = dict(plain), dict(plain)
                    assert store.of == plain
                case "rollback":
                    timers.rollback()
                    plain, kept = dict(committed), dict(committed)
                case "look":
                    assert timers.next_ms == min(plain.values(), default=NEVER), seed


@pytest.mark.long
def test_the_held_part_of_many_timers_is_bounded_and_read_on_when_their_time_comes() -> None:
    store = Ordered()
    timers = TimerTable(store=store)
    assert timers.next_ms == NEVER
    for at in range(module.MOST + 1_000):
        timers.set(f"{at:06d}", at)
    store.take(timers)
    timers.set("zz", module.MOST * 2)
    assert len(timers.held) == module.FEW + 1
    store.take(timers)
    timers = TimerTable(store=store)
    assert timers.next_ms == 0
    assert (store.read, len(timers.held)) == (2, module.FEW)
    due = timers.due(module.FEW + 5)
    assert [at for _, at in due] == [*range(module.FEW + 6)]
    assert store.read == 3
