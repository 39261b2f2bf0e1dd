"""An embedded Kafka: brokers within this process, for as long as a `with` block.

    with EmbeddedKafka() as kafka:
        producer = Producer(kafka.client_config())

It is for development and tests: production is Apache Kafka. Without a folder, nothing it holds outlives it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import structs

from holdfast.embedded.apis.handlers import offered
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.faults import EVERY_API, Fault, FaultKind, RequestedFaults
from holdfast.embedded.security.acl_lines import rules_of_lines
from holdfast.embedded.security.acl_rules import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    AclRule,
)
from holdfast.embedded.security.settings import SecuritySettings
from holdfast.embedded.security.tls import EmbeddedTls
from holdfast.embedded.security.users import ALL_MECHANISMS
from holdfast.embedded.serving.server import EmbeddedServer
from holdfast.embedded.settings import HOST, EmbeddedSettings
from holdfast.embedded.topics.registry import TopicRefusal
from holdfast.errors import BrokerFolderError, DevBrokerError
from holdfast.loop_thread import LoopThread

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

__all__ = [
    "NOTICE",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResource",
    "AclRule",
    "EmbeddedKafka",
    "EmbeddedTls",
    "rules_of_lines",
]

logger = logging.getLogger(__name__)

NOTICE = "an embedded Kafka for development and tests: production is Apache Kafka"
START_DEADLINE_S = CALL_DEADLINE_S = 60.0
"""More than its thread needs on a machine that freezes for half a minute."""
FOLDER_DEADLINE_S = 600.0
"""A folder is read before it listens; one of some GB takes its time."""

T = TypeVar("T")


class EmbeddedKafka:
    """Brokers on loopback. `with` runs them in a thread of their own, `async with` on the running loop.

    *nodes* is 1 or 3; *port* that of the first broker, the others have the next ones (0: free ports). Chance,
    as in ids of topics, follows from *seed*. With a *folder* it keeps its data there, and continues with them
    when started again; with *fsync* they outlive a power cut too, and not only the process. *users* (names
    and passwords) to *reauth_ms* guard it, as `SecuritySettings` has it; ``tls=True`` is a certificate made
    for this broker. Other settings are those of `EmbeddedSettings`.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        port: int = 0,
        seed: int | None = None,
        folder: Path | str | None = None,
        fsync: bool = False,
        users: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = ALL_MECHANISMS,
        tls: EmbeddedTls | bool = False,
        acls: Iterable[AclRule] | None = None,
        super_users: Iterable[str] = (),
        allow_if_no_acl: bool = False,
        reauth_ms: int = 0,
        **settings: Any,
    ) -> None:
        if nodes not in (1, 3):
            raise DevBrokerError(
                f"an embedded Kafka of {nodes!r} nodes: choose 1, or 3 so that one of them may die"
            )
        if fsync and folder is None:
            raise DevBrokerError(
                "an embedded Kafka with fsync and no folder: there is nothing to sync; give it a folder"
            )
        kept_in = None if folder is None else Path(folder).absolute()
        told = EmbeddedSettings(nodes=nodes, folder=kept_in, fsync=fsync, **settings)
        security = SecuritySettings(
            users=dict(users or {}),
            mechanisms=tuple(mechanisms),
            acls=None if acls is None else tuple(acls),
            super_users=tuple(super_users),
            allow_if_no_acl=allow_if_no_acl,
            reauth_ms=reauth_ms,
        )
        self._tls_folder: TemporaryDirectory[str] | None = None
        self._security = structs.replace(security, tls=self._tls(tls))
        self.cluster = EmbeddedCluster(told, self._security, seed=seed)
        self.failure: BrokerFolderError | None = None
        """Why its folder could not be written any more: it has stopped then, and every call raises this."""
        self._on_failure: list[Callable[[], None]] = []
        self._stopping: asyncio.Task[None] | None = None
        """Set once it has failed."""
        self._port = port
        self._server = EmbeddedServer(self.cluster)
        self._thread: LoopThread | None = None

    def _tls(self, told: EmbeddedTls | bool) -> EmbeddedTls | None:
        if told is True:
            from tempfile import TemporaryDirectory  # with what it brings, half a megabyte that few need

            self._tls_folder = TemporaryDirectory(prefix="embedded-kafka-")
            return EmbeddedTls.made_in(Path(self._tls_folder.name))
        return told or None

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker, for ``bootstrap.servers``."""
        return ",".join(f"{HOST}:{each.port}" for each in self.cluster.nodes.values())

    def client_config(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a confluent-kafka client, with *more* of them; as the first of its users."""
        return {"bootstrap.servers": self.bootstrap, **self._security.client_config(), **more}

    def client_config_of(self, user: str, **more: Any) -> dict[str, Any]:
        """Return the settings of a client that is *user*; DevBrokerError for one that is not known."""
        return {"bootstrap.servers": self.bootstrap, **self._security.client_config(user), **more}

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic and return its name; DevBrokerError in Kafka's words for one that cannot be."""
        configs = [{"name": key, "value": value} for key, value in (config or {}).items()]
        made = self._on_loop(
            lambda: self.cluster.topics.make(name, num_partitions=partitions, configs=configs)
        )
        if isinstance(made, TopicRefusal):
            raise DevBrokerError(f"topic {name} could not be created on the embedded Kafka: {made.text}")
        return name

    def kill(self, node_id: int) -> None:
        """Have one of three brokers die: its connections end, and others lead what it led."""
        self._known(node_id)
        self._wait(self._killed(node_id))

    async def _killed(self, node_id: int) -> None:
        self.cluster.lose(node_id)
        await self._server.hang_up(node_id)

    def revive(self, node_id: int) -> None:
        """Have a broker that was killed come back, at its old address."""
        self._known(node_id)
        self._wait(self._revived(node_id))

    async def _revived(self, node_id: int) -> None:
        await self._server.listen(node_id, self.cluster.nodes[node_id].port)
        self.cluster.find(node_id)

    # -- faults

    @property
    def faults(self) -> RequestedFaults:
        """Return the faults so far: `faults.hits`."""
        return self.cluster.faults

    def fault(
        self,
        kind: FaultKind | str,
        api: str = EVERY_API,
        *,
        client: str = "",
        skip: int = 0,
        times: int = 1,
        share: float = 1.0,
        delay_ms: int = 100,
    ) -> None:
        """Have answers go wrong, as `Fault` has it: ``kafka.fault("cut", "EndTxn")`` leaves a commit's
        outcome unknown.
        """
        known = {name for _, name, _ in offered()}
        if api not in (EVERY_API, *known):
            raise DevBrokerError(f"{api} is no api of the embedded Kafka; it has {', '.join(sorted(known))}")
        try:
            which = FaultKind(kind)
        except ValueError:
            raise DevBrokerError(f"{kind!r} is no fault; there are {', '.join(FaultKind)}") from None
        if not (0 <= share <= 1 and skip >= 0 and times >= 1 and delay_ms >= 0):
            raise DevBrokerError(
                f"a fault with skip={skip}, times={times}, share={share}, delay_ms={delay_ms}: share is a"
                " probability from 0 to 1, times at least 1, the others at least 0"
            )
        fault = Fault(
            kind=which,
            api=api,
            client=client,
            skip=skip,
            times=times,
            share=share,
            delay_ms=delay_ms,
        )
        self._on_loop(lambda: self.faults.add(fault))

    def lose_markers(self, count: int = 1) -> None:
        """Have the next *count* markers of transactions not be written, though they count as written: the
        transaction stays open in their partition.
        """
        self._on_loop(lambda: setattr(self.faults, "lost_markers", count))

    def fill_disk(self, full: bool = True) -> None:
        """Have every write be refused with KAFKA_STORAGE_ERROR, or no longer if not *full*."""
        self._on_loop(lambda: setattr(self.faults, "disk_is_full", full))

    def shift_clock(self, by_ms: int) -> None:
        """Move the clock of every broker, back for a negative *by_ms*."""
        self._on_loop(lambda: setattr(self.faults, "clock_ms", self.faults.clock_ms + by_ms))

    def corrupt(self, topic: str, partition: int, offset: int) -> None:
        """Have the batch that holds an offset be damaged: its checksum does not fit any more."""
        found = self.cluster.topics.partition(topic, partition)
        if found is None or not self._on_loop(lambda: found.log.corrupt(offset)):
            raise DevBrokerError(f"there is no record {offset} in {topic}/{partition}")

    def run_upkeep(self) -> None:
        """Do at once what else happens each ``retention_check_ms``: retention, compaction, forgetting idle
        producers.
        """
        self._on_loop(self.cluster.upkeep.look)

    def forget_member(self, group_id: str, member_id: str) -> None:
        """Have a classic group forget a member, which hears of it with its next request."""
        if not self._on_loop(lambda: self.cluster.groups.forget_member(group_id, member_id)):
            raise DevBrokerError(f"there is no member {member_id} in group {group_id}")

    def move_leader(self, topic: str, partition: int) -> int:
        """Have another broker lead a partition, and coordinate what belongs to it; return which."""
        found = self.cluster.topics.partition(topic, partition)
        if found is None:
            raise DevBrokerError(f"there is no partition {topic}/{partition}")
        alive = [each.node_id for each in self.cluster.alive if each.node_id != found.leader]
        if not self._on_loop(lambda: found.move(alive)):
            raise DevBrokerError(f"no other broker in sync may lead {topic}/{partition}: take three nodes")
        return found.leader

    def _known(self, node_id: int) -> None:
        if node_id not in self.cluster.nodes:
            nodes = ", ".join(map(str, self.cluster.nodes))
            raise DevBrokerError(f"there is no node {node_id}; the nodes are {nodes}")

    def _wait(self, change: Coroutine[Any, Any, None]) -> None:
        if self.failure is not None:
            change.close()
            raise self.failure
        if self._thread is None:
            change.close()
            raise DevBrokerError(
                "this embedded Kafka does not run in a thread of its own: use `with` or `start`"
            )
        self._thread.wait(change, CALL_DEADLINE_S)

    def _on_loop(self, do: Callable[[], T]) -> T:
        """Return the result of *do*, called on the loop, where nothing else happens at the same time."""

        async def done() -> T:
            return do()

        if self.failure is not None:
            raise self.failure
        return do() if self._thread is None else self._thread.wait(done(), CALL_DEADLINE_S)

    async def open(self) -> None:
        """Start on the running loop, which must live until `aclose`."""
        try:
            self.cluster.open(self._fail)
            await self._server.open(self._port)
        except BaseException:
            self._end()
            raise
        self.cluster.start()
        logger.info("%(notice)s, on %(bootstrap)s", {"notice": NOTICE, "bootstrap": self.bootstrap})

    def _fail(self, failure: BrokerFolderError) -> None:
        """Stop, as a broker of Kafka does whose log directories have failed."""
        logger.critical("%(failure)s; it stops", {"failure": failure})
        self.failure = failure
        self.cluster.pause()
        self._stopping = asyncio.ensure_future(self._server.close())
        for told in self._on_failure:
            told()

    def on_failure(self, told: Callable[[], None]) -> None:
        """Have *told* called, on the loop, when it has stopped because its folder cannot be written any
        more.
        """
        self._on_failure.append(told)

    async def aclose(self) -> None:
        """Stop what `open` started."""
        self.cluster.pause()
        await self._server.close()
        try:
            self._end()
        finally:
            if self._stopping is not None:
                await self._stopping

    def _end(self) -> None:
        try:
            self.cluster.close()
        finally:
            if self._tls_folder is not None:
                self._tls_folder.cleanup()

    def start(self) -> Self:
        """Start in a thread of its own, until `stop`. DevBrokerError when it runs already."""
        if self._thread is not None:
            raise DevBrokerError("this embedded Kafka runs already: make another one for another broker")
        self._thread = LoopThread("embedded-kafka")
        self._thread.start()
        try:
            self._thread.wait(self.open(), self._deadline_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop what `start` started; a second time does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(self.aclose(), self._deadline_s)

    @property
    def _deadline_s(self) -> float:
        return START_DEADLINE_S if self.cluster.settings.folder is None else FOLDER_DEADLINE_S

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
