"""The limits of topics: who may write to them, and how large a batch may be, asked of the broker and learned
from its refusals.

A broker refuses a batch that is larger than its topic's `max.message.bytes`, with every record in it, and the
transaction they are in. So batches are cut below the limit, and a record that is larger by itself is known
before it costs other rows a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType  # type: ignore[attr-defined]

from holdfast.clock import Clock, system_clock
from holdfast.kafka.clients import make_admin
from holdfast.kafka.codes import code_of
from holdfast.outbox.schema.layouts import OutboxRow

logger = logging.getLogger(__name__)

CONFIG = "max.message.bytes"
AGE_S = 60.0
"""A limit that was changed is noticed this late, or when something is refused."""
FRESH_S = 1.0
"""No record is called too large by a limit that is older."""
ASK_S = 2.0
CLIENT_BATCH_BYTES = 1_000_000
"""librdkafka's default of `batch.size`: what it puts into one batch, but for a record that is larger by
itself.
"""
LEARNED_SHARE = 4
"""Batches are cut to this part of a refused batch, if the limit is unknown."""

_BATCH_BYTES = 61
_RECORD_LEAST, _HEADER_LEAST = 7, 2  # lengths and the like in one byte each
_RECORD_MOST, _HEADER_MOST = 36, 10  # and in as many as they can take


def payload_bytes(row: OutboxRow) -> int:
    """Return how many bytes of *row* are its own: key, value and headers."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + headers


def least_bytes(row: OutboxRow) -> int:
    """Return the size that a batch of *row* alone has at least, not compressed.

    >>> least_bytes(OutboxRow(1, "t", b"key", b"value", [("h", b"v")], None, None, 0, 0, None))
    80
    """
    return _BATCH_BYTES + _RECORD_LEAST + payload_bytes(row) + _HEADER_LEAST * len(row.headers)


def most_bytes(row: OutboxRow, stamps_bytes: int) -> int:
    """Return the size that *row* has in a batch at most, with headers of *stamps_bytes* more."""
    return _RECORD_MOST + payload_bytes(row) + _HEADER_MOST * (len(row.headers) + 4) + stamps_bytes


class Rounds:
    """Cuts the records of one batch into rounds: in each, what goes to a partition fits one batch of its
    topic.
    """

    def __init__(self, limits: Mapping[str, int], stamps_bytes: int) -> None:
        """*limits* are those of the topics that need cutting."""
        self._limits, self._stamps_bytes = limits, stamps_bytes
        self._filled: dict[tuple[str, int], int] = {}

    def ends_before(self, row: OutboxRow, destination: tuple[str, int]) -> bool:
        """Return whether what came before *row* must be with the broker first; *row* is the next of a
        round either way.
        """
        limit = self._limits.get(destination[0])
        if limit is None:
            return False
        size = most_bytes(row, self._stamps_bytes)
        filled = self._filled.get(destination, 0)
        over = bool(filled) and filled + size > limit
        if over:
            self._filled.clear()
            filled = 0
        self._filled[destination] = (filled or _BATCH_BYTES) + size
        return over


class TopicLimits:
    """The limits of topics, as far as the broker reports them or its refusals show. For one thread; `close`
    it.
    """

    def __init__(
        self, client: Mapping[str, Any], producer: Mapping[str, Any], clock: Clock = system_clock
    ) -> None:
        self._client, self._clock = client, clock
        self._admin: Any = None
        self._known: dict[str, tuple[int, float]] = {}
        """Of each topic its limit, and when it was read."""
        self._asked_s: dict[str, float] = {}
        self._asking: dict[str, Future[Any]] = {}
        self._learned: dict[str, int] = {}
        self._client_bytes = int(producer.get("batch.size", CLIENT_BATCH_BYTES))
        codec = producer.get("compression.type", producer.get("compression.codec", "none"))
        self.compresses = codec not in (None, "none")
        """True if a record's size on the wire is known only once it was sent."""

    def look(self, topics: Iterable[str]) -> None:
        """See to it that the limits of *topics* are known: waits for those that were never asked for, not
        for those that grew old.
        """
        now_s = self._clock.monotonic_s()
        old = [topic for topic in topics if now_s - self._asked_s.get(topic, -AGE_S) >= AGE_S]
        if old:
            self._ask(old)
        if self._asking:
            self._collect([topic for topic in self._asking if topic not in self._known])

    def limit(self, topic: str) -> int | None:
        """Return how many bytes a batch for *topic* may have, by the broker's last answer; None where it gave
        none.
        """
        found = self._known.get(topic)
        return None if found is None else found[0]

    def fresh(self, topic: str) -> int | None:
        """Return the limit of *topic*, asking again when it is not quite new."""
        found, now_s = self._known.get(topic), self._clock.monotonic_s()
        if found is None or now_s - found[1] >= FRESH_S:
            if now_s - self._asked_s.get(topic, -FRESH_S) >= FRESH_S:
                self._ask([topic])
            self._collect([topic])
            found = self._known.get(topic)
        return None if found is None else found[0]

    def may_write(self, topic: str) -> bool:
        """Return whether this principal may write to *topic*; also True where the broker does not say.

        The broker refuses a whole transaction with a record for a topic that may only be seen, and does not
        say which topic it was.
        """
        try:
            asked = self._admin_client().describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=ASK_S
            )
            allowed = asked[topic].result(ASK_S).authorized_operations
        except (KafkaException, LateError, ValueError) as error:
            logger.info(
                "the broker does not report who may write to topic %(topic)s: %(error)s",
                {"topic": topic, "error": error},
            )
            return True
        return not allowed or AclOperation.WRITE in allowed

    def too_large(self, row: OutboxRow) -> str | None:
        """Return why *row* can never be in its topic under the present limit; None if it may be, or if that
        is unknown.

        Do not call it for rows with small key and value that were not refused before. Most rows are such, and
        counting headers takes time.
        """
        limit = self.limit(row.topic)
        if (
            limit is None
            or self.compresses
            or not (row.attempts or 2 * (len(row.value or b"") + len(row.key or b"")) > limit)
        ):
            return None
        size = least_bytes(row)
        if size <= limit:
            return None
        limit = self.fresh(row.topic)
        if limit is None or size <= limit:
            return None
        return (
            f"MSG_SIZE_TOO_LARGE: the record is too large: it has {size} bytes, and topic {row.topic} takes"
            f" {limit} ({CONFIG})"
        )

    def cut(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how large a batch may be for those of *topics* that take less than the client would put
        into one.
        """
        return {topic: size for topic in topics if (size := self._batch_bytes(topic)) < self._client_bytes}

    def _batch_bytes(self, topic: str) -> int:
        return min(
            self.limit(topic) or self._client_bytes,
            self._learned.get(topic, self._client_bytes),
            self._client_bytes,
        )

    def refused(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Take in that the broker has refused the batches of *rows* for their size, and return those rows
        that are to blame.

        A row that was alone in its batch is. Otherwise the batch was too large: the broker is asked again
        what it takes, and where that is no less than was known, batches are cut smaller from now on, until
        they fit or a row is alone.
        """
        alone = [row for row in rows if len(rows) == 1 or least_bytes(row) > self._batch_bytes(row.topic)]
        known = {row.topic: self._batch_bytes(row.topic) for row in rows}
        self._ask(known)
        self._collect(known)
        if not alone:
            for topic, before in known.items():
                size = min(before, sum(most_bytes(row, 0) for row in rows if row.topic == topic))
                if self._batch_bytes(topic) >= size:
                    self._learned[topic] = max(1, size // LEARNED_SHARE)
                    logger.info(
                        "topic %(topic)s refused a batch of records: at most %(limit_bytes)d bytes in one "
                        "from now on",
                        {"topic": topic, "limit_bytes": self._learned[topic]},
                    )
        return alone

    def _admin_client(self) -> Any:
        if self._admin is None:
            self._admin = make_admin(self._client)
        return self._admin

    def _ask(self, topics: Iterable[str]) -> None:
        now_s = self._clock.monotonic_s()
        wanted = [topic for topic in topics if topic not in self._asking]
        for topic in wanted:
            self._asked_s[topic] = now_s
        try:
            found = self._admin_client().describe_configs(
                [ConfigResource(ResourceType.TOPIC, topic) for topic in wanted], request_timeout=ASK_S
            )
        except (KafkaException, ValueError) as error:
            logger.info("the limits of topics cannot be asked for: %(error)s", {"error": error})
            return
        self._asking.update({resource.name: future for resource, future in found.items()})

    def _collect(self, waiting: Iterable[str]) -> None:
        """Take in the answers, and wait for those about *waiting*."""
        until_s = self._clock.monotonic_s() + ASK_S
        waiting = set(waiting)
        for topic, future in list(self._asking.items()):
            if topic not in waiting and not future.done():
                continue
            del self._asking[topic]
            try:
                entry = future.result(max(0.0, until_s - self._clock.monotonic_s())).get(CONFIG)
                self._known[topic] = int(entry.value), self._clock.monotonic_s()
            except (KafkaException, LateError, AttributeError, TypeError, ValueError) as error:
                # Most often: this principal may not describe the topic. Refusals show the limit as well, only
                # later.
                logger.info(
                    "the broker does not report %(config)s of topic %(topic)s: %(error)s",
                    {"topic": topic, "config": CONFIG, "error": error},
                )
                if code_of(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    self._known.pop(topic, None)

    def close(self) -> None:
        """Let go of the connection."""
        self._admin = None
        self._asking.clear()
