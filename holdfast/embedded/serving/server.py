"""The listeners of an embedded cluster, one for each broker."""

from __future__ import annotations

import asyncio

from holdfast.clock import system_clock
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.recurring import Recurring
from holdfast.embedded.serving.connection import KafkaConnection
from holdfast.embedded.serving.limits import Connections
from holdfast.embedded.settings import HOST
from holdfast.errors import DevBrokerError


class EmbeddedServer:
    """Listens for every broker of *cluster*, on loopback only. The caller of `open` must call `close`."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._listeners: dict[int, asyncio.Server] = {}
        self._others: Connections[KafkaConnection] = Connections(
            cluster.settings, cluster.nodes, KafkaConnection.close
        )
        self._connections = self._others.by_node
        idle_s = cluster.settings.connections_max_idle_ms / 1000
        self._idling = Recurring("the end of idle connections", max(1.0, idle_s / 10), self._end_idle)

    async def open(self, port: int = 0) -> None:
        """Listen: the first broker on *port*, the others on the next ones; 0 takes free ports."""
        if self._cluster.settings.connections_max_idle_ms > 0:
            self._idling.start()
        try:
            for number, node in self._cluster.nodes.items():
                await self.listen(number, port + number - 1 if port else node.port)
        except BaseException:
            await self.close()
            raise

    async def listen(self, node_id: int, port: int) -> None:
        """Have one broker listen."""
        others, loop = self._others, asyncio.get_running_loop()
        tls = self._cluster.security.tls
        context = None if tls is None else tls.context()
        try:
            listener = await loop.create_server(
                lambda: KafkaConnection(self._cluster, node_id, others), HOST, port, ssl=context
            )
        except OSError as error:
            raise DevBrokerError(f"the embedded Kafka cannot listen on {HOST}:{port}: {error}") from error
        self._listeners[node_id] = listener
        self._cluster.nodes[node_id].port = listener.sockets[0].getsockname()[1]

    def _end_idle(self) -> None:
        """Close connections on which nothing has come for ``connections_max_idle_ms``, and nothing is due."""
        before_s = system_clock.monotonic_s() - self._cluster.settings.connections_max_idle_ms / 1000
        for connections in self._connections.values():
            for each in tuple(connections):
                if each.idle_since_s is not None and each.idle_since_s < before_s:
                    each.close()

    async def hang_up(self, node_id: int) -> None:
        """Stop listening for one broker, and cut its connections."""
        listener = self._listeners.pop(node_id, None)
        if listener is not None:
            listener.close()
        for each in tuple(self._connections[node_id]):
            each.close()
        if listener is not None:
            await listener.wait_closed()

    async def close(self) -> None:
        """Stop listening altogether."""
        self._idling.close()
        for node_id in tuple(self._listeners):
            await self.hang_up(node_id)
