"""`{app}-skips` as a reader finds it, whole: what of its sources an application skips."""

from __future__ import annotations

import logging
import time
from contextlib import closing

from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # the package does not declare what it re-exports

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import Skips, decode_skip
from holdfast.errors import BrokerError, DecodeError
from holdfast.kafka.clients import CRITICAL, make_admin, make_reader, reader_options
from holdfast.kafka.codes import MISSING_TOPIC, NO_LEADER
from holdfast.kafka.leader_requests import list_offsets
from holdfast.kafka.reading.log_reader import LogReader

logger = logging.getLogger(__name__)

PARTITION = 0
_RETRY_S = 0.1
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def read_skips(settings: Settings, *, timeout_s: float | None = None, clock: Clock = system_clock) -> Skips:
    """Return every skip that was written down before this was called. Blocks; without the topic nothing is
    skipped.

    What is committed counts, up to the log's end at the call: where a transaction is open before that, its
    end is waited for. BrokerError when all of it takes longer than *timeout_s* (default:
    `request_timeout_s`).
    """
    topic, limit_s = settings.skips_topic, settings.request_timeout_s if timeout_s is None else timeout_s
    deadline_s = clock.monotonic_s() + limit_s
    try:
        end = _end(settings, topic, deadline_s, clock)
        return Skips(has_topic=end >= 0) if end <= 0 else _read(settings, topic, end, deadline_s, clock)
    except KafkaException as error:
        raise _failure(settings, str(error.args[0].str())) from error
    except TimeoutError as error:
        raise _failure(settings, f"it was not read to its end within {limit_s:g} s") from error


def _failure(settings: Settings, why: str) -> BrokerError:
    return BrokerError(
        f"cannot read {settings.skips_topic} at {settings.bootstrap_servers}: {why}; without it nobody knows"
        " what is skipped; check the broker, and what `holdfast acls` grants"
    )


def _end(settings: Settings, topic: str, deadline_s: float, clock: Clock) -> int:
    """Return where the log ends, open transactions included; -1 when there is no such topic."""
    admin, place = make_admin(settings.client(), log_level=CRITICAL), TopicPartition(topic, PARTITION)
    while True:
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        try:
            # Not list_topics, which has a broker that makes topics by itself make this one, without its
            # layout.
            admin.describe_topics(TopicCollection([topic]), request_timeout=left_s)[topic].result(left_s)
            asked = list_offsets(admin, {place: _LATEST}, timeout_s=left_s)
            return int(asked[place].result(left_s).offset)
        except KafkaException as error:
            why: KafkaError = error.args[0]
            if why.code() in MISSING_TOPIC:
                return -1
            if not (why.retriable() or why.code() in NO_LEADER):
                raise
        time.sleep(_RETRY_S)


def _read(settings: Settings, topic: str, end: int, deadline_s: float, clock: Clock) -> Skips:
    own = reader_options(f"{settings.app}-skips-readers", committed=True, wait_ms=20)
    skips, place = Skips(), (topic, PARTITION)
    with closing(LogReader(make_reader(settings.consumer(**own), logger=logger), clock=clock)) as reader:
        reader.assign({place: OFFSET_BEGINNING})
        for message in reader.until(lambda: reader.ended.get(place, -1) >= end, deadline_s=deadline_s):
            _take(skips, topic, message.offset(), message.key(), message.value())
    return skips


def _take(skips: Skips, topic: str, offset: int | None, key: bytes | None, value: bytes | None) -> None:
    if value is None:
        return  # nobody takes back what was skipped
    try:
        skips.add(decode_skip(key, value))
    except DecodeError as error:
        logger.warning(
            "%(topic)s offset %(offset)d is ignored: %(error)s",
            {"topic": topic, "offset": offset, "error": error},
        )
