"""`{app}-skips` as a reader finds it, whole: what of its sources an application skips.

A skip names the topic that it is of by Kafka's id. One of a topic that was deleted and made again since skips
nothing: its offsets are others.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the package does not declare what it re-exports

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import Skip, Skips, decode_skip
from holdfast.errors import BrokerError, DecodeError
from holdfast.kafka.clients import CRITICAL, make_admin, make_reader, reader_options
from holdfast.kafka.codes import CLOSED_TOPIC, MISSING_TOPIC, NO_LEADER
from holdfast.kafka.leader_requests import list_offsets
from holdfast.kafka.reading.log_reader import LogReader

logger = logging.getLogger(__name__)

PARTITION = 0
T = TypeVar("T")

_RETRY_S = 0.1
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that a broker without topic ids returns."""
_LIMIT_REPORTED = 10_000
_reported: set[tuple[str, str, str]] = set()
"""The void skips that this process has warned of: log of skips, topic, and its id now."""
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def read_skips(settings: Settings, *, timeout_s: float | None = None, clock: Clock = system_clock) -> Skips:
    """Return every skip that was written down before this was called. Blocks; without the topic nothing is
    skipped. Those of a topic that was made again are set apart, with one warning in a process.

    Only committed skips count, up to the log's end at the call: if a transaction is open before that, the
    call waits for its end. BrokerError when all of it takes longer than *timeout_s* (default:
    `request_timeout_s`).
    """
    topic, limit_s = settings.skips_topic, settings.request_timeout_s if timeout_s is None else timeout_s
    deadline_s = clock.monotonic_s() + limit_s
    try:
        end = _end(settings, topic, deadline_s, clock)
        if end <= 0:
            return Skips(has_topic=end >= 0)
        return _sorted(settings, _read(settings, topic, end, deadline_s, clock), deadline_s, clock)
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

    def ask(left_s: float) -> int:
        # Not list_topics, which has a broker that makes topics by itself make this one, without its layout.
        admin.describe_topics(TopicCollection([topic]), request_timeout=left_s)[topic].result(left_s)
        asked = list_offsets(admin, {place: _LATEST}, timeout_s=left_s)
        return int(asked[place].result(left_s).offset)

    try:
        return _persist(ask, deadline_s, clock)
    except KafkaException as error:
        if error.args[0].code() in MISSING_TOPIC:
            return -1
        raise


def _persist(ask: Callable[[float], T], deadline_s: float, clock: Clock) -> T:
    """Call *ask* with the seconds left, again until the deadline while brokers come and go, and return its
    value. TimeoutError at the deadline.
    """
    while True:
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        try:
            return ask(left_s)
        except KafkaException as error:
            why: KafkaError = error.args[0]
            if why.code() in MISSING_TOPIC or not (why.retriable() or why.code() in NO_LEADER):
                raise
        time.sleep(_RETRY_S)


def _read(settings: Settings, topic: str, end: int, deadline_s: float, clock: Clock) -> list[Skip]:
    own = reader_options(f"{settings.app}-skips-readers", committed=True, wait_ms=20)
    found, place = list[Skip](), (topic, PARTITION)
    with closing(LogReader(make_reader(settings.consumer(**own), logger=logger), clock=clock)) as reader:
        reader.assign({place: OFFSET_BEGINNING})
        for message in reader.until(lambda: reader.ended.get(place, -1) >= end, deadline_s=deadline_s):
            skip = _skip_in(topic, message.offset(), message.key(), message.value())
            if skip is not None:
                found.append(skip)
    return found


def _skip_in(topic: str, offset: int | None, key: bytes | None, value: bytes | None) -> Skip | None:
    if value is None:
        return None  # a skip is never taken back
    try:
        return decode_skip(key, value)
    except DecodeError as error:
        logger.warning(
            "%(topic)s offset %(offset)d is ignored: %(error)s",
            {"topic": topic, "offset": offset, "error": error},
        )
    return None


# -- of which topic a skip is


def _sorted(settings: Settings, found: list[Skip], deadline_s: float, clock: Clock) -> Skips:
    """Return the valid skips of *found*, in its order, with the skips of recreated topics set apart."""
    named = sorted({each.topic for each in found if each.topic_id})
    if not named:
        return Skips(found)
    cluster_id, ids = _ids(settings, named, deadline_s, clock)
    void = [each for each in found if each.is_of_another(cluster_id, ids.get(each.topic, ""))]
    if void:
        _report(settings.skips_topic, void, ids)
        apart = {id(each) for each in void}
        found = [each for each in found if id(each) not in apart]
    return Skips(found, of_others=void)


def _ids(
    settings: Settings, topics: Iterable[str], deadline_s: float, clock: Clock
) -> tuple[str, dict[str, str]]:
    """Return the cluster's id, and those of *topics* that there are and that may be seen."""
    admin = make_admin(settings.client(), log_level=CRITICAL)
    cluster = _persist(
        lambda left_s: admin.describe_cluster(request_timeout=left_s).result(left_s), deadline_s, clock
    )
    ids = {topic: _id(admin, topic, deadline_s, clock) for topic in topics}
    return str(cluster.cluster_id or ""), {topic: each for topic, each in ids.items() if each}


def _id(admin: AdminClient, topic: str, deadline_s: float, clock: Clock) -> str:
    def ask(left_s: float) -> str:
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=left_s)[topic]
        return str(asked.result(left_s).topic_id)

    try:
        found = _persist(ask, deadline_s, clock)
    except KafkaException as error:
        if error.args[0].code() in CLOSED_TOPIC | MISSING_TOPIC:
            return ""  # no client can read it now
        raise
    return "" if found == _NO_ID else found


def _report(log: str, void: Iterable[Skip], ids: dict[str, str]) -> None:
    for topic, count in sorted(Counter(each.topic for each in void).items()):
        if (log, topic, ids[topic]) in _reported:
            continue
        if len(_reported) >= _LIMIT_REPORTED:
            _reported.clear()
        _reported.add((log, topic, ids[topic]))
        logger.warning(
            "topic %(topic)s was deleted and made again (its id is %(topic_id)s): %(count)d skips in %(log)s"
            " are of the old one and leave out nothing",
            {"topic": topic, "topic_id": ids[topic], "count": count, "log": log},
        )
