"""Who owes an answer to what, as every harvester of an outbox folds it from the commands and the answers."""

from __future__ import annotations

from itertools import permutations

from holdfast.outbox.commands import Command, Verb
from holdfast.outbox.orders import LIMIT_REMEMBERED, Orders

PAUSE = Command(id="p", verb=Verb.PAUSE, at_ms=1_000)
STATUS = Command(id="s", verb=Verb.STATUS, at_ms=2_000)


def owed(orders: Orders, now_ms: int = 3_000) -> list[tuple[str, int]]:
    return [(command.id, shard) for command, shard in orders.owed(now_ms)]


def test_every_shard_owes_an_answer_to_every_command_until_it_has_given_it() -> None:
    orders = Orders(2)
    orders.hear(PAUSE, 11_000)
    orders.hear(STATUS, 12_000)
    assert owed(orders) == [("p", 0), ("p", 1), ("s", 0), ("s", 1)]
    orders.hear_answer("p", 1)
    assert owed(orders) == [("p", 0), ("s", 0), ("s", 1)]
    orders.unsay("p", 1)
    assert ("p", 1) in owed(orders), "an answer that did not get through is still owed"


def test_nobody_answers_what_nobody_waits_for() -> None:
    orders = Orders(1)
    orders.hear(PAUSE, 11_000)
    assert owed(orders, 11_000) == [("p", 0)]
    assert owed(orders, 11_001) == []


def test_it_does_not_matter_which_topic_is_read_first() -> None:
    def said(order: tuple[int, ...]) -> list[tuple[str, int]]:
        orders = Orders(2)
        for each in order:
            if each == 0:
                orders.hear(PAUSE, 11_000)
            else:
                orders.hear_answer("p", 0)
        return owed(orders)

    assert {tuple(said(order)) for order in permutations(range(2))} == {(("p", 1),)}


def test_very_many_commands_are_not_remembered_for_ever() -> None:
    orders = Orders(1)
    for number in range(3 * LIMIT_REMEMBERED):
        orders.hear(Command(id=f"c{number}", verb=Verb.STATUS, at_ms=0), 11_000)
        orders.hear_answer(f"d{number}", 0)
    assert len(owed(orders)) == LIMIT_REMEMBERED
    assert len(orders._answered) == 2 * LIMIT_REMEMBERED
