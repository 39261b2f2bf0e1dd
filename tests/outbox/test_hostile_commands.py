"""The topics of commands to an outbox's harvesters, made before brokers were asked to
refuse bombs.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.config import Settings
from holdfast.dev.fixtures import SessionBroker
from holdfast.outbox.command_log import CommandLog
from holdfast.outbox.commands import Verb, tell
from holdfast.outbox.election import Election
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.topics import ensure_topics
from tests.outbox.electors import Journal, Noting
from tests.outbox.test_command_log import Believer
from tests.support.harness import wait_for
from tests.support.hostile_batches import ROOM, send_hostile
from tests.support.patience import DEADLINE_S


@pytest.fixture
def settings(broker: SessionBroker) -> Iterator[HarvestSettings]:
    kafka = Settings(kafka={name: str(value) for name, value in broker.config.items()})
    told = HarvestSettings(
        database="sqlite:///never-opened.db", kafka=kafka, name=f"told-{uuid.uuid4().hex[:8]}", shards=1
    )
    own = [told.commands_topic, told.answers_topic]
    for topic, policy in zip(own, ("compact", "delete"), strict=True):
        broker.create_topic(topic, config=ROOM | {"cleanup.policy": policy}, exact=True)
    made = ensure_topics(told)
    yield told
    broker.delete_topics([*own, *made])


@pytest.mark.slow
def test_commands_are_read_and_answered_beyond_hostile_batches(
    broker: SessionBroker, settings: HarvestSettings
) -> None:
    handler = Believer()
    send_hostile(broker, settings.commands_topic)
    follower = CommandLog(settings, handler, handler.obey)
    follower.open()
    try:
        assert handler.caught.wait(DEADLINE_S)
        assert [answer.verb for answer in tell(settings, Verb.FLUSH, DEADLINE_S)] == [Verb.FLUSH]
        for topic in (settings.commands_topic, settings.answers_topic):
            send_hostile(broker, topic)
        assert [answer.verb for answer in tell(settings, Verb.STATUS, DEADLINE_S)] == [Verb.STATUS]
        assert handler.heard == [Verb.FLUSH, Verb.STATUS]
        assert not handler.ended.is_set()
    finally:
        follower.close(DEADLINE_S)


@pytest.mark.slow
def test_a_leader_hears_itself_beyond_hostile_batches(
    broker: SessionBroker, settings: HarvestSettings
) -> None:
    """Without the skipper it is fenced by its own silence, for good: no member receives a heartbeat any more,
    nor a claim.
    """
    told = replace(settings, leader_topic=broker.create_topic("neli", config=ROOM))
    journal = Journal()
    with Election(told.election(), Noting(journal, "a"), kafka=told.kafka) as member:
        wait_for("a leader", lambda: member.leadership(0) is not None, DEADLINE_S)
        send_hostile(broker, told.election().leader_topic)
        passed = wait_for(
            "it passes them", lambda: (member.skipper.skipped if member.skipper else 0) >= 3, DEADLINE_S
        )
        assert passed
        # Who did not hear itself would be fenced by now, and never lead again.
        time.sleep(2 * told.heartbeat_timeout_s)
        wait_for("it leads", lambda: member.leadership(0) is not None, DEADLINE_S)
