"""The Kafka of the demo: Apache Kafka's broker, or the embedded one, which needs no JDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from holdfast.dev.broker import jars
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.embedded_process import EmbeddedProcess
from holdfast.errors import DemoError
from holdfast.jars import spark_jars

_ENDED = "stopped"


class DemoBroker(Protocol):
    """The demo's Kafka."""

    @property
    def words(self) -> str:
        """Return its description, for people."""

    @property
    def bootstrap(self) -> str:
        """``host:port``, once it has been started."""

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Look for, or fetch, what it and Spark need."""

    def start(self) -> None:
        """Start it, and return once it answers."""

    def client_config(self) -> Mapping[str, object]:
        """Return the settings of a confluent-kafka client."""

    def running(self) -> list[str]:
        """Return the names of its nodes that run."""

    def stop(self) -> None:
        """End it at once, if it runs."""


class ApacheBroker:
    """Apache Kafka, one KRaft node; unless *detached* it ends with this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @classmethod
    def within(cls, folder: Path, *, detached: bool) -> ApacheBroker:
        return cls(Cluster(folder, detached=detached))

    words = f"Kafka {jars.KAFKA_VERSION}, one KRaft node,"

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def prepare(self, progress: Callable[[str], None]) -> None:
        jars.find_java()
        jars.class_path(progress=progress)
        jars.with_bar(spark_jars, progress)

    def start(self) -> None:
        self._cluster.start()

    def client_config(self) -> Mapping[str, object]:
        return self._cluster.client_config()

    def running(self) -> list[str]:
        return [f"broker node {node.node_id}" for node in self._cluster.status() if node.condition != _ENDED]

    def stop(self) -> None:
        self._cluster.stop(grace_s=0)


class EmbeddedBroker:
    """The embedded Kafka, in a process of its own; unless *detached* it ends with this one."""

    words = "The embedded Kafka (for development: production is Apache Kafka)"

    def __init__(
        self, folder: Path, *, detached: bool = False, process: EmbeddedProcess | None = None
    ) -> None:
        self._folder, self._detached, self._process = folder, detached, process

    @property
    def _started(self) -> EmbeddedProcess:
        if self._process is None:
            raise DemoError("the demo's embedded Kafka has not been started")
        return self._process

    @property
    def bootstrap(self) -> str:
        return self._started.bootstrap

    def prepare(self, progress: Callable[[str], None]) -> None:
        """It needs nothing but Python."""

    def start(self) -> None:
        self._process = EmbeddedProcess.start(self._folder, nodes=1, port=None, bound=not self._detached)

    def client_config(self) -> Mapping[str, object]:
        return {"bootstrap.servers": self.bootstrap}

    def running(self) -> list[str]:
        nodes = self._process.status() if self._process is not None else []
        return [f"embedded broker {node.node_id}" for node in nodes if node.condition != _ENDED]

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


def find_broker(folder: Path) -> DemoBroker | None:
    """Return the broker that a kept demo left in *folder*, None without one."""
    if (process := EmbeddedProcess.find(folder)) is not None:
        return EmbeddedBroker(folder, process=process)
    cluster = Cluster.find(folder)
    return None if cluster is None else ApacheBroker(cluster)
