"""A group's committed offsets, read and written from outside the group.

By a consumer and not by an admin client: librdkafka ends the process (`eonce->refcnt > 0`, open as
confluentinc/librdkafka#3663) when a broker goes away under an admin's question to a group's coordinator. A
reset must outlive that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from holdfast.clients.topics.identities import is_of_another, metadata_of
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, GroupError
from holdfast.kafka.clients import make_reader
from holdfast.kafka.codes import COORDINATOR_MOVES, HAS_MEMBERS, code_of, retriable
from holdfast.kafka.committed_text import committed_text

logger = logging.getLogger(__name__)

_POLL_S = 0.02
UNKNOWN: Mapping[str, int | None] = MappingProxyType({})
"""Marks of topics that were not asked for."""


class CommittedOffsets:
    """Committed offsets of *group*.

    Each call is a connection of its own and ends within *timeout_s*; it does not join the group.
    """

    def __init__(
        self, settings: Settings, group: str, *, timeout_s: float, clock: Clock = system_clock
    ) -> None:
        self._settings, self._group, self._timeout_s, self._clock = settings, group, timeout_s, clock

    def committed(
        self, places: Iterable[tuple[str, int]], marks: Mapping[str, int | None] = UNKNOWN
    ) -> dict[tuple[str, int], int]:
        """Return the committed offsets of *places*, without those that have none, and those whose offset is
        known to be of another topic than the one with its mark in *marks*.
        """
        wanted = [TopicPartition(topic, partition) for topic, partition in places]
        if not wanted:
            return {}
        with self._consumer() as consumer:
            until_s = self._clock.monotonic_s() + self._timeout_s
            while True:
                try:
                    found = consumer.committed(
                        wanted, timeout=max(_POLL_S, until_s - self._clock.monotonic_s())
                    )
                    break
                except KafkaException as error:
                    # A broker that has just started makes the topic of these when first asked for it.
                    if code_of(error) not in COORDINATOR_MOVES or self._clock.monotonic_s() > until_s:
                        raise self._refused("committed offsets", error.args[0]) from error
                consumer.poll(_POLL_S)
        for place in found:
            if place.error is not None:
                raise self._refused(f"committed offset of {place.topic}/{place.partition}", place.error)
        return {
            (place.topic, place.partition): place.offset
            for place in found
            if place.offset >= 0 and not is_of_another(committed_text(place), marks.get(place.topic))
        }

    def commit(
        self, offsets: Mapping[tuple[str, int], int], marks: Mapping[str, int | None] = UNKNOWN
    ) -> None:
        """Commit *offsets* of the topics with these marks in one request.

        GroupError when the group has members: then only they may commit.
        """
        places = [
            TopicPartition(topic, partition, offset, metadata_of(marks.get(topic)))
            for (topic, partition), offset in sorted(offsets.items())
        ]
        if not places:
            return
        outcome: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        with self._consumer(on_commit=lambda error, told: outcome.append((error, told))) as consumer:
            until_s = self._clock.monotonic_s() + self._timeout_s
            while (wrong := self._commit_once(consumer, places, outcome, until_s)) is not None:
                # A broker that has just started makes the topic of these when first asked for it.
                if wrong.code() not in COORDINATOR_MOVES or self._clock.monotonic_s() > until_s:
                    raise self._refused("new offsets", wrong)
                outcome.clear()
                consumer.poll(_POLL_S)

    def _commit_once(
        self,
        consumer: Consumer,
        places: list[TopicPartition],
        outcome: list[tuple[KafkaError | None, list[TopicPartition]]],
        until_s: float,
    ) -> KafkaError | None:
        """Ask for *places* to be committed, whose answer comes to *outcome*; return the error."""
        try:
            consumer.commit(offsets=places, asynchronous=True)
            while not outcome:
                if self._clock.monotonic_s() > until_s:
                    raise BrokerError(
                        f"new offsets of group {self._group}: no answer within {self._timeout_s:g} s"
                    )
                consumer.poll(_POLL_S)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            return cause
        refusal, told = outcome[0]
        return refusal or next((place.error for place in told if place.error is not None), None)

    @contextmanager
    def _consumer(self, **more: Any) -> Iterator[Consumer]:
        overrides: dict[str, str | int | bool] = {"group.id": self._group, "enable.auto.commit": False}
        consumer = make_reader({**self._settings.consumer(**overrides), **more}, logger=logger)
        try:
            yield consumer
        finally:
            consumer.close()

    def _refused(self, what: str, cause: KafkaError) -> BrokerError | GroupError:
        text = f"{what} of group {self._group}: {cause.str()}"
        if retriable(cause.code()) or cause.retriable():
            return BrokerError(f"{text}; asked {self._settings.bootstrap_servers}, check the broker")
        if cause.code() in HAS_MEMBERS:
            return GroupError(f"{text}: it has members, stop them first")
        return GroupError(text)
