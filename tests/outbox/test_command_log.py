"""The answers that shards owe, as every harvester of an outbox folds them from the commands and the
answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.config import Settings
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import BrokerError, HoldfastError
from holdfast.outbox import commands
from holdfast.outbox.command_log import LIMIT_REMEMBERED, CommandLog, OpenCommands
from holdfast.outbox.commands import Command, CommandReply, Verb, tell
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.topics import ensure_topics
from tests.outbox.harvesting import Leaping
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.strangers import open_transaction

TURNS = 10
"""Looks of a follower at what shard 1 owes: enough for a second answer, if it gave one."""
PAUSE = Command(id="p", verb=Verb.PAUSE, at_ms=1_000)
STATUS = Command(id="s", verb=Verb.STATUS, at_ms=2_000)


def owed(orders: OpenCommands, now_ms: int = 3_000) -> list[tuple[str, int]]:
    return [(command.id, shard) for command, shard in orders.owed(now_ms)]


def test_every_shard_owes_an_answer_to_every_command_until_it_has_given_it() -> None:
    orders = OpenCommands(2)
    orders.opened(PAUSE, 11_000)
    orders.opened(STATUS, 12_000)
    assert owed(orders) == [("p", 0), ("p", 1), ("s", 0), ("s", 1)]
    orders.answered("p", 1)
    assert owed(orders) == [("p", 0), ("s", 0), ("s", 1)]
    orders.not_answered("p", 1)
    assert ("p", 1) in owed(orders), "an answer that did not get through is still owed"


def test_an_unawaited_command_gets_no_answer() -> None:
    orders = OpenCommands(1)
    orders.opened(PAUSE, 11_000)
    assert owed(orders, 11_000) == [("p", 0)]
    assert owed(orders, 11_001) == []


def test_it_does_not_matter_which_topic_is_read_first() -> None:
    def said(order: tuple[int, ...]) -> list[tuple[str, int]]:
        orders = OpenCommands(2)
        for each in order:
            if each == 0:
                orders.opened(PAUSE, 11_000)
            else:
                orders.answered("p", 0)
        return owed(orders)

    assert {tuple(said(order)) for order in permutations(range(2))} == {(("p", 1),)}


def test_very_many_commands_are_not_remembered_for_ever() -> None:
    orders = OpenCommands(1)
    for number in range(3 * LIMIT_REMEMBERED):
        orders.opened(Command(id=f"c{number}", verb=Verb.STATUS, at_ms=0), 11_000)
        orders.answered(f"d{number}", 0)
    assert len(owed(orders)) == LIMIT_REMEMBERED
    assert len(orders._answered) == 2 * LIMIT_REMEMBERED


class Believer:
    """A harvester's side of a follower: leads shard 0 whatever happens, and numbers what it answers.

    It leads shard 1 as soon as *joins* says so.
    """

    def __init__(self) -> None:
        self.heard: list[Verb] = []
        self.said = self.looks = 0
        self.joins: Callable[[], bool] = bool
        self.caught, self.ended = threading.Event(), threading.Event()

    def obey(self, command: Command) -> None:
        self.heard.append(command.verb)
        if command.verb is Verb.PAUSE and self.heard.count(Verb.PAUSE) > 1:
            raise RuntimeError("a bug")

    def failed(self, error: HoldfastError) -> None:
        self.ended.set()

    def caught_up(self) -> None:
        self.caught.set()

    def leads(self, shard: int) -> bool:
        self.looks += shard == 1 and self.said > 0
        return shard == 0 or self.joins()

    def is_settled(self, shard: int, verb: Verb) -> bool:
        return True

    def answer(self, command: Command, shard: int) -> CommandReply:
        self.said += 1
        return CommandReply(
            id=command.id,
            verb=command.verb,
            shard=shard,
            leader="b",
            epoch=1,
            paused=False,
            published=self.said,
            quarantined=0,
        )


def test_of_several_answers_the_first_counts_and_a_follower_gives_one(broker: SessionBroker) -> None:
    """A follower that is made deaf to answers repeats itself without end: the check that there is only one
    can fail.
    """
    kafka = Settings(kafka={name: str(value) for name, value in broker.config.items()})
    settings = HarvestSettings(
        database="sqlite:///never-opened.db", kafka=kafka, name=f"told-{ending()}", shards=2
    )
    ensure_topics(settings)
    handler = Believer()
    follower = CommandLog(settings, handler, handler.obey)
    follower.open()
    try:
        assert handler.caught.wait(DEADLINE_S)
        handler.joins = lambda: handler.looks > TURNS
        answers = tell(settings, Verb.FLUSH, DEADLINE_S)
        assert [(answer.shard, answer.published) for answer in answers] == [(0, 1), (1, 2)]
        assert handler.said == 2, "shard 0 has answered once, however often it was looked at"
        follower._open.answered = lambda *_: None  # type: ignore[method-assign]
        handler.joins = lambda: handler.said > 4
        answers = tell(settings, Verb.STATUS, DEADLINE_S)
        assert [answer.shard for answer in answers] == [0, 1]
        assert answers[0].published == 3, "the first of several"
        assert handler.heard == [Verb.FLUSH, Verb.STATUS]
        assert not handler.ended.is_set()

        def heard_once_too_often() -> bool:
            with suppress(BrokerError):  # a slow broker does not answer in so short a time
                tell(settings, Verb.PAUSE, 0.1)
            return handler.ended.is_set()

        wait_for("a follower that says that it hears nothing any more", heard_once_too_often, DEADLINE_S)
    finally:
        follower.close(DEADLINE_S)
    assert not follower.is_alive()


def test_a_command_that_was_not_written_differs_from_one_without_answers(
    broker: SessionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Producer):
        def flush(self, *_: Any) -> int:
            return 1

    kafka = Settings(kafka={name: str(value) for name, value in broker.config.items()})
    settings = HarvestSettings(database="sqlite:///never-opened.db", kafka=kafka, name=f"told-{ending()}")
    ensure_topics(settings)
    monkeypatch.setattr(commands, "make_writer", Stuck)
    with pytest.raises(
        BrokerError, match=f"the command was not written within {DEADLINE_S:.0f} s; check that"
    ):
        tell(settings, Verb.STATUS, DEADLINE_S, Leaping())


def test_a_later_harvester_reads_pauses_that_still_hold_and_commands_that_are_still_awaited(
    broker: SessionBroker,
) -> None:
    kafka = Settings(kafka={name: str(value) for name, value in broker.config.items()})
    settings = HarvestSettings(database="sqlite:///never-opened.db", kafka=kafka, name=f"told-{ending()}")
    ensure_topics(settings)
    for verb in (Verb.RESUME, Verb.FLUSH, Verb.PAUSE):
        assert tell(settings, verb, DEADLINE_S, Leaping()) == []
    found: list[list[CommandReply]] = []
    asking = threading.Thread(target=lambda: found.append(tell(settings, Verb.STATUS, DEADLINE_S)))
    handler = Believer()
    follower = CommandLog(settings, handler, handler.obey)
    asking.start()
    follower.open()
    try:
        asking.join(DEADLINE_S)
    finally:
        follower.close(DEADLINE_S)
    assert handler.heard == [Verb.PAUSE, Verb.STATUS]
    assert len(found[0]) == handler.said == 1


def test_a_stranger_s_open_transaction_hides_neither_a_command_nor_its_answer(broker: SessionBroker) -> None:
    kafka = Settings(kafka={name: str(value) for name, value in broker.config.items()})
    settings = HarvestSettings(database="sqlite:///never-opened.db", kafka=kafka, name=f"told-{ending()}")
    ensure_topics(settings)
    handler = Believer()
    follower = CommandLog(settings, handler, handler.obey)
    with (
        open_transaction(broker.config, settings.commands_topic, 1),
        open_transaction(broker.config, settings.answers_topic, 1),
    ):
        follower.open()
        try:
            assert len(tell(settings, Verb.STATUS, DEADLINE_S)) == 1
        finally:
            follower.close(DEADLINE_S)
    assert handler.heard == [Verb.STATUS]
