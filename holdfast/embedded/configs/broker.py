"""The settings of a broker that clients and tools look at, as DescribeConfigs shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.embedded.configs.topic import ConfigKind, ConfigSource
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.errors import DevBrokerError

SETTABLE: Mapping[str, tuple[str, int]] = {
    "num.partitions": ("num_partitions", 1),
    "offsets.topic.num.partitions": ("offsets_partitions", 1),
    "transaction.state.log.num.partitions": ("transaction_partitions", 1),
    "transaction.max.timeout.ms": ("max_transaction_timeout_ms", 1),
    "group.initial.rebalance.delay.ms": ("group_initial_delay_ms", 0),
    "group.min.session.timeout.ms": ("group_min_session_ms", 1),
    "group.max.session.timeout.ms": ("group_max_session_ms", 1),
    "group.max.size": ("group_max_size", 1),
    "group.consumer.heartbeat.interval.ms": ("consumer_heartbeat_ms", 1),
    "message.max.bytes": ("message_max_bytes", 0),
    "fetch.max.bytes": ("fetch_max_bytes", 1_024),
    "socket.request.max.bytes": ("request_max_bytes", 1),
    "queued.max.request.bytes": ("queued_max_bytes", 1),
    "max.connections": ("max_connections", 1),
    "connections.max.idle.ms": ("connections_max_idle_ms", -1),
    "log.retention.check.interval.ms": ("retention_check_ms", 1),
}
"""Properties of Kafka that the embedded broker takes at its start: the field, and the least number."""
AUTO_CREATE, PARTITIONS = "auto.create.topics.enable", "num.partitions"
_MOST = (1 << 31) - 1


class BrokerSetting(NamedTuple):
    """A setting: Kafka's default, and the value here where it is another one."""

    name: str
    kind: ConfigKind
    default: str
    value: str
    read_only: bool = True


def _settings(told: EmbeddedSettings) -> Iterator[BrokerSetting]:
    kind = ConfigKind
    plain = (
        ("num.partitions", "1", told.num_partitions),
        ("default.replication.factor", "1", told.replicas),
        ("offsets.topic.num.partitions", "50", told.offsets_partitions),
        ("offsets.topic.replication.factor", "3", told.replicas),
        ("transaction.state.log.num.partitions", "50", told.transaction_partitions),
        ("transaction.state.log.replication.factor", "3", told.replicas),
        ("transaction.state.log.min.isr", "2", told.in_sync),
        ("transaction.max.timeout.ms", "900000", told.max_transaction_timeout_ms),
        ("group.initial.rebalance.delay.ms", "3000", told.group_initial_delay_ms),
        ("group.min.session.timeout.ms", "6000", told.group_min_session_ms),
        ("group.max.session.timeout.ms", "1800000", told.group_max_session_ms),
        ("socket.request.max.bytes", "104857600", told.request_max_bytes),
    )
    for name, default, value in plain:
        yield BrokerSetting(name, kind.INT, default, str(value))
    automatic = str(told.auto_create_topics).lower()
    yield BrokerSetting("auto.create.topics.enable", kind.BOOLEAN, "true", automatic)
    yield BrokerSetting(
        "message.max.bytes", kind.INT, "1048588", str(told.message_max_bytes), read_only=False
    )
    yield BrokerSetting("min.insync.replicas", kind.INT, "1", str(told.in_sync), read_only=False)
    yield BrokerSetting(
        "log.message.timestamp.type", kind.STRING, "CreateTime", "CreateTime", read_only=False
    )
    yield BrokerSetting("log.cleanup.policy", kind.LIST, "delete", "delete", read_only=False)
    yield BrokerSetting("log.retention.ms", kind.LONG, "", "", read_only=False)
    yield BrokerSetting("log.retention.hours", kind.INT, "168", "168")
    yield BrokerSetting("producer.id.expiration.ms", kind.INT, "86400000", "86400000", read_only=False)
    yield BrokerSetting("transactional.id.expiration.ms", kind.INT, "604800000", "604800000")


def broker_settings(told: EmbeddedSettings) -> list[dict[str, Any]]:
    """Return the fields of each setting in a DescribeConfigs response."""
    return [_described(each) for each in _settings(told)]


def _described(setting: BrokerSetting) -> dict[str, Any]:
    changed = setting.value != setting.default
    synonyms = [(setting.value, ConfigSource.STATIC)] if changed else []
    if setting.default:
        synonyms.append((setting.default, ConfigSource.DEFAULT))
    return {
        "name": setting.name,
        "value": setting.value or None,
        "read_only": setting.read_only,
        "config_source": ConfigSource.STATIC if changed else ConfigSource.DEFAULT,
        "is_sensitive": False,
        "synonyms": [{"name": setting.name, "value": value, "source": source} for value, source in synonyms],
        "config_type": setting.kind,
        "documentation": None,
    }


def settings_of(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `EmbeddedSettings` that server properties of Kafka stand for; DevBrokerError for
    one that the embedded broker does not have, or a value that cannot be.
    """
    return dict(_setting(name, value.strip()) for name, value in properties.items())


def _setting(name: str, value: str) -> tuple[str, Any]:
    if name == AUTO_CREATE:
        if value.lower() not in ("true", "false"):
            raise DevBrokerError(f"{name}={value}: write true or false")
        return "auto_create_topics", value.lower() == "true"
    if name not in SETTABLE:
        known = ", ".join(sorted((AUTO_CREATE, *SETTABLE)))
        raise DevBrokerError(f"{name} is no property of the embedded Kafka; it has {known}")
    field, least = SETTABLE[name]
    if not value.removeprefix("-").isdecimal() or not least <= int(value) <= _MOST:
        raise DevBrokerError(f"{name}={value}: write a number from {least} to {_MOST}")
    return field, int(value)
