"""An embedded Kafka: brokers within this process, for as long as a `with` block.

    with EmbeddedKafka() as kafka:
        producer = Producer(kafka.client_config())

It is for development and tests: production is Apache Kafka. Nothing it holds outlives it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.serving.server import EmbeddedServer
from holdfast.embedded.settings import HOST, EmbeddedSettings
from holdfast.embedded.topics.registry import TopicRefusal
from holdfast.errors import DevBrokerError
from holdfast.loop_thread import LoopThread

logger = logging.getLogger(__name__)

NOTICE = "an embedded Kafka for development and tests: production is Apache Kafka"
START_DEADLINE_S = CALL_DEADLINE_S = 10.0

T = TypeVar("T")


class EmbeddedKafka:
    """Brokers on loopback. `with` runs them in a thread of their own, `async with` on the running loop.

    *nodes* is 1 or 3; *port* that of the first broker, the others have the next ones (0: free ports). What is left to
    chance, as ids of topics, follows from *seed*. Other settings are those of `EmbeddedSettings`.
    """

    def __init__(self, *, nodes: int = 1, port: int = 0, seed: int | None = None, **settings: Any) -> None:
        if nodes not in (1, 3):
            raise DevBrokerError(
                f"an embedded Kafka of {nodes} nodes: choose 1, or 3 so that one of them may die"
            )
        self.cluster = EmbeddedCluster(EmbeddedSettings(nodes=nodes, **settings), seed=seed)
        self._port = port
        self._server = EmbeddedServer(self.cluster)
        self._thread: LoopThread | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker, for ``bootstrap.servers``."""
        return ",".join(f"{HOST}:{each.port}" for each in self.cluster.nodes.values())

    def client_config(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a confluent-kafka client, with *more* of them."""
        return {"bootstrap.servers": self.bootstrap, **more}

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic and return its name; DevBrokerError in Kafka's words for one that cannot be."""
        told = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "configs": [{"name": key, "value": value} for key, value in (config or {}).items()],
        }
        made = self._on_loop(lambda: self.cluster.topics.create(told))
        if isinstance(made, TopicRefusal):
            raise DevBrokerError(f"topic {name} could not be created on the embedded Kafka: {made.text}")
        return name

    def _on_loop(self, do: Callable[[], T]) -> T:
        """Return what *do* gives, called where nothing else happens meanwhile."""

        async def done() -> T:
            return do()

        return do() if self._thread is None else self._thread.wait(done(), CALL_DEADLINE_S)

    async def open(self) -> None:
        """Start on the running loop, which must live until `aclose`."""
        await self._server.open(self._port)
        self.cluster.start()
        logger.info("%s, on %s", NOTICE, self.bootstrap)

    async def aclose(self) -> None:
        """Stop what `open` started."""
        self.cluster.close()
        await self._server.close()

    def start(self) -> Self:
        """Start in a thread of its own, until `stop`."""
        self._thread = LoopThread("embedded-kafka")
        self._thread.start()
        try:
            self._thread.wait(self.open(), START_DEADLINE_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop what `start` started; a second time does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(self.aclose())

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
