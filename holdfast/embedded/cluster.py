"""The embedded cluster's state: its brokers, topics and sessions. No sockets here: `holdfast.embedded.serving` has those."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from random import Random

from holdfast.clock import Clock, system_clock
from holdfast.embedded.faults import RequestedFaults
from holdfast.embedded.fetch_sessions import FetchSessions
from holdfast.embedded.groups.coordinator import EmbeddedGroups
from holdfast.embedded.security.settings import SecuritySettings
from holdfast.embedded.settings import HOST, EmbeddedSettings
from holdfast.embedded.topics.partition import EmbeddedTopic
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.embedded.transactions.coordinator import EmbeddedTransactions
from holdfast.embedded.upkeep import Upkeep


@dataclass(slots=True)
class EmbeddedNode:
    """One broker of the cluster; *port* is 0 until it listens."""

    node_id: int
    port: int = 0
    alive: bool = True
    host: str = HOST


class EmbeddedCluster:
    """All that the brokers of one process share. Everything happens on one event loop, so nothing is locked."""

    def __init__(
        self,
        settings: EmbeddedSettings,
        security: SecuritySettings | None = None,
        *,
        seed: int | None = None,
        clock: Clock = system_clock,
    ) -> None:
        security = security or SecuritySettings()
        self.security = security
        self.users, self.authorizer = security.sasl_users(Random(seed)), security.authorizer()
        self.settings, self.clock = settings, clock
        self.chance = Random(seed)
        self.faults = RequestedFaults(seed)
        self.cluster_id = base64.urlsafe_b64encode(self.chance.randbytes(16)).decode().rstrip("=")
        self.nodes = {number: EmbeddedNode(number) for number in range(1, settings.nodes + 1)}
        self.topics = TopicRegistry(settings, list(self.nodes), self.chance)
        self.sessions = {number: FetchSessions(self.chance, settings.fetch_sessions) for number in self.nodes}
        self.upkeep = Upkeep(self.topics, settings, self.now_ms)
        self.groups = EmbeddedGroups(self.topics, settings, self.now_ms)
        self.transactions = EmbeddedTransactions(self.topics, self.groups, settings, self.now_ms, self.faults)

    @property
    def alive(self) -> list[EmbeddedNode]:
        """The brokers that answer."""
        return [each for each in self.nodes.values() if each.alive]

    @property
    def controller_id(self) -> int:
        """The broker that clients are told is the controller; -1 when none is alive."""
        return next((each.node_id for each in self.alive), -1)

    def now_ms(self) -> int:
        return self.clock.now_ms() + self.faults.clock_ms

    def delete_topic(self, topic: EmbeddedTopic) -> None:
        """Delete *topic* and what is kept about it elsewhere."""
        self.topics.delete(topic)
        self.groups.topic_deleted(topic.name)

    def lose(self, node_id: int) -> None:
        """Have a broker be gone: others lead what it led, as far as they are in sync."""
        self.nodes[node_id].alive = False
        self.sessions[node_id].clear()
        self._elect()

    def find(self, node_id: int) -> None:
        """Have a broker be back: it follows again, and leads what nobody else can."""
        self.nodes[node_id].alive = True
        for each in self.topics.partitions():
            each.rejoin(node_id)
        self._elect()

    def _elect(self) -> None:
        alive = [each.node_id for each in self.alive]
        for partition in self.topics.partitions():
            partition.elect(alive)

    def start(self) -> None:
        """Begin what happens by itself, on the running loop."""
        self.transactions.start()
        self.upkeep.start()

    def close(self) -> None:
        """Let nothing happen by itself any more."""
        self.upkeep.close()
        self.transactions.close()
        self.groups.close()
