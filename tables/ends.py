"""Asks for the ends of many partitions' logs in one request, without ever waiting for the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

# the package does not declare what it re-exports
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from holdfast.clock import system_clock
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.clients import CRITICAL, make_admin
from holdfast.kafka.leader_requests import list_offsets

ASK_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """The next offset of each partition by the broker, none of them older than *asked_ms*."""

    asked_ms: int
    ends: Mapping[Place, int]


class EndsClient:
    """Asks for ends over a connection of its own.

    A broker answers the requests of one connection in turn, so on a consumer's each question would wait for
    the fetch that waits for news: 16 partitions took 3 s. *committed*: ends of the committed records.
    """

    def __init__(self, client: Mapping[str, Any], *, committed: bool = False) -> None:
        self._admin = make_admin(client, log_level=CRITICAL)
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        self._asked_ms = 0
        self._pending: dict[Place, Future[Any]] = {}

    def ask(self, places: Iterable[Place]) -> None:
        """Begin to ask for the ends of *places*; does nothing while an answer is awaited, which the
        request's own deadline ends.
        """
        if not self._pending:
            self._asked_ms = system_clock.now_ms()
            self._pending = self.begin(places)

    def begin(self, places: Iterable[Place]) -> dict[Place, Future[Any]]:
        """Ask for the ends of *places* and return a future for each: `result().offset`, or KafkaException."""
        wanted = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
        if not wanted:
            return {}
        asked = list_offsets(self._admin, wanted, isolation=self._isolation, timeout_s=ASK_TIMEOUT_S)
        return {(place.topic, place.partition): future for place, future in asked.items()}

    def answer(self) -> LogEnds | None:
        """Return the answer when all of it has come, once; without partitions that the broker did not
        answer.
        """
        if not self._pending or not all(future.done() for future in self._pending.values()):
            return None
        pending, self._pending = self._pending, {}
        ends: dict[Place, int] = {}
        for place, future in pending.items():
            try:
                ends[place] = int(future.result().offset)
            except KafkaException:
                continue
        return LogEnds(asked_ms=self._asked_ms, ends=ends)
