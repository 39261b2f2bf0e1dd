"""Faust's settings that an application of `create_app` takes, and the settings that replace the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError

TAKEN = frozenset(
    {
        "Agent",
        "Event",
        "HttpClient",
        "Monitor",
        "Router",
        "Schema",
        "Serializers",
        "agent_supervisor",
        "autodiscover",
        "cache",
        "debug",
        "key_serializer",
        "origin",
        "producer_compression_type",
        "producer_linger",
        "producer_max_batch_size",
        "producer_max_request_size",
        "producer_partitioner",
        "producer_request_timeout",
        "reply_create_topic",
        "reply_expires",
        "reply_to",
        "reply_to_prefix",
        "store",
        "stream_processing_timeout",
        "stream_wait_empty",
        "table_cleanup_interval",
        "table_key_index_size",
        "timezone",
        "topic_allow_declare",
        "topic_partitions",
        "value_serializer",
        "web_cors_options",
    }
)
"""They concern agents, their topics, tables and pages, and not the parts of Faust that holdfast replaces."""

INSTEAD: Mapping[str, str] = {
    "broker": "set bootstrap.servers, as in HOLDFAST_KAFKA__BOOTSTRAP_SERVERS=host:9092",
    "broker_credentials": "set the properties security.protocol, sasl.* and ssl.* in holdfast.toml",
    "broker_heartbeat_interval": "set heartbeat_interval_s",
    "broker_rebalance_timeout": "set rebalance_timeout_s",
    "broker_request_timeout": "set request_timeout_s",
    "broker_session_timeout": "set session_timeout_s",
    "canonical_url": "set web_url",
    "consumer_group_instance_id": "set instance_id",
    "datadir": "set data_dir",
    "id": (
        "set app, as in HOLDFAST_APP=shop: it is the group of the old application, so its agents go on where"
        " they were"
    ),
    "processing_guarantee": (
        "leave it out: processors are exactly once, agents and tables of Faust's at least once"
    ),
    "ssl_context": "set the properties security.protocol and ssl.* in holdfast.toml",
    "table_standby_replicas": "set standbys",
    "topic_disable_leader": (
        "leave it out: the leader's topic is made where a task, timer or crontab says on_leader=True"
    ),
    "topic_replication_factor": "set replication_factor",
    "version": "set app to the old application's whole id: NAME-vVERSION, for a version above 1",
    "web_bind": "set web_bind of holdfast",
    "web_host": "set web_url",
    "web_port": "set web_port of holdfast",
}


def require_taken(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first of *options* that holdfast's settings govern, or that has no effect."""
    for name in sorted(options.keys() - TAKEN):
        instead = INSTEAD.get(name, f"leave it out; those that it takes are {', '.join(sorted(TAKEN))}")
        raise ConfigError(f"create_app does not take Faust's setting {name}: {instead}")
    if str(options.get("store", "memory://")).partition(":")[0] not in STORES:
        raise ConfigError(
            f"create_app does not take store={options['store']!r}: tables of Faust's are kept in memory:// or"
            " rocksdb://"
        )


STORES = ("memory", "rocksdb")
