"""The interface by which a changelog's writer uses a transactional producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError

Written: TypeAlias = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""A record: key, value, headers."""


class AbortableError(Exception):
    """The transaction cannot be committed; made again from the beginning it can."""


class UndeliverableError(BrokerError):
    """A record could not be delivered for a reason that trying again does not cure: the topic is missing,
    or refuses its size.
    """

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(
            f"topic {topic} refused a record: {why}; create the topic or raise its max.message.bytes"
        )
        self.topic, self.why = topic, why


class TransactionalProducer(Protocol):
    """The producer of one transactional id. Its calls follow each other, on one event loop.

    Each asks until it is answered: the caller limits the time, and `why` holds the last answer. They raise
    FencedError when a newer owner exists, UndeliverableError when a topic refuses a record, AbortableError
    when the transaction has to be repeated, and BrokerError for anything else.
    """

    transactional_id: str
    why: object

    async def fence(self) -> None:
        """Raise this id's epoch.

        From here on brokers refuse every older owner, whose open transaction is aborted first.
        """

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        """Return how many partitions a topic has, when these are more than *more_than*; UndeliverableError
        when it is not known.
        """
        ...

    async def append(self, records: Mapping[Place, Sequence[Written]]) -> dict[Place, int]:
        """Append records to each topic partition, in order, as part of the transaction, which the first call
        begins; return the offset after each one's last.
        """
        ...

    async def end(self, *, commit: bool) -> None:
        """End the transaction, if one was begun.

        An end that is not answered is asked for again, so when this returns the outcome is known.
        """

    async def close(self) -> None:
        """Close the connections. An open transaction is left to the next owner's fence or to its timeout."""


ProducerFactory: TypeAlias = Callable[[str], TransactionalProducer]
"""Makes the producer of a transactional id, not yet connected."""
