"""Members' questions to a broker about their topics, and its refusals as errors."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException

from holdfast.clients.topics.identities import TopicIdentities
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.codes import NO_TOPIC, code_of
from holdfast.kafka.reading.log_bounds import log_bounds

SLACK_S = 1.0
"""A request ends by its own deadline; this is for the answer to reach us."""
POLL_S = 0.02
MADE_AGAIN = "create it: the group begins it at its first message"
CORRECT_NAME = "create it, or correct its name"
SAME_GROUP = (
    "create it with `holdfast --set ranges=true topics create --partitions N`, and start the members again; "
    "the group goes on where __consumer_offsets has it"
)


class TopicGoneError(TopicError):
    """The topic of the messages is not there: a member that has begun waits until it is made again."""


class RangeBroker:
    """Asks with its callers' clients, each time for at most *timeout_s* seconds."""

    def __init__(self, settings: Settings, *, timeout_s: float, clock: Clock) -> None:
        self.settings, self.timeout_s, self.clock = settings, timeout_s, clock
        self._identities = TopicIdentities(settings.client(), timeout_s=timeout_s)

    def partitions(self, consumer: Consumer, topic: str, cure: str) -> int:
        """Return how many partitions a topic has; TopicError with *cure* where there is no such topic.

        Ask with the client that reads it: a client knows the partitions of its last metadata.
        """
        try:
            listed = consumer.list_topics(topic, timeout=self.timeout_s).topics[topic]
        except KafkaException as error:
            raise self.error("looking for topics", error) from None
        if listed.error is not None or not listed.partitions:
            kind = TopicGoneError if cure == CORRECT_NAME else TopicError
            raise kind(f"topic {topic} does not exist at {self.settings.bootstrap_servers}: {cure}")
        return len(listed.partitions)

    def mark(self, topic: str) -> int | None:
        """Return the mark of the topic that there is (PROTOCOL.md#topics-that-are-made-again), None where the
        broker knows no ids.
        """
        try:
            return self._identities.marks([topic])[topic]
        except KafkaException as error:
            self._identities.close()
            raise self.error(f"the id of {topic}", error, CORRECT_NAME) from None

    def bounds(self, consumer: Consumer, place: Place) -> tuple[int, int]:
        """Return where a partition begins and ends; raises KafkaException."""
        return log_bounds(consumer, place, self.timeout_s, clock=self.clock)

    def error(self, what: str, error: KafkaException, remedy: str = MADE_AGAIN) -> BrokerError | TopicError:
        """Return the error that says what did not work; *remedy* is for a topic that is gone, which is that
        of the messages unless it is `SAME_GROUP`.
        """
        said = f"{what} at {self.settings.bootstrap_servers}: {error.args[0].str()}"
        if code_of(error) in NO_TOPIC:
            kind = TopicError if remedy == SAME_GROUP else TopicGoneError
            return kind(f"{said}; the topic was deleted: {remedy}")
        return BrokerError(f"{said}; check the broker")
