"""Timers of one clock: what is due, and the two ways back."""

from __future__ import annotations

from random import Random

from holdfast.core.engine.timers import NEVER, TimerTable


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


def test_a_rollback_takes_back_everything_also_what_was_taken_as_due() -> None:
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
