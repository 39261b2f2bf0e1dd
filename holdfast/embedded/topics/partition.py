"""A partition and a topic of the embedded cluster: who leads, who is in sync, and the log."""

from __future__ import annotations

from holdfast.embedded.configs.topic import TopicConfigs
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.storage.storage import BrokerStorage

NO_LEADER = -1


class EmbeddedPartition:
    """One partition. Its replicas are in one process and share one log: appended records are replicated at
    once.
    """

    def __init__(self, topic: str, index: int, replicas: list[int], log: PartitionLog) -> None:
        self.topic, self.index = topic, index
        self.replicas = replicas
        self.in_sync = list(replicas)
        self.leader = replicas[0]
        self.log = log
        self.leader_epoch = log.epochs[-1][0] + 1 if log.epochs else 0
        self.log.lead(self.leader_epoch)

    @property
    def name(self) -> str:
        """Kafka's own name of it: ``orders-3``."""
        return f"{self.topic}-{self.index}"

    def trouble(self, node_id: int, epoch: int) -> KafkaCode | None:
        """Return why *node_id* cannot answer for it to a client that knows of the leader's *epoch* (-1: of
        none).
        """
        if epoch >= 0 and epoch < self.leader_epoch:
            return KafkaCode.FENCED_LEADER_EPOCH
        if epoch > self.leader_epoch:
            return KafkaCode.UNKNOWN_LEADER_EPOCH
        return KafkaCode.NOT_LEADER_OR_FOLLOWER if self.leader != node_id else None

    def elect(self, alive: list[int]) -> None:
        """Choose a leader among the replicas that are *alive* and in sync, where the one there was is not;
        none of them leaves it without one, and who was in sync last is remembered.
        """
        in_sync = [each for each in self.in_sync if each in alive]
        self.in_sync = in_sync or self.in_sync
        stays = self.leader in in_sync
        leader = (
            self.leader if stays else next((each for each in self.replicas if each in in_sync), NO_LEADER)
        )
        if leader != self.leader:
            self.leader = leader
            self.leader_epoch += 1
            if leader != NO_LEADER:
                self.log.lead(self.leader_epoch)

    def elect_anyone(self, alive: list[int]) -> None:
        """Elect the first replica that is *alive*, in sync or not, if the partition has no leader (an unclean
        election).
        """
        found = [each for each in self.replicas if each in alive]
        if self.leader == NO_LEADER and found:
            self.in_sync = found[:1]
            self.elect(alive)

    def move(self, others: list[int]) -> bool:
        """Have one of *others* lead; return whether one may."""
        leader = next((each for each in self.replicas if each in self.in_sync and each in others), None)
        if leader is None:
            return False
        self.leader = leader
        self.leader_epoch += 1
        self.log.lead(self.leader_epoch)
        return True

    def rejoin(self, node_id: int) -> None:
        """Have a replica that is back catch up with the leader, if there is one: at once, for the log is
        shared.
        """
        if self.leader != NO_LEADER and node_id in self.replicas and node_id not in self.in_sync:
            self.in_sync.append(node_id)


class EmbeddedTopic:
    """A topic: its id, partitions and settings."""

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        configs: TopicConfigs,
        *,
        internal: bool = False,
    ) -> None:
        self.name, self.topic_id, self.configs, self.is_internal = name, topic_id, configs, internal
        self.partitions: list[EmbeddedPartition] = []

    def add(self, replicas: list[list[int]], storage: BrokerStorage) -> None:
        """Add partitions, each with its replicas, whose logs *storage* keeps."""
        for each in replicas:
            place = self.name, len(self.partitions)
            self.partitions.append(
                EmbeddedPartition(*place, each, storage.log(place, self.topic_id, self.configs))
            )
