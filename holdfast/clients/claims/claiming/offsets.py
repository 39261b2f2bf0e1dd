"""A claim client's questions to the broker between its polls: the first and end offsets of logs, the offsets
committed to Kafka, the number of partitions.

Nothing here waits but `check_group` and `counts`, which are for the start: a thread of its own asks, and its
answers are collected when the caller comes by. So a slow broker never holds up a heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from holdfast.clients.topics.identities import TopicIdentities, is_of_another
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, ConfigError, TopicError
from holdfast.kafka.clients import make_reader
from holdfast.kafka.codes import NO_TOPIC, code_of
from holdfast.kafka.committed_text import committed_text
from holdfast.kafka.coordinator_admin import NEVER_S, CoordinatorAdmin
from holdfast.kafka.librdkafka_log import Quiet, impatient

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

LIMIT_ASKED = 5_000
"""Partitions asked about in one round."""
RETRY_S = 0.25
ATTEMPT_S = 3.0
"""The limit for one question before it is repeated; far less than the caller's deadline."""
SLACK_S = 0.5
"""A request ends by its own deadline; this is for the answer to reach us."""
EARLIEST, LATEST = -2, -1
"""Times that ask for the ends of a log."""


class Watermarks(NamedTuple):
    """The first and end offset of a partition, and the offset that `__consumer_offsets` has for the group,
    None without one: all of the topic that *topic_mark* identifies, None if the broker knows no ids.
    """

    topic: str
    partition: int
    earliest: int
    latest: int
    committed: int | None
    topic_mark: int | None = None


class TopicIdentity(NamedTuple):
    """The topic that had its name at *asked_s* of the monotonic clock, or later: None if the broker knows no
    ids.
    """

    topic: str
    topic_mark: int | None
    asked_s: float


Questions = Sequence[tuple[tuple[str, int], bool]]


class OffsetFetcher:
    """Asks on a connection of its own, since a broker answers those of a consumer in turn, after a fetch that
    waits for news.

    It asks as a consumer that reads nothing, not as an admin client: over an outage, librdkafka's admin
    continues to wait for a coordinator that is gone, and to name a leader epoch that is over, and may abort
    the process when a request to a coordinator times out. A request that fails here is repeated by a new
    consumer, which has to find the brokers of that moment.
    """

    def __init__(
        self, settings: Settings, group_id: str, *, timeout_s: float, clock: Clock = system_clock
    ) -> None:
        self._clock = clock
        self._servers, self._group_id, self._timeout_s = settings.bootstrap_servers, group_id, timeout_s
        self._attempt_s = min(timeout_s, ATTEMPT_S)
        self._admin_config: dict[str, Any] = {**impatient(settings.client()), "error_cb": self._on_error}
        overrides: dict[str, str | int | bool] = {
            "group.id": group_id,  # never joined, never committed to: its offsets are read
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",  # the end is where the next message goes, committed or not
        }
        self._config = impatient(settings.consumer(**overrides))
        self._consumer: Consumer | None = None
        self._identities = TopicIdentities(self._admin_config, timeout_s=self._attempt_s)
        self._coordination = settings.coordination_topic
        self._coordination_mark: int | None = None
        self._changed = threading.Condition()
        self._wanted: dict[tuple[str, int], bool] = {}
        self._count_wanted: tuple[str, ...] = ()
        self._identity_wanted: set[str] = set()
        self._identified: deque[TopicIdentity] = deque()
        self._found: deque[Watermarks] = deque()
        self._counted: dict[str, int] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        self._last_error: str | None = None

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str()

    # -- while running

    def ask(self, topic: str, partition: int, *, committed: bool) -> None:
        """Have the watermarks of a partition looked up, and with *committed* what `__consumer_offsets`
        has; twice before the answer is once.
        """
        with self._changed:
            self._want(topic, partition, committed)
            self._wake()

    def _want(self, topic: str, partition: int, committed: bool) -> None:
        self._wanted[topic, partition] = self._wanted.get((topic, partition), False) or committed

    def answers(self) -> list[Watermarks]:
        """Return the answers since the last call. A question that failed is repeated by itself."""
        with self._changed:
            found = list(self._found)
            self._found.clear()
        return found

    def identify(self, topic: str) -> None:
        """Have the mark of *topic* looked up, as it is from now on."""
        with self._changed:
            self._identity_wanted.add(topic)
            self._wake()

    def identities(self) -> list[TopicIdentity]:
        """Return which topics were identified since."""
        with self._changed:
            found = list(self._identified)
            self._identified.clear()
        return found

    def ask_counts(self, topics: Iterable[str]) -> None:
        """Have the number of partitions of *topics* looked up, unless that is being done."""
        with self._changed:
            if not self._count_wanted:
                self._count_wanted = tuple(topics)
                self._wake()

    def counted(self) -> dict[str, int]:
        """Return the counts since the last call: partitions by topic, 0 for a topic that does not exist."""
        with self._changed:
            counted, self._counted = self._counted, {}
        return counted

    def close(self) -> None:
        """End the thread; wait for requests in flight, at most for an attempt."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(self._attempt_s + SLACK_S)

    def _wake(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and not self._closing:
            self._thread = threading.Thread(target=self._run, name="holdfast-claims-lookups", daemon=True)
            self._thread.start()
        self._changed.notify()

    # -- the thread

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closing or self._identity_wanted or self._wanted or self._count_wanted
                    )
                    if self._closing:
                        return
                    identify, self._identity_wanted = self._identity_wanted, set()
                    asked = sorted(self._wanted.items())[:LIMIT_ASKED]
                    for place, _ in asked:
                        del self._wanted[place]
                    topics = self._count_wanted
                # Offsets that a claim waits for come first; counts wait longest for a broker that is away
                identified = self._identify(identify)
                done = self._look(asked) and identified and self._count_all(topics)
                if topics:  # now and then
                    self._watch_coordination()
                with self._changed:
                    self._count_wanted = ()
                    if not done:
                        self._changed.wait_for(lambda: self._closing, RETRY_S)
        finally:
            self._renew()

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = make_reader(self._config, logger=quiet, on_error=self._on_error)
        return self._consumer

    def _renew(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        self._identities.close()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(KafkaException):
                consumer.close()

    def _look(self, asked: Questions) -> bool:
        """Find out about *asked*, all at once, or topic by topic where one is gone; False when something
        failed.
        """
        done, parts = True, deque([asked])
        while parts and not self._closing:
            part = parts.popleft()
            found: list[Watermarks] = []
            again = False
            try:
                found = self._ends(part) if part else []
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.code() not in NO_TOPIC:
                    again, done = True, False
                    self._failed("offsets could not be looked up, will ask again", cause)
                elif part[0][0][0] != part[-1][0][0]:
                    parts += [list(group) for _, group in groupby(part, lambda each: each[0][0])]
                # Else it is one topic and that is gone, as the counts show.
            with self._changed:
                self._found += found
                if again:
                    for place, committed in part:
                        self._want(*place, committed)
        return done

    def _identify(self, topics: set[str]) -> bool:
        """Look up which topics there are; False when that failed, and is to be done again."""
        if not topics:
            return True
        asked_s = self._clock.monotonic_s()
        try:
            marks = self._identities.marks(topics)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if cause.code() in NO_TOPIC:  # as the counts show
                return True
            self._failed("topics could not be identified, will ask again", cause)
            with self._changed:
                self._identity_wanted |= topics
            return False
        with self._changed:
            self._identified += [TopicIdentity(topic, mark, asked_s) for topic, mark in marks.items()]
        return True

    def _watch_coordination(self) -> None:
        """Warn once if the coordination topic was made again since the last look: all claims went with it."""
        mark: int | None = None
        with suppress(KafkaException):
            mark = self._identities.marks({self._coordination})[self._coordination]
        if mark is None:
            return
        if self._coordination_mark not in (None, mark):
            logger.warning(
                "coordination-topic-made-again: %(topic)s was deleted and made again, with all claims and "
                "their offsets. Members of group %(group)s that claim now begin at the offsets committed to "
                "Kafka, or by auto_offset_reset: messages since then are delivered again",
                {"topic": self._coordination, "group": self._group_id},
            )
        self._coordination_mark = mark

    def _failed(self, what: str, cause: KafkaError) -> None:
        logger.info("%(what)s: %(cause)s", {"what": what, "cause": cause.str() or cause.name()})
        self._renew()

    def _ends(self, asked: Questions) -> list[Watermarks]:
        """Return the watermarks of these partitions.

        Raises KafkaException on the first that could not be asked for.
        """
        consumer = self._connected()
        consumer.poll(0)  # it reads nothing, but only a poll passes on its log lines
        topics = {topic for (topic, _), _ in asked}
        # A topic may be made again at any moment: the answers are of one topic if its id is the same before
        # and after.
        before = self._identities.marks(topics)
        books = [TopicPartition(*place) for place, wanted in asked if wanted]
        book = self._checked(consumer.committed(books, self._attempt_s)) if books else []
        committed = {
            (each.topic, each.partition): each.offset
            for each in book
            if each.offset >= 0 and not is_of_another(committed_text(each), before.get(each.topic))
        }
        first, last = (
            self._checked(
                consumer.offsets_for_times(
                    [TopicPartition(*place, time) for place, _ in asked], self._attempt_s
                )
            )
            for time in (EARLIEST, LATEST)
        )
        begins = {(each.topic, each.partition): each.offset for each in first}
        after = self._identities.marks(topics) if books else before
        found = []
        for each in last:
            place = (each.topic, each.partition)
            if begins[place] < 0 or each.offset < 0:  # a leader that has just changed says -1
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            if before.get(each.topic) != after.get(each.topic):
                raise KafkaException(
                    KafkaError(KafkaError._STATE, f"topic {each.topic} was made again meanwhile")
                )
            found.append(
                Watermarks(*place, begins[place], each.offset, committed.get(place), after.get(each.topic))
            )
        return found

    @staticmethod
    def _checked(places: list[TopicPartition]) -> list[TopicPartition]:
        for each in places:
            if each.error is not None:
                raise KafkaException(each.error)
        return places

    def _count_all(self, topics: Sequence[str]) -> bool:
        """Count partitions; False when that failed.

        A topic that could not be counted is left to the next call.
        """
        for topic in topics:
            if self._closing:
                return False
            try:
                count = self._count(topic, self._attempt_s)
            except KafkaException as error:
                self._failed(f"partitions of {topic} could not be counted", error.args[0])
                return False
            with self._changed:
                self._counted[topic] = count
        return True

    def _count(self, topic: str, timeout_s: float) -> int:
        """Return the number of partitions of a topic, 0 when there is none of that name; raises
        KafkaException.
        """
        listed = self._connected().list_topics(topic, timeout=timeout_s).topics[topic]
        if listed.error is None:
            return len(listed.partitions)
        if listed.error.code() not in NO_TOPIC:
            raise KafkaException(listed.error)
        return 0

    # -- at the start

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each of *topics*; TopicError names one that does not exist,
        BrokerError means no answer.
        """
        out: dict[str, int] = {}
        try:
            for topic in topics:
                out[topic] = self._count(topic, self._timeout_s)
                if out[topic] == 0:
                    raise TopicError(
                        f"topic {topic} does not exist at {self._servers}: create it, or correct its name"
                    )
        except KafkaException as error:
            self._connected().poll(0)  # hear what it has to say: a refused password, a certificate
            raise self._no_answer(f"topic {topic}", error.args[0].str()) from None
        finally:
            self._renew()  # the thread makes its own
        return out

    def check_group(self) -> None:
        """Raise ConfigError when Kafka knows a group of this name that has members: its coordinator would
        refuse our offsets (D24).
        """
        admin = CoordinatorAdmin(self._admin_config, quiet, clock=self._clock)
        try:
            found = self._describe_group(admin)
        finally:
            admin.close()
        if found is None:
            return
        if found.members or found.state not in (
            ConsumerGroupState.DEAD,
            ConsumerGroupState.EMPTY,
            ConsumerGroupState.UNKNOWN,
        ):
            names = ", ".join(sorted({member.client_id for member in found.members})[:5])
            raise ConfigError(
                f"group {self._group_id} is a live consumer group of Kafka's own ({found.state.name.lower()};"
                f" members: {names or 'joining'}): its coordinator refuses offsets from anybody else. Stop"
                " those consumers, or claim under another group name"
            )

    def _describe_group(self, admin: CoordinatorAdmin) -> Any:
        """Return the coordinator's description of the group, None if it does not exist; wait for a
        coordinator that is not ready yet.
        """
        group = self._group_id
        found = admin.ask(
            lambda client, asked: client.describe_consumer_groups(asked, request_timeout=NEVER_S),
            [group],
            self._timeout_s,
        )[group]
        if isinstance(found, FutureTimeoutError):
            raise self._no_answer(f"group {group}", "no answer")
        if isinstance(found, KafkaException):
            if code_of(found) == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise self._no_answer(f"group {group}", found.args[0].str() or found.args[0].name())
        return found

    def _no_answer(self, what: str, why: str) -> BrokerError:
        return BrokerError(
            f"cannot ask for {what} at {self._servers}: {self._last_error or why}; check bootstrap.servers"
            " and the broker"
        )
