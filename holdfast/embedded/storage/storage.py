"""The storage of a cluster's lasting data. In memory nothing lasts; a folder keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.configs.topic import TopicConfigs
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.storage.catalog import CatalogTopic
from holdfast.embedded.storage.disk import Disk
from holdfast.errors import BrokerFolderError


class BrokerStorage(Protocol):
    """The storage as the cluster uses it, on its event loop."""

    def open(self, on_failure: Callable[[BrokerFolderError], None]) -> None:
        """Begin; *on_failure* hears of the first write that fails, after which nothing is written any
        more.
        """

    def cluster_id(self, made: str) -> str:
        """Return the id of the cluster: *made* for one that is new."""

    @property
    def starts_before(self) -> int:
        """Return how often a broker has begun with it before this one."""

    def topics(self) -> list[CatalogTopic]:
        """Return the topics there were."""

    def keep_topics(self, topics: Iterable[CatalogTopic]) -> None:
        """Have these be the topics; what lies in others goes."""

    def log(self, place: Place, topic_id: bytes, configs: TopicConfigs) -> PartitionLog:
        """Return the log of a partition, with its stored batches."""

    @property
    def producer_ids(self) -> int:
        """The first producer id that was never promised."""

    def keep_producer_ids(self, below: int) -> None:
        """Have no id below *below* be promised again after a start."""

    def room(self) -> tuple[int, int]:
        """Return how many bytes its disk has, and how many of them are free; -1 each where there is none."""

    def settle(self) -> None:
        """Have all that was written outlive a power cut, if that is asked for, before anything else is
        written.
        """

    @property
    def syncs(self) -> Disk | None:
        """The disk for which answers must wait; None where they need not."""

    def close(self, logs: dict[Place, PartitionLog]) -> None:
        """End in order, with these logs."""


class MemoryStorage:
    """Nothing outlives the process."""

    starts_before = producer_ids = 0
    syncs = None

    def open(self, on_failure: Callable[[BrokerFolderError], None]) -> None:
        pass

    def cluster_id(self, made: str) -> str:
        return made

    def topics(self) -> list[CatalogTopic]:
        return []

    def keep_topics(self, topics: Iterable[CatalogTopic]) -> None:
        pass

    def log(self, place: Place, topic_id: bytes, configs: TopicConfigs) -> PartitionLog:
        return PartitionLog()

    def keep_producer_ids(self, below: int) -> None:
        pass

    def room(self) -> tuple[int, int]:
        return -1, -1

    def settle(self) -> None:
        pass

    def close(self, logs: dict[Place, PartitionLog]) -> None:
        pass
