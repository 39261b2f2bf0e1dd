"""Checks that the state of an application fits its chains: the end of each changelog shows which version of
its source it was folded from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Message

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import ClusterTopics, Processors, Severity, TopicFinding
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.chains import listed, raised
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import position_format
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, ChainError
from holdfast.kafka.clients import make_reader, reader_options
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.log_reader import LogReader

TAIL_RECORDS = 64
"""The distance from a changelog's end at which its last position is looked for at first: each commit takes
two offsets.
"""
WIDER = 64
READ_RECORDS = 1_000


def chain_findings(
    settings: Settings, processors: Processors, cluster: ClusterTopics, admin: Admin
) -> list[TopicFinding]:
    """Return the faults in the state of readers of internal topics; asks nothing where there are none."""
    readers = [
        each
        for each in processors
        if each.internal and cluster.partitions(each.changelog(settings.app)) is not None
    ]
    if not readers:
        return []
    changelogs = {each.changelog(settings.app): each for each in readers}
    places = [(name, number) for name in changelogs for number in range(cluster.partitions(name) or 0)]
    found = last_positions(settings, places)
    stale: set[str] = set()
    applied: dict[Place, list[tuple[str, int]]] = {}
    for (name, number), value in found.items():
        reader = changelogs[name]
        try:
            form = position_format(reader)
            position = form.start if value is None else form.decode(value)
        except ChainError:
            stale.add(reader.name)
            continue
        for topic, offset in zip(reader.topics, position.applied, strict=True):
            applied.setdefault((topic, number), []).append((reader.name, offset))
    findings = []
    if stale:
        what = listed(
            [
                each
                for each in raised(processors, stale)
                if each[0] in stale or _has_state(each[0], found, changelogs)
            ]
        )
        for each in readers:
            if each.name in stale:
                sources = ", ".join(map(str, each.internal))
                findings.append(
                    TopicFinding(
                        severity=Severity.ERROR,
                        topic=each.changelog(settings.app),
                        message=(
                            f"holds what {each.table} was folded to from another version of {sources}: it"
                            " would take in again what it has"
                        ),
                        remedy=f"raise together {what}",
                        chain=True,
                    )
                )
    return [*findings, *_trimmed(processors, applied, cluster, admin)]


def _has_state(
    name: str, found: Mapping[Place, bytes | None], changelogs: Mapping[str, Processor[Any, Any]]
) -> bool:
    """Return whether a reader has folded something in its present version, so that it must leave that
    version.
    """
    return any(
        value is not None and changelogs[changelog].name == name for (changelog, _), value in found.items()
    )


def _trimmed(
    processors: Processors,
    applied: Mapping[Place, Sequence[tuple[str, int]]],
    cluster: ClusterTopics,
    admin: Admin,
) -> list[TopicFinding]:
    """Return an error for each internal topic that has lost records which a reader still needs."""
    written = {str(topic): each for each in processors for topic in each.emits}
    internal = {str(topic) for each in processors for topic in each.internal}
    places = [
        place
        for place in applied
        if place[0] in internal and place[0] in written and place[1] < (cluster.partitions(place[0]) or 0)
    ]
    findings: dict[str, TopicFinding] = {}
    for (topic, number), (first, _) in admin.offsets(places).items():
        short = [name for name, offset in applied[topic, number] if offset + 1 < first]
        if short:
            writer = written[topic].name
            findings[topic] = TopicFinding(
                severity=Severity.ERROR,
                topic=topic,
                message=(
                    f"partition {number} begins at offset {first}, and {', '.join(sorted(short))} needs what"
                    " was before: it was trimmed"
                ),
                remedy=f"fold the whole chain anew: raise together {listed(raised(processors, {writer}))}",
                chain=True,
            )
    return list(findings.values())


def last_positions(
    settings: Settings, places: Sequence[Place], *, clock: Clock = system_clock
) -> dict[Place, bytes | None]:
    """Return the last position in each partition of some changelogs, None where there is none."""
    out: dict[Place, bytes | None] = dict.fromkeys(places)
    options = reader_options(f"{settings.app}-positions", committed=True, wait_ms=100)
    consumer = make_reader(settings.consumer(**options))
    try:
        left, records = list(places), TAIL_RECORDS
        while left:
            starts = {}
            for place in left:
                low, high = log_bounds(consumer, place, settings.request_timeout_s, clock=clock)
                starts[place] = (low, max(low, high - records))
            reader = LogReader(consumer, limit=READ_RECORDS, clock=clock)
            reader.assign({place: start for place, (_, start) in starts.items()})
            for message in _to_the_ends(reader, settings.stall_timeout_s):
                if message.key() == APPLIED:
                    out[message.topic() or "", message.partition() or 0] = message.value()
            left = [place for place in left if out[place] is None and starts[place][1] > starts[place][0]]
            records *= WIDER
    except KafkaException as error:
        raise BrokerError(
            f"Kafka at {settings.bootstrap_servers} did not tell the positions of {settings.app}:"
            f" {error.args[0].str()}"
        ) from error
    except TimeoutError as error:
        raise BrokerError(f"positions of {settings.app}: {error}; check the brokers") from error
    finally:
        consumer.close()
    return out


def _to_the_ends(reader: LogReader, idle_s: float) -> Iterator[Message]:
    """Yield the messages between the reader's positions and the ends of their logs."""
    return reader.until(lambda: reader.ended.keys() == reader.next.keys(), idle_s=idle_s)
