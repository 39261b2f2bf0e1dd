"""The topics of the embedded cluster, by name and by id: what Kafka's controller decides about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from holdfast.embedded.configs.topic import TopicConfigs, troubles
from holdfast.embedded.kept_room import OVERHEAD_BYTES
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.storage.catalog import CatalogTopic
from holdfast.embedded.storage.storage import BrokerStorage, MemoryStorage
from holdfast.embedded.topics.partition import EmbeddedPartition, EmbeddedTopic

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
LIMIT_NAME = 249
DEFAULT = -1
INTERNAL: Mapping[str, Mapping[str, str]] = {
    "__consumer_offsets": {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}


class TopicRefusal(NamedTuple):
    """Why a topic is not made or changed, in Kafka's words."""

    code: KafkaCode
    text: str | None


NO_ROOM = TopicRefusal(
    KafkaCode.POLICY_VIOLATION, "The topics have as many partitions as this broker has room for."
)


def name_trouble(name: str) -> str | None:
    """Return Kafka's text for an invalid name of a topic, None for a valid one."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > LIMIT_NAME:
        return f"the length of '{name}' is longer than the max allowed length {LIMIT_NAME}"
    if not _NAME.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


class TopicRegistry:
    """All topics. *nodes* are the ids of the brokers that may hold replicas, *storage* keeps what they
    hold.
    """

    def __init__(
        self, settings: EmbeddedSettings, nodes: list[int], chance: Random, storage: BrokerStorage
    ) -> None:
        self._settings, self._nodes, self._chance, self._storage = settings, nodes, chance, storage
        self._by_name: dict[str, EmbeddedTopic] = {}
        self._by_id: dict[bytes, EmbeddedTopic] = {}
        self._by_metric: dict[str, str] = {}
        """Each name with dots as underscores, as metrics have it: no two topics may have one there."""
        self._kept: dict[str, CatalogTopic] = {}
        """The catalog's entry of each."""
        self._next_node = 0

    def load(self) -> None:
        """Load the stored topics, with their logs."""
        for each in self._storage.topics():
            topic = self._named(each.name, bytes.fromhex(each.topic_id), each.configs)
            topic.add(each.replicas, self._storage)
            self._enter(topic)
            self._kept[each.name] = each

    def _enter(self, topic: EmbeddedTopic) -> None:
        self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
        self._by_metric[_metric(topic.name)] = topic.name

    def _leave(self, topic: EmbeddedTopic) -> None:
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        self._by_metric.pop(_metric(topic.name), None)

    def __iter__(self) -> Iterator[EmbeddedTopic]:
        return iter(self._by_name.values())

    def get(self, name: str | None) -> EmbeddedTopic | None:
        return None if name is None else self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> EmbeddedTopic | None:
        return self._by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> EmbeddedPartition | None:
        """Return a partition, None where there is none."""
        found = self._by_name.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def partitions(self) -> Iterator[EmbeddedPartition]:
        for topic in self._by_name.values():
            yield from topic.partitions

    def counts(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        return {name: len(topic.partitions) for name, topic in self._by_name.items()}

    def kept_bytes(self) -> int:
        """Return about how many bytes are kept of settings that clients made."""
        return sum(
            OVERHEAD_BYTES + sum(map(len, topic.configs.own.values())) for topic in self._by_name.values()
        )

    def room(self) -> int:
        """Return how many partitions more there may be."""
        return self._settings.max_partitions - sum(len(each.partitions) for each in self._by_name.values())

    # -- creating

    def create(
        self, told: Iterable[Mapping[str, Any]], *, only_check: bool = False
    ) -> list[EmbeddedTopic | TopicRefusal]:
        """Make the topics that the elements of a CreateTopics request describe; the storage hears of all at
        once.
        """
        found: list[EmbeddedTopic | TopicRefusal] = []
        planned: list[tuple[EmbeddedTopic, list[list[int]]]] = []
        room = self.room()
        for each in told:
            plan = self._planned(each, room)
            if isinstance(plan, TopicRefusal):
                found.append(plan)
                continue
            found.append(plan[0])
            planned.append(plan)
            room -= len(plan[1])
            self._enter(plan[0])  # so that none of those after it collides with it
        storage = MemoryStorage() if only_check else self._storage
        if only_check:
            for topic, _ in planned:
                self._leave(topic)
        elif planned:
            self._note({topic: replicas for topic, replicas in planned})
        for topic, replicas in planned:
            topic.add(replicas, storage)
        return found

    def make(self, name: str, **told: Any) -> EmbeddedTopic | TopicRefusal:
        """Make one topic, by the broker's defaults where *told* says nothing else."""
        usual = {"name": name, "num_partitions": DEFAULT, "replication_factor": DEFAULT}
        (made,) = self.create([{**usual, **told}])
        return made

    def _planned(
        self, told: Mapping[str, Any], room: int
    ) -> tuple[EmbeddedTopic, list[list[int]]] | TopicRefusal:
        name = told["name"]
        if (trouble := name_trouble(name)) is not None:
            return TopicRefusal(KafkaCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {trouble}")
        if name in self._by_name:
            return TopicRefusal(KafkaCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if (alike := self._by_metric.get(_metric(name))) is not None:
            text = f"Topic '{name}' collides with existing topic: {alike}"
            return TopicRefusal(KafkaCode.INVALID_TOPIC_EXCEPTION, text)
        configs = {each["name"]: each["value"] for each in told.get("configs", ())}
        for text in troubles(configs):
            return TopicRefusal(KafkaCode.INVALID_CONFIG, text)
        replicas = self._placed(told)
        if isinstance(replicas, TopicRefusal):
            return replicas
        if len(replicas) > room:
            return NO_ROOM
        return self._named(name, self._chance.randbytes(16), configs), replicas

    def _named(self, name: str, topic_id: bytes, configs: Mapping[str, str]) -> EmbeddedTopic:
        told = TopicConfigs(configs, settings=self._settings)
        return EmbeddedTopic(name, topic_id, told, internal=name in INTERNAL)

    def _note(self, changed: Mapping[EmbeddedTopic, Iterable[list[int]]]) -> None:
        """Have the storage know the topics, those *changed* with the partitions that will be added."""
        self._kept |= {topic.name: _kept(topic, added) for topic, added in changed.items()}
        self._storage.keep_topics(self._kept.values())

    def _placed(self, told: Mapping[str, Any]) -> list[list[int]] | TopicRefusal:
        count, copies = told["num_partitions"], told["replication_factor"]
        if told.get("assignments"):
            return self._assigned(count, copies, told["assignments"])
        if copies == 0 or copies < DEFAULT:
            text = "Replication factor must be larger than 0, or -1 to use the default value."
            return TopicRefusal(KafkaCode.INVALID_REPLICATION_FACTOR, text)
        if count == 0 or count < DEFAULT:
            text = "Number of partitions was set to an invalid non-positive value."
            return TopicRefusal(KafkaCode.INVALID_PARTITIONS, text)
        return self._spread(
            self._settings.num_partitions if count == DEFAULT else count,
            self._settings.replicas if copies == DEFAULT else copies,
        )

    def _spread(self, count: int, copies: int) -> list[list[int]] | TopicRefusal:
        nodes = self._nodes
        if copies > len(nodes):
            text = (
                f"Unable to replicate the partition {copies} time(s): The target replication factor of"
                f" {copies} cannot be reached because only {len(nodes)} broker(s) are registered or some"
                " brokers have all their log directories cordoned."
            )
            return TopicRefusal(KafkaCode.INVALID_REPLICATION_FACTOR, text)
        first = self._next_node
        self._next_node = (first + count) % len(nodes)
        return [
            [nodes[(first + index + copy) % len(nodes)] for copy in range(copies)] for index in range(count)
        ]

    def _assigned(
        self, count: int, copies: int, assignments: Iterable[Mapping[str, Any]]
    ) -> list[list[int]] | TopicRefusal:
        if copies != DEFAULT or count != DEFAULT:
            what = "replication factor" if copies != DEFAULT else "numPartitions"
            code = KafkaCode.INVALID_REQUEST
            return TopicRefusal(
                code, f"A manual partition assignment was specified, but {what} was not set to -1."
            )
        by_index = {each["partition_index"]: each["broker_ids"] for each in assignments}
        for nodes in by_index.values():
            if (refusal := self.misplaced(nodes)) is not None:
                return refusal
        if sorted(by_index) != list(range(len(by_index))):
            text = "partitions should be a consecutive 0-based integer sequence"
            return TopicRefusal(KafkaCode.INVALID_REPLICA_ASSIGNMENT, text)
        return [list(by_index[index]) for index in range(len(by_index))]

    def misplaced(self, nodes: list[int]) -> TopicRefusal | None:
        """Return the fault of a manual assignment of a partition to *nodes*."""
        code = KafkaCode.INVALID_REPLICA_ASSIGNMENT
        if not nodes:
            return TopicRefusal(code, "The manual partition assignment includes an empty replica list.")
        for each in nodes:
            if each not in self._nodes:
                text = (
                    f"The manual partition assignment includes broker {each}, but no such broker is"
                    " registered."
                )
                return TopicRefusal(code, text)
        if len(set(nodes)) < len(nodes):
            twice = next(each for each in sorted(nodes) if nodes.count(each) > 1)
            text = f"The manual partition assignment includes the broker {twice} more than once."
            return TopicRefusal(code, text)
        return None

    def internal(self, name: str) -> EmbeddedTopic:
        """Return a topic of the coordinators, made when it is first needed."""
        if (found := self._by_name.get(name)) is not None:
            return found
        settings = self._settings
        count = (
            settings.offsets_partitions if name == "__consumer_offsets" else settings.transaction_partitions
        )
        replicas = self._spread(count, settings.replicas)
        assert not isinstance(replicas, TopicRefusal)
        configs = dict(INTERNAL[name])
        if name == "__transaction_state":
            configs["min.insync.replicas"] = str(settings.in_sync)
        topic = self._named(name, self._chance.randbytes(16), configs)
        self._note({topic: replicas})
        topic.add(replicas, self._storage)
        self._enter(topic)
        return topic

    # -- changing

    def grow(self, topic: EmbeddedTopic, count: int, assignments: list[list[int]] | None) -> None:
        """Add partitions up to *count*, which the caller has checked."""
        before = len(topic.partitions)
        copies = len(topic.partitions[0].replicas)
        placed = assignments if assignments is not None else self._spread(count - before, copies)
        assert not isinstance(placed, TopicRefusal)
        self._note({topic: placed})
        topic.add([list(each) for each in placed], self._storage)

    def configure(self, changes: Mapping[EmbeddedTopic, Mapping[str, str]]) -> None:
        """Replace each topic's own settings by these."""
        for topic, own in changes.items():
            topic.configs.set(own)
        if changes:
            self._note(dict.fromkeys(changes, ()))

    def delete(self, topics: Iterable[EmbeddedTopic]) -> None:
        """Delete *topics*, of which the storage hears at once."""
        gone = list(topics)
        for topic in gone:
            self._leave(topic)
            del self._kept[topic.name]
        self._note({})
        for topic in gone:
            for each in topic.partitions:
                each.log.replicated(
                    each.log.high_watermark
                )  # who waits for it looks again, and finds it gone


def _kept(topic: EmbeddedTopic, added: Iterable[list[int]] = ()) -> CatalogTopic:
    return CatalogTopic(
        name=topic.name,
        topic_id=topic.topic_id.hex(),
        replicas=[*(each.replicas for each in topic.partitions), *added],
        configs=topic.configs.own,
    )


def _metric(name: str) -> str:
    """Return the name that a topic has as a metric, where dots are underscores."""
    return name.replace(".", "_")
