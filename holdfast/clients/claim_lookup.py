"""What a claim client asks the broker between its polls: where logs begin and end, what Kafka has as committed, how many partitions there are.

Nothing here waits but `check_group` and `counts`, which are for the start: questions are put together into rounds, and a round is
looked at again when its caller comes by. A slow broker so never holds up a heartbeat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from holdfast.clients.claim_logging import Quiet, impatient
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, ConfigError, TopicError

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

LIMIT_ASKED = 5_000
"""Partitions asked about in one round."""
RETRY_S = 0.25
ATTEMPT_S = 3.0
"""How long one question may take before it is put again; far less than the patience of whoever waits for the answer."""
COORDINATOR_WAIT_S = 0.05
SLACK_S = 0.5
"""A request ends by its own deadline; this is for the answer to reach us."""


_KEPT: list[AdminClient] = []


class Watermarks(NamedTuple):
    """Where a partition begins and ends, and the offset that `__consumer_offsets` has for the group, None without one."""

    topic: str
    partition: int
    earliest: int
    latest: int
    committed: int | None


@dataclass(slots=True)
class _Round:
    """Questions in flight."""

    places: list[TopicPartition]
    earliest: Mapping[TopicPartition, Future[Any]]
    latest: Mapping[TopicPartition, Future[Any]]
    committed: Future[Any] | None

    def done(self) -> bool:
        return (
            (self.committed is None or self.committed.done())
            and all(map(Future.done, self.earliest.values()))
            and all(map(Future.done, self.latest.values()))
        )


class Lookups:
    """Asks on connections of its own, since a broker answers those of a consumer in turn, after a fetch that waits for news."""

    def __init__(self, settings: Settings, group_id: str, *, timeout_s: float, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._servers, self._group_id, self._timeout_s = settings.bootstrap_servers, group_id, timeout_s
        self._attempt_s = min(timeout_s, ATTEMPT_S)
        config: dict[str, Any] = {**impatient(settings.client()), "error_cb": self._on_error}
        self._admin = AdminClient(config, logger=quiet)
        self._wanted: dict[tuple[str, int], bool] = {}
        self._round: _Round | None = None
        self._counting: Mapping[str, Future[Any]] | None = None
        self._retry_at_s = 0.0
        self._last_error: str | None = None

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str()

    # -- while running

    def ask(self, topic: str, partition: int, *, committed: bool) -> None:
        """Have the watermarks of a partition looked up, and with *committed* what `__consumer_offsets` has; twice before the answer is once."""
        self._wanted[topic, partition] = self._wanted.get((topic, partition), False) or committed

    def forget(self) -> None:
        """Ask nothing of what has not been asked yet."""
        self._wanted.clear()

    def answers(self, now_s: float) -> list[Watermarks]:
        """Return what was found out since, and put the next questions. A question that failed is put again."""
        found: list[Watermarks] = []
        if self._round is not None and self._round.done():
            done, self._round = self._round, None
            found = self._read(done, now_s)
        if self._round is None and self._wanted and now_s >= self._retry_at_s:
            self._put()
        return found

    def _put(self) -> None:
        asked = list(self._wanted.items())[:LIMIT_ASKED]
        places = [TopicPartition(*place) for place, _ in asked]
        for place, _ in asked:
            del self._wanted[place]
        first, last = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        book = [TopicPartition(*place) for place, committed in asked if committed]
        self._round = _Round(
            places,
            self._admin.list_offsets({place: first for place in places}, request_timeout=self._attempt_s),
            self._admin.list_offsets({place: last for place in places}, request_timeout=self._attempt_s),
            self._ask_book(book) if book else None,
        )

    def _ask_book(self, places: list[TopicPartition]) -> Future[Any]:
        request = ConsumerGroupTopicPartitions(self._group_id, places)
        return self._admin.list_consumer_group_offsets([request], request_timeout=self._attempt_s)[self._group_id]

    def _read(self, done: _Round, now_s: float) -> list[Watermarks]:
        committed: dict[tuple[str, int], int] = {}
        found: list[Watermarks] = []
        try:
            if done.committed is not None:
                listed = done.committed.result().topic_partitions
                committed = {(each.topic, each.partition): each.offset for each in listed if each.offset >= 0}
        except KafkaException as error:
            self._again(done.places, error, now_s)
            return found
        for place in done.places:
            try:
                earliest, latest = done.earliest[place].result().offset, done.latest[place].result().offset
            except KafkaException as error:
                self._again([place], error, now_s)
                continue
            if earliest < 0 or latest < 0:  # a leader that has just changed says -1
                self._again([place], KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)), now_s)
                continue
            found.append(Watermarks(place.topic, place.partition, earliest, latest, committed.get((place.topic, place.partition))))
        return found

    def _again(self, places: Iterable[TopicPartition], error: KafkaException, now_s: float) -> None:
        cause: KafkaError = error.args[0]
        if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return  # it is gone, which the counts tell
        if now_s >= self._retry_at_s:
            logger.info("offsets could not be looked up, will ask again: %s", cause.str())
        self._retry_at_s = now_s + RETRY_S
        for place in places:
            self._wanted[place.topic, place.partition] = True

    def ask_counts(self, topics: Iterable[str]) -> None:
        """Have the number of partitions of *topics* looked up, unless that is being done."""
        if self._counting is None:
            self._counting = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._attempt_s)

    def counted(self) -> dict[str, int]:
        """Return what was counted since: partitions by topic, 0 for a topic that does not exist."""
        if self._counting is None or not all(map(Future.done, self._counting.values())):
            return {}
        counting, self._counting = self._counting, None
        return {topic: count for topic, future in counting.items() if (count := self._count(topic, future)) is not None}

    def _count(self, topic: str, future: Future[Any]) -> int | None:
        try:
            return len(future.result(self._timeout_s + SLACK_S).partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return 0
            logger.info("partitions of %s could not be counted: %s", topic, error.args[0].str())
        except FutureTimeoutError:
            logger.info("partitions of %s could not be counted: no answer", topic)
        return None

    def close(self) -> None:
        """Wait for what is in flight, at most for an attempt.

        librdkafka may abort the process when an admin client goes while a request of it times out, so one whose requests do not end is
        kept instead.
        """
        pending: list[Future[Any]] = [] if self._counting is None else list(self._counting.values())
        if self._round is not None:
            pending += [*self._round.earliest.values(), *self._round.latest.values()]
            pending += [] if self._round.committed is None else [self._round.committed]
        _, left = wait(pending, self._attempt_s + SLACK_S)
        if left:
            _KEPT.append(self._admin)

    # -- at the start

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each of *topics*; TopicError names one that does not exist, BrokerError means no answer."""
        wanted = list(topics)
        asked = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s)
        out = {}
        for topic, future in asked.items():
            count = self._count(topic, future)
            if count is None:
                raise self._no_answer(f"topic {topic}", "no answer")
            if count == 0:
                raise TopicError(f"topic {topic} does not exist at {self._servers}: create it, or correct its name")
            out[topic] = count
        return out

    def check_group(self) -> None:
        """Raise ConfigError when Kafka knows a group of this name that has members: its coordinator would refuse our offsets (D24)."""
        found = self._describe_group()
        if found is None:
            return
        if found.members or found.state not in (ConsumerGroupState.DEAD, ConsumerGroupState.EMPTY, ConsumerGroupState.UNKNOWN):
            names = ", ".join(sorted({member.client_id for member in found.members})[:5])
            raise ConfigError(
                f"group {self._group_id} is a live consumer group of Kafka's own ({found.state.name.lower()}; members: {names or 'joining'}): "
                "its coordinator refuses offsets from anybody else. Stop those consumers, or claim under another group name"
            )

    def _describe_group(self) -> Any:
        """Return what the group's coordinator knows of it, None when nothing; waits for a coordinator that is not ready yet."""
        until_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            # Short attempts: a look-up of the coordinator that began before there was one waits for it in vain.
            (future,) = self._admin.describe_consumer_groups([self._group_id], request_timeout=self._attempt_s).values()
            try:
                return future.result(self._attempt_s + SLACK_S)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return None
                if cause.code() not in _NOT_YET or self._clock.monotonic_s() > until_s:
                    raise self._no_answer(f"group {self._group_id}", cause.str() or cause.name()) from None
            except FutureTimeoutError:
                raise self._no_answer(f"group {self._group_id}", "no answer") from None
            time.sleep(COORDINATOR_WAIT_S)

    def _no_answer(self, what: str, why: str) -> BrokerError:
        return BrokerError(f"cannot ask for {what} at {self._servers}: {self._last_error or why}; check bootstrap.servers and the broker")


_NOT_YET = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TIMED_OUT,
)
"""A broker that has just started makes its book of offsets with the first question for it."""
