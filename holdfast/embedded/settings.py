"""The settings of an embedded Kafka: few internal partitions and no waiting, as those of a real one by
`holdfast dev up`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

HOST = "127.0.0.1"


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the whole cluster. Times are in milliseconds, sizes in bytes."""

    nodes: int = 1
    folder: Path | None = None
    """The folder of its data; None: in memory."""
    fsync: bool = False
    """True if answered writes outlive a power cut, and not only the end of the process."""
    num_partitions: int = 4
    auto_create_topics: bool = False
    offsets_partitions: int = 8
    transaction_partitions: int = 8
    group_initial_delay_ms: int = 0
    group_min_session_ms: int = 6_000
    group_max_session_ms: int = 1_800_000
    consumer_heartbeat_ms: int = 5_000
    """The interval of heartbeats that members of KIP-848's groups are assigned."""
    transaction_sweep_ms: int = 1_000
    retention_check_ms: int = 300_000
    max_transaction_timeout_ms: int = 900_000
    message_max_bytes: int = 1_048_588
    request_max_bytes: int = 104_857_600
    queued_max_bytes: int = 134_217_728
    """Of requests that have come, whole or in part, and are not answered yet, on all connections together."""
    unsent_max_bytes: int = 536_870_912
    """Of answers that clients have not read yet."""
    fetch_max_bytes: int = 57_671_680
    max_connections: int = 10_000
    connections_max_idle_ms: int = 600_000
    group_max_size: int = 2_000
    kept_max_bytes: int = 134_217_728
    """Of what clients said of groups, offsets, transactional ids, settings of topics, rules and users."""
    max_partitions: int = 100_000
    """Of all topics together."""
    fetch_sessions: int = 1_000

    @property
    def replicas(self) -> int:
        """Return the number of copies of a topic that asks for the default."""
        return min(3, self.nodes)

    @property
    def in_sync(self) -> int:
        """Return how many of them must be in sync for a write with ``acks=all``."""
        return max(1, self.replicas - 1)
