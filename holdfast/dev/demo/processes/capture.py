"""A real fleet's traffic, recorded: the coordination topic of 510 seconds of the original Go library, for
the demo to load.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import resources

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.config import Settings
from holdfast.errors import BrokerError
from holdfast.kafka.clients import make_writer

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 120.0
PARTITIONS = 4


class Recorded(msgspec.Struct, frozen=True):
    """One record of the capture: where it was, when its broker appended it, and its frame."""

    partition: int
    offset: int
    timestamp_ms: int
    value: str


_decode = msgspec.json.Decoder(Recorded).decode


def records() -> Sequence[Recorded]:
    """Return the capture in the order of its files: partition by partition, offsets ascending."""
    content = resources.files("holdfast.dev.demo.processes").joinpath("marshal-a.ndjson").read_bytes()
    return [_decode(line) for line in content.splitlines()]


def load(settings: Settings, recorded: Sequence[Recorded]) -> None:
    """Write *recorded* to the coordination topic, which has as many partitions as the capture, in the order
    of their time.

    Their own timestamps cannot be kept: the topic is under LogAppendTime, so this broker dates them itself.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = make_writer(settings.producer(**{"enable.idempotence": True, "linger.ms": 5}), logger=logger)
    try:
        for each in sorted(
            recorded, key=lambda record: (record.timestamp_ms, record.partition, record.offset)
        ):
            producer.produce(
                settings.coordination_topic,
                each.value.encode(),
                partition=each.partition,
                on_delivery=delivered,
            )
        left = producer.flush(FLUSH_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerError(
            f"the capture cannot be written to {settings.coordination_topic}: {error.args[0].str()}"
        ) from error
    if left or failures:
        cause = failures[0].str() if failures else f"not acknowledged within {FLUSH_TIMEOUT_S:g} s"
        raise BrokerError(
            f"{left + len(failures)} records of the capture were not written to"
            f" {settings.coordination_topic}: {cause}"
        )
