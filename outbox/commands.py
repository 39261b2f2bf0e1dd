"""Telling harvesters what to do, and hearing what they did: commands and answers as JSON on two topics.

Every harvester of an outbox hears every command and answers for the shards it leads, and nobody else does: where a shard is led is
nobody's business but the election's. The last pause or resume stays on the topic, so a leader that comes later keeps to it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.errors import BrokerError, TopicError
from holdfast.outbox.settings import HarvestSettings

logger = logging.getLogger(__name__)

POLL_S = 0.25
LIMIT_TEXT = 500
PAUSED_KEY = b"paused"
END_S = 10.0
_NOT_YET = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)


class Verb(StrEnum):
    """What harvesters can be told."""

    PAUSE = "pause"
    RESUME = "resume"
    FLUSH = "flush"
    STATUS = "status"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One order to all harvesters of an outbox; *id* comes back in the answers."""

    id: str
    verb: Verb
    at_ms: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader of one shard says to a command."""

    id: str
    verb: Verb
    shard: int
    leader: str
    epoch: int
    paused: bool
    published: int
    quarantined: int
    waiting_topics: list[str] = []
    last_error: str = ""


_command_decoder = msgspec.json.Decoder(Command)
_answer_decoder = msgspec.json.Decoder(Answer)


def reader(settings: HarvestSettings, topic: str, offset: int | None) -> Consumer:
    """Return a consumer of the only partition of *topic*, from *offset* on or, with None, from its end."""
    consumer = Consumer(
        {
            **settings.kafka.consumer(),
            "group.id": f"{settings.name}-commands",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        if offset is None:
            offset = end_of(consumer, topic)
        consumer.assign([TopicPartition(topic, 0, offset)])
    except BaseException:
        consumer.close()
        raise
    return consumer


def end_of(consumer: Any, topic: str, clock: Clock = system_clock) -> int:
    """Return the end of *topic*'s only partition, waiting for a topic that was made just now to have a leader."""
    until_s = clock.monotonic_s() + END_S
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=END_S)
            return int(end)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or clock.monotonic_s() > until_s:
                raise
            time.sleep(0.05)


class CommandReader(threading.Thread):
    """Hears commands and acts on them through *act*, which returns the answers; from one thread of its own."""

    def __init__(self, settings: HarvestSettings, act: Callable[[Command, bool], list[Answer]]) -> None:
        super().__init__(name="holdfast-outbox-commands", daemon=True)
        self._settings, self._act = settings, act
        self._ended = threading.Event()
        self._consumer: Any = None
        self._producer: Any = None
        self._end = 0

    def open(self) -> None:
        """Connect; raises BrokerError when the cluster cannot be asked."""
        settings = self._settings
        try:
            self._consumer = reader(settings, settings.commands_topic, 0)
            self._end = end_of(self._consumer, settings.commands_topic)
        except KafkaException as error:
            raise BrokerError(f"topic {settings.commands_topic}: {error.args[0].str()}; check that the broker is reachable") from error
        self._producer = Producer({**settings.kafka.producer(), "message.timeout.ms": 10_000})
        self.start()

    def run(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            if message.error() is not None:
                logger.warning("commands of outbox %s: %s", self._settings.name, message.error().str())
                continue
            if message.value() is None:
                continue
            try:
                command = _command_decoder.decode(message.value() or b"")
            except msgspec.DecodeError as error:
                logger.warning("outbox %s: record %d of its commands is none: %s", self._settings.name, message.offset(), error)
                continue
            # What was said before this process came is history, except whether to pause.
            old = (message.offset() or 0) < self._end
            for answer in self._act(command, old):
                self._producer.produce(self._settings.answers_topic, msgspec.json.encode(answer))
            self._producer.flush(POLL_S)
        self._consumer.close()

    def close(self, timeout_s: float) -> None:
        """End the thread."""
        self._ended.set()
        if self.is_alive():
            self.join(timeout_s)


def tell(settings: HarvestSettings, verb: Verb, timeout_s: float = 10.0, clock: Clock = system_clock) -> list[Answer]:
    """Tell all harvesters of the outbox *verb* and return the answers of its shards' leaders, as many as came in time.

    Raises TopicError when there are no harvesters yet (their topics are missing), BrokerError when the cluster cannot be reached.
    """
    command = Command(id=secrets.token_hex(8), verb=verb, at_ms=clock.now_ms())
    producer = Producer({**settings.kafka.producer(), "message.timeout.ms": int(timeout_s * 1000), "allow.auto.create.topics": False})
    failed: list[KafkaError] = []
    try:
        if settings.answers_topic not in producer.list_topics(timeout=timeout_s).topics:
            raise TopicError(f"topic {settings.answers_topic} is missing: no harvester of {settings.name} has ever run here")
        consumer = reader(settings, settings.answers_topic, None)
    except KafkaException as error:
        raise BrokerError(f"topic {settings.answers_topic}: {error.args[0].str()}; check that the broker is reachable") from error
    try:
        key = PAUSED_KEY if verb in (Verb.PAUSE, Verb.RESUME) else command.id.encode()

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        producer.produce(settings.commands_topic, msgspec.json.encode(command), key, on_delivery=delivered)
        producer.flush(timeout_s)
        if failed:
            raise BrokerError(f"topic {settings.commands_topic}: {failed[0].str()}")
        if verb not in (Verb.PAUSE, Verb.RESUME):  # nobody who comes later needs it
            producer.produce(settings.commands_topic, None, key)
            producer.flush(timeout_s)
        answers: dict[int, Answer] = {}
        for answer in _answers(consumer, clock, clock.monotonic_s() + timeout_s):
            if answer.id == command.id:
                answers[answer.shard] = answer
                if len(answers) == settings.shards:
                    break
        return [answers[shard] for shard in sorted(answers)]
    finally:
        consumer.close()


def _answers(consumer: Any, clock: Clock, until_s: float) -> Iterator[Answer]:
    while clock.monotonic_s() < until_s:
        message = consumer.poll(POLL_S)
        if message is None or message.error() is not None:
            continue
        try:
            yield _answer_decoder.decode(message.value() or b"")
        except msgspec.DecodeError as error:
            logger.warning("record %d of the answers is none: %s", message.offset(), error)
