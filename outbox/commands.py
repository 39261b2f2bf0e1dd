"""Commands to harvesters, and their answers, as JSON on two topics of one partition each.

Every harvester of an outbox reads every command (holdfast.outbox.command_log) and answers for the shards it
leads: only the election knows where a shard is led. The last pause or resume stays on the topic, so a leader
that comes later keeps to it. Of several answers to one command for one shard the first on the topic counts,
for everybody alike.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.core.untrusted import careful
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import make_reader, make_writer, reader_options
from holdfast.kafka.codes import NO_LEADER, code_of
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.kafka.reading.skipper import Skipper
from holdfast.outbox.settings import HarvestSettings

logger = logging.getLogger(__name__)

POLL_S = 0.25
LIMIT_TEXT = 500
PAUSED_KEY = b"paused"
END_S = 10.0


class Verb(StrEnum):
    """The commands to harvesters."""

    PAUSE = "pause"
    RESUME = "resume"
    FLUSH = "flush"
    STATUS = "status"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One order to all harvesters of an outbox; *id* comes back in the answers, for which the sender waits
    *wait_ms*.
    """

    id: str
    verb: Verb
    at_ms: int
    wait_ms: int = 10_000


class CommandReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one shard's leader to a command."""

    id: str
    verb: Verb
    shard: int
    leader: str
    epoch: int
    paused: bool
    published: int
    quarantined: int
    in_flight: int = 0
    """Rows that are on their way; a pause is answered once there are none, if that takes no longer than
    two seconds.
    """
    waiting_topics: list[str] = []
    last_error: str = ""
    stopped: bool = False
    """True if the shard is not published until it is resumed: the database did not do what it reported."""


read_command = careful(msgspec.json.Decoder(Command).decode)
read_answer = careful(msgspec.json.Decoder(CommandReply).decode)


def reader_of_commands(settings: HarvestSettings, refuse: Callable[[KafkaError], None]) -> LogReader:
    """Return a reader of commands and answers, which calls *refuse* with errors and passes unreadable
    batches.
    """
    # An open transaction of a stranger must not hide commands, which are never written in transactions.
    config = settings.kafka.consumer(
        **reader_options(f"{settings.name}-commands", committed=False, wait_ms=500)
    )
    return LogReader(make_reader(config), Skipper(settings.kafka, config), refuse=refuse)


def _reader_of_new_answers(settings: HarvestSettings) -> LogReader:
    reader = reader_of_commands(settings, refuse=lambda _: None)
    try:
        reader.assign({(settings.answers_topic, 0): end_of(reader.consumer, settings.answers_topic)})
    except BaseException:
        reader.close()
        raise
    return reader


def end_of(consumer: Any, topic: str, clock: Clock = system_clock) -> int:
    """Return the end of *topic*'s only partition, waiting for a topic that was made just now to have a
    leader.
    """
    until_s = clock.monotonic_s() + END_S
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=END_S)
            return int(end)
        except KafkaException as error:
            if code_of(error) not in NO_LEADER or clock.monotonic_s() > until_s:
                raise
            time.sleep(0.05)


def tell(
    settings: HarvestSettings, verb: Verb, timeout_s: float = 10.0, clock: Clock = system_clock
) -> list[CommandReply]:
    """Send *verb* to all harvesters of the outbox and return the answers of its shards' leaders, as many as
    came in time.

    Raises TopicError when there are no harvesters yet (their topics are missing), BrokerError when the
    cluster cannot be reached.
    """
    producer = make_writer(
        {
            **settings.kafka.producer(),
            "message.timeout.ms": int(timeout_s * 1000),
            "allow.auto.create.topics": False,
        }
    )
    failed: list[KafkaError] = []
    try:
        if settings.answers_topic not in producer.list_topics(timeout=timeout_s).topics:
            raise TopicError(
                f"topic {settings.answers_topic} is missing: no harvester of {settings.name} has ever run"
                " here"
            )
        reader = _reader_of_new_answers(settings)
    except KafkaException as error:
        raise BrokerError(
            f"topic {settings.answers_topic}: {error.args[0].str()}; check that the broker is reachable"
        ) from error
    try:
        # Made after the broker was asked: who comes later counts the wait from here.
        command = Command(
            id=secrets.token_hex(8), verb=verb, at_ms=clock.now_ms(), wait_ms=round(timeout_s * 1000)
        )
        key = PAUSED_KEY if verb in (Verb.PAUSE, Verb.RESUME) else command.id.encode()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        producer.produce(settings.commands_topic, msgspec.json.encode(command), key, on_delivery=delivered)
        unsent = producer.flush(timeout_s)
        if failed or unsent:
            why = failed[0].str() if failed else f"the command was not written within {timeout_s:g} s"
            raise BrokerError(f"topic {settings.commands_topic}: {why}; check that the broker is reachable")
        if verb not in (Verb.PAUSE, Verb.RESUME):  # a later harvester does not need it
            producer.produce(settings.commands_topic, None, key)
            producer.flush(timeout_s)
        answers: dict[int, CommandReply] = {}
        for answer in _answers(reader, clock, clock.monotonic_s() + timeout_s):
            if answer.id == command.id:
                answers.setdefault(answer.shard, answer)
                if len(answers) == settings.shards:
                    break
        return [answers[shard] for shard in sorted(answers)]
    finally:
        reader.close()


def _answers(reader: LogReader, clock: Clock, until_s: float) -> Iterator[CommandReply]:
    for message in reader.until(lambda: clock.monotonic_s() >= until_s):
        try:
            yield read_answer(message.value() or b"")
        except msgspec.DecodeError as error:
            logger.warning(
                "record %(offset)d is not an answer: %(error)s",
                {"offset": message.offset(), "error": error},
            )
