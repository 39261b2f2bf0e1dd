"""The embedded cluster's state: its brokers, topics and sessions. No sockets here:
`holdfast.embedded.serving` has those.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, TypeVar

from holdfast.clock import Clock, system_clock
from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.faults import RequestedFaults
from holdfast.embedded.fetch_sessions import FetchSessions
from holdfast.embedded.groups.coordinator import EmbeddedGroups
from holdfast.embedded.kept_room import KeptRoom
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.security.settings import SecuritySettings
from holdfast.embedded.settings import HOST, EmbeddedSettings
from holdfast.embedded.storage.storage import BrokerStorage, MemoryStorage
from holdfast.embedded.topics.partition import EmbeddedTopic
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.embedded.transactions.coordinator import EmbeddedTransactions
from holdfast.embedded.upkeep import Upkeep
from holdfast.errors import BrokerFolderError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from holdfast.embedded.storage.durable_answers import DurableAnswers


T = TypeVar("T")


@dataclass(slots=True)
class EmbeddedNode:
    """One broker of the cluster; *port* is 0 until it listens."""

    node_id: int
    port: int = 0
    alive: bool = True
    host: str = HOST


class EmbeddedCluster:
    """All that the brokers of one process share. Everything happens on one event loop, so nothing is
    locked.
    """

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
        self.settings, self.clock, self._seed = settings, clock, seed
        self.chance = Random(seed)
        self.faults = RequestedFaults(seed)
        self.cluster_id = base64.urlsafe_b64encode(self.chance.randbytes(16)).decode().rstrip("=")
        self.nodes = {number: EmbeddedNode(number) for number in range(1, settings.nodes + 1)}
        self.storage = _storage(settings, self.now_ms)
        self.topics = TopicRegistry(settings, list(self.nodes), self.chance, self.storage)
        self.sessions = {number: FetchSessions(self.chance, settings.fetch_sessions) for number in self.nodes}
        self.upkeep = Upkeep(self.topics, settings, self.now_ms)
        self.groups = EmbeddedGroups(self.topics, settings, self.now_ms, self.steady_ms)
        self.transactions = EmbeddedTransactions(
            self.topics, self.groups, settings, self.now_ms, self.faults, self.storage
        )
        self.kept = KeptRoom(settings.kept_max_bytes, self._kept_bytes)
        self._was_open = self._is_open = False
        self._thread: Executor | None = None
        """Does what takes long, once there was any."""
        self.answers: DurableAnswers | None = None
        """Holds answers back until what they speak of is on disk; None where they need not wait."""

    @property
    def alive(self) -> list[EmbeddedNode]:
        """The brokers that answer."""
        return [each for each in self.nodes.values() if each.alive]

    @property
    def controller_id(self) -> int:
        """Return the broker that clients see as the controller; -1 when no broker is alive."""
        return next((each.node_id for each in self.alive), -1)

    def now_ms(self) -> int:
        return self.clock.now_ms() + self.faults.clock_ms

    def steady_ms(self) -> int:
        """Return a clock that never jumps, for sessions and deadlines."""
        return round(self.clock.monotonic_s() * 1000)

    async def beside(self, do: Callable[..., T], *given: object) -> T:
        """Return the result of *do*, which takes long and uses nothing but its arguments: a thread runs such
        calls one after the other, while the loop serves others.
        """
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor  # with what it brings, which few need

            self._thread = ThreadPoolExecutor(1, "embedded-kafka-records")
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *given)

    def _kept_bytes(self) -> int:
        rules = 0 if self.authorizer is None else self.authorizer.kept_bytes()
        return (
            self.groups.kept_bytes()
            + self.transactions.kept_bytes()
            + self.topics.kept_bytes()
            + self.users.kept_bytes()
            + rules
        )

    def delete_topics(self, topics: Iterable[EmbeddedTopic]) -> None:
        """Delete *topics* and all data about them elsewhere: that first, so no later topic of such a name
        finds it.
        """
        doomed = list(topics)
        if doomed:
            self.groups.topics_deleted({each.name for each in doomed})
            self.topics.delete(doomed)

    def lose(self, node_id: int) -> None:
        """Have a broker be gone: others lead what it led, as far as they are in sync."""
        self.nodes[node_id].alive = False
        self.sessions[node_id].clear()
        self._elect()

    def find(self, node_id: int) -> None:
        """Bring a broker back: it leads the partitions without a leader, if it was in sync last, and follows
        the other leaders.
        """
        self.nodes[node_id].alive = True
        self._elect()
        for partition in self.topics.partitions():
            for each in self.alive:
                partition.rejoin(each.node_id)

    def _elect(self) -> None:
        alive = [each.node_id for each in self.alive]
        for partition in self.topics.partitions():
            partition.elect(alive)

    # -- begin and end

    def open(self, on_failure: Callable[[BrokerFolderError], None]) -> None:
        """Load the folder's content, on the running loop; *on_failure* is called when it cannot be written
        any more. The caller must call `close`.
        """
        if self._was_open and self.settings.folder is not None:
            raise BrokerFolderError(
                f"this embedded Kafka has had {self.settings.folder} open already: make another one"
            )
        self.storage.open(on_failure)
        self._was_open = self._is_open = True
        self.cluster_id = self.storage.cluster_id(self.cluster_id)
        if self._seed is not None and self.storage.starts_before:  # the ids of the first start are taken
            self.chance.seed(f"{self._seed} {self.storage.starts_before}")
        self.topics.load()
        self.groups.load()
        self.transactions.load()
        self.storage.settle()
        if (disk := self.storage.syncs) is not None:
            from holdfast.embedded.storage.durable_answers import DurableAnswers

            self.answers = DurableAnswers(disk)

    def start(self) -> None:
        """Begin what happens by itself, on the running loop."""
        self.groups.start()
        self.transactions.start()
        self.upkeep.start()

    def pause(self) -> None:
        """Let nothing happen by itself any more."""
        self.upkeep.close()
        self.transactions.close()
        self.groups.close()

    def close(self) -> None:
        """Let nothing happen any more, and leave the folder in order; a second time does nothing."""
        self.pause()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        if self.answers is not None:
            self.answers.close()
        if self._is_open:
            self._is_open = False
            self.storage.close(self._logs())

    def _logs(self) -> dict[Place, PartitionLog]:
        return {(each.topic, each.index): each.log for each in self.topics.partitions()}


def _storage(settings: EmbeddedSettings, now_ms: Callable[[], int]) -> BrokerStorage:
    if settings.folder is None:
        return MemoryStorage()
    from holdfast.embedded.storage.folder import FolderStorage  # with what it brings, half a megabyte

    return FolderStorage(settings.folder, fsync=settings.fsync, nodes=settings.nodes, now_ms=now_ms)
