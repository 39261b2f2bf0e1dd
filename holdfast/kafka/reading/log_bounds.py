"""The first and the end offset of a partition's log, asked of its leader."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from holdfast.clock import Backoff, Clock, system_clock
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.codes import LEADER_MOVES, code_of

BACKOFF = Backoff(0.05, 1.0)


def log_bounds(
    consumer: Consumer, place: Place, timeout_s: float, *, clock: Clock = system_clock
) -> tuple[int, int]:
    """Return the first offset of a partition, and the next one to be written.

    The leader of a partition that was just made, or that moves, refuses for a moment: it is asked again for
    up to *timeout_s* seconds. Raises KafkaException for any other refusal, and for the last one when time is
    over.
    """
    until_s = clock.monotonic_s() + timeout_s
    for wait_s in BACKOFF.waits_s():
        try:
            bounds: tuple[int, int] = consumer.get_watermark_offsets(
                TopicPartition(*place), timeout=timeout_s
            )
        except KafkaException as error:
            if code_of(error) not in LEADER_MOVES or clock.monotonic_s() + wait_s > until_s:
                raise
        else:
            return bounds
        time.sleep(wait_s)
    raise AssertionError("waits have no end")
