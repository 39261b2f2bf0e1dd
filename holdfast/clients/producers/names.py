"""Asking the registry for a producer's name: a command on its topic, the answer on another, and who takes
the name over later.
"""

from __future__ import annotations

import logging
import uuid
from types import TracebackType
from typing import Self

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.producers.registry import (
    Bump,
    Register,
    RegistryAnswer,
    RegistryCommand,
    RegistryError,
    decode_answer,
    encode_command,
)
from holdfast.core.producers.stamps import check_name
from holdfast.errors import BrokerError, FencedError, TopicError
from holdfast.kafka.clients import make_reader, make_writer
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 3.0
POLL_S = 0.1


class NameHolder:
    """One process's hold on one producer's name. `register` takes it over; `holds` says at any time whether
    another process has since.

    Every call ends within *timeout_s*. A command is sent again under the same request id while no answer
    comes, which changes nothing when only the answer was slow.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        instance: str = "",
        timeout_s: float = 30.0,
        clock: Clock = system_clock,
    ) -> None:
        self.name, self._instance, self._timeout_s, self._clock = check_name(name), instance, timeout_s, clock
        self._topic = settings.producers_topic
        self._answers = f"{self._topic}.answers"
        self.producer_id = self.epoch = -1
        self._newest = -1
        own: dict[str, str | int | bool] = {
            "group.id": f"{settings.app}-names",  # never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 50,
        }
        config = settings.consumer(**own)
        self._consumer, self._skipper = (
            make_reader(config, logger=logger),
            Skipper(settings, config, clock=clock),
        )
        sending: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(timeout_s * 1000),
        }
        self._producer = make_writer(settings.producer(**sending), logger=logger)
        self._partition: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connections; the name stays this process's until another registers it."""
        self._skipper.close()
        self._consumer.close()
        self._producer.flush(1)

    def register(self) -> int:
        """Take the name over and return the epoch to send under; who held it before is fenced.

        The epoch is at least the time in ms: above those of a registry that was deleted and made again.
        """
        return self._take(
            Register(
                name=self.name,
                request=uuid.uuid4().hex,
                instance=self._instance,
                least_epoch=max(0, self._clock.now_ms()),
            )
        )

    def bump(self) -> int:
        """Take the next epoch of a name that is held, and return it; FencedError when it is held by
        another.
        """
        return self._take(
            Bump(name=self.name, request=uuid.uuid4().hex, producer_id=self.producer_id, epoch=self.epoch)
        )

    def _take(self, command: RegistryCommand) -> int:
        answer = self._ask(command)
        if answer.error is RegistryError.FENCED:
            raise self._fenced(answer.epoch)
        if answer.error is RegistryError.UNKNOWN:
            raise FencedError(f"producer {self.name} is not registered (any more): open it anew")
        self.producer_id, self.epoch = answer.producer_id, answer.epoch
        self._newest = max(self._newest, answer.epoch)
        return answer.epoch

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"producer {self.name} epoch {self.epoch} was replaced by {epoch}: another process has registered"
            " the name"
        )

    def check(self) -> None:
        """Raise FencedError if the answers that have come so far say that another process holds the name.

        The call does not wait.
        """
        while (answer := self._poll(0)) is not None:
            self._newest = max(self._newest, answer.epoch)
        if self._newest > self.epoch:
            raise self._fenced(self._newest)

    # -- Kafka

    def _ask(self, command: RegistryCommand) -> RegistryAnswer:
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        partition = self._open()
        value, again_s = encode_command(command), 0.0
        while (now_s := self._clock.monotonic_s()) < deadline_s:
            if now_s >= again_s:
                self._producer.produce(self._topic, value, self.name, partition, on_delivery=self._delivered)
                again_s = now_s + ASK_AGAIN_S
            self._producer.poll(0)
            answer = self._poll(POLL_S)
            if answer is not None:
                self._newest = max(self._newest, answer.epoch)
                if answer.request == command.request:
                    return answer
        raise BrokerError(
            f"the registry on {self._topic} did not answer for producer {self.name} within"
            f" {self._timeout_s:g} s; is a worker with registry = true running, and does `holdfast topics"
            " check` find both topics?"
        )

    @staticmethod
    def _delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            logger.warning("a command to the registry was not delivered: %(error)s", {"error": error.str()})

    def _open(self) -> int:
        """Return the partition of the name, with the answers assigned from their end: what comes from now
        on is for now.
        """
        if self._partition is None:
            try:
                listed = self._consumer.list_topics(self._topic, timeout=self._timeout_s).topics[self._topic]
                if listed.error is not None or not listed.partitions:
                    raise TopicError(
                        f"topic {self._topic} does not exist: set registry = true for the workers and run"
                        " `holdfast topics create`"
                    )
                partition = by_key(self.name, len(listed.partitions))
                place = TopicPartition(self._answers, partition)
                # From a known offset, since "the end" would be asked for only after the command was sent.
                _, place.offset = log_bounds(
                    self._consumer, (self._answers, partition), self._timeout_s, clock=self._clock
                )
                self._consumer.assign([place])
                self._skipper.begin(self._answers, partition, place.offset)
            except KafkaException as error:
                raise BrokerError(
                    f"the registry's topics cannot be read: {error.args[0].str()}; check the broker"
                ) from error
            self._partition = partition
        return self._partition

    def _poll(self, wait_s: float) -> RegistryAnswer | None:
        """Return the next answer for this name that has come; None when there is none within *wait_s*."""
        until_s = self._clock.monotonic_s() + wait_s
        while True:
            message = self._consumer.poll(max(0.0, until_s - self._clock.monotonic_s()))
            came = self._skipper.sift(self._consumer, [] if message is None else [message])
            if message is None:
                return None
            if not came or message.error() is not None or (message.key() or b"") != self.name.encode():
                continue
            try:
                return decode_answer(message.value() or b"")
            except msgspec.DecodeError as error:
                logger.warning("not an answer of the registry: %(error)s", {"error": error})
