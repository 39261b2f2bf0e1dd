"""The destinations of rows: a topic's partitions, the partition of each row, and topics that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from holdfast.clock import Clock, system_clock
from holdfast.core.outbox.harvest import Destination, Partitioning
from holdfast.errors import BrokerError
from holdfast.kafka.codes import REFUSED_TOPIC
from holdfast.outbox.schema.layouts import OutboxRow

METADATA_AGE_S = 60.0
"""A topic that grew is noticed this late; until then keys go where they went before."""
METADATA_TIMEOUT_S = 2.0

INTERNAL = frozenset(
    ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"]
)
"""Topics that no client may write to, though brokers list them as any other."""


class Destinations:
    """Partitions of topics, as one client knows them. For one thread."""

    def __init__(
        self,
        client: Any,
        *,
        uses_buckets: bool,
        may_write: Callable[[str], bool] = lambda topic: True,
        clock: Clock = system_clock,
    ) -> None:
        self._client, self._clock, self._uses_buckets = client, clock, uses_buckets
        self._may_write = may_write
        self._counts: dict[str, tuple[int, float]] = {}
        self._partitioning = Partitioning()
        self._turns: dict[str, int] = {}

    def refusal(self, topic: str) -> KafkaError | None:
        """Return why nothing can be written to *topic* now, None when it can; raises BrokerError when the
        broker does not say in time.
        """
        if topic in INTERNAL:
            return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "it is a topic of the brokers' own")
        known = self._counts.get(topic)
        if known is not None and self._clock.monotonic_s() - known[1] < METADATA_AGE_S:
            return None
        try:
            found = self._client.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            if error.args[0].code() in REFUSED_TOPIC:
                return error.args[0]  # type: ignore[no-any-return]
            if known is not None:
                return None  # the broker is away; a minute-old count is the best there is
            raise BrokerError(
                f"topic {topic}: {error.args[0].str()}; check that the broker is reachable"
            ) from error
        if found.partitions:
            if not self._may_write(topic):
                self._counts.pop(topic, None)
                return KafkaError(
                    KafkaError.TOPIC_AUTHORIZATION_FAILED, "this principal may see it and not write to it"
                )
            self._counts[topic] = (len(found.partitions), self._clock.monotonic_s())
            return None
        # Also a topic that the broker is just creating: it has leaders a moment later.
        self._counts.pop(topic, None)
        return found.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def ask(self, client: Any) -> None:
        """Ask *client* from now on, and keep the known counts."""
        self._client = client

    def forget(self, topic: str) -> None:
        """Ask again about *topic* before anything more is written to it."""
        self._counts.pop(topic, None)

    def of(self, rows: Iterable[OutboxRow]) -> list[Destination]:
        """Return topic and partition of each row; every topic was found by `refusal` before.

        Rows without a key take turns by call.
        """
        counts, partitioning = self.among(), self._partitioning
        of_key, of_bucket, uses_buckets = partitioning.of_key, partitioning.of_bucket, self._uses_buckets
        out: list[Destination] = []
        turned: dict[str, int] = {}
        for row in rows:
            topic, key = row.topic, row.key
            partition = row.partition
            if partition is None:
                count = counts[topic]
                if key is None:
                    partition = turned.get(topic)
                    if partition is None:
                        partition = turned[topic] = self._turns[topic] = (
                            self._turns.get(topic, -1) + 1
                        ) % count
                else:
                    partition = of_bucket(row.bucket, count) if uses_buckets else None
                    if partition is None:
                        partition = of_key(key, count)
            out.append((topic, partition))
        return out

    def among(self) -> dict[str, int]:
        """Return the count of partitions by which `of` chooses a key's partition, by topic."""
        return {topic: count for topic, (count, _) in self._counts.items()}

    def outside(self, row: OutboxRow) -> bool:
        """Return whether the row names a partition that its topic does not have."""
        return row.partition is not None and not 0 <= row.partition < self._counts[row.topic][0]
