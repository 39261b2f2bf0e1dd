"""The settings of a topic: Kafka's names, types, defaults, and what it says to a value that cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from holdfast.core.kafka.compression import Compression
from holdfast.embedded.settings import EmbeddedSettings

LONG_MAX = (1 << 63) - 1
_LIMITS = {"INT": 1 << 31, "LONG": 1 << 63}


class ConfigKind(IntEnum):
    """Types of settings, with the protocol's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """The source of a value, with the protocol's numbers."""

    TOPIC = 1
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5


class TopicSetting(NamedTuple):
    """A setting of a topic. *server* is the broker's setting that is its default, "" for none."""

    name: str
    kind: ConfigKind
    default: str
    server: str = ""
    at_least: float | None = None
    choices: tuple[str, ...] = ()


_K = ConfigKind
_ALL = (
    TopicSetting("cleanup.policy", _K.LIST, "delete", "log.cleanup.policy", choices=("compact", "delete")),
    TopicSetting("compression.gzip.level", _K.INT, "-1", "compression.gzip.level"),
    TopicSetting("compression.lz4.level", _K.INT, "9", "compression.lz4.level"),
    TopicSetting(
        "compression.type",
        _K.STRING,
        "producer",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    TopicSetting("compression.zstd.level", _K.INT, "3", "compression.zstd.level"),
    TopicSetting("delete.retention.ms", _K.LONG, "86400000", "log.cleaner.delete.retention.ms", 0),
    TopicSetting("file.delete.delay.ms", _K.LONG, "60000", "log.segment.delete.delay.ms", 0),
    TopicSetting("flush.messages", _K.LONG, str(LONG_MAX), "log.flush.interval.messages", 1),
    TopicSetting("flush.ms", _K.LONG, str(LONG_MAX), "", 0),
    TopicSetting("follower.replication.throttled.replicas", _K.LIST, ""),
    TopicSetting("index.interval.bytes", _K.INT, "4096", "log.index.interval.bytes", 0),
    TopicSetting("leader.replication.throttled.replicas", _K.LIST, ""),
    TopicSetting("local.retention.bytes", _K.LONG, "-2", "log.local.retention.bytes", -2),
    TopicSetting("local.retention.ms", _K.LONG, "-2", "log.local.retention.ms", -2),
    TopicSetting("max.compaction.lag.ms", _K.LONG, str(LONG_MAX), "log.cleaner.max.compaction.lag.ms", 1),
    TopicSetting("max.message.bytes", _K.INT, "1048588", "message.max.bytes", 0),
    TopicSetting(
        "message.timestamp.after.max.ms", _K.LONG, "3600000", "log.message.timestamp.after.max.ms", 0
    ),
    TopicSetting(
        "message.timestamp.before.max.ms", _K.LONG, str(LONG_MAX), "log.message.timestamp.before.max.ms", 0
    ),
    TopicSetting(
        "message.timestamp.type",
        _K.STRING,
        "CreateTime",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    ),
    TopicSetting("min.cleanable.dirty.ratio", _K.DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio", 0),
    TopicSetting("min.compaction.lag.ms", _K.LONG, "0", "log.cleaner.min.compaction.lag.ms", 0),
    TopicSetting("min.insync.replicas", _K.INT, "1", "min.insync.replicas", 1),
    TopicSetting("preallocate", _K.BOOLEAN, "false", "log.preallocate"),
    TopicSetting("remote.log.copy.disable", _K.BOOLEAN, "false"),
    TopicSetting("remote.log.delete.on.disable", _K.BOOLEAN, "false"),
    TopicSetting("remote.storage.enable", _K.BOOLEAN, "false"),
    TopicSetting("retention.bytes", _K.LONG, "-1", "log.retention.bytes"),
    TopicSetting("retention.ms", _K.LONG, "604800000", "", -1),
    TopicSetting("segment.bytes", _K.INT, "1073741824", "log.segment.bytes", 1024 * 1024),
    TopicSetting("segment.index.bytes", _K.INT, "10485760", "log.index.size.max.bytes", 4),
    TopicSetting("segment.jitter.ms", _K.LONG, "0", "", 0),
    TopicSetting("segment.ms", _K.LONG, "604800000", "", 1),
    TopicSetting("unclean.leader.election.enable", _K.BOOLEAN, "false", "unclean.leader.election.enable"),
)
SETTINGS: Mapping[str, TopicSetting] = {each.name: each for each in _ALL}
IN_SYNC = "min.insync.replicas"


_CODECS: Mapping[str, Compression] = {
    "uncompressed": Compression.NONE,
    **{each.name.lower(): each for each in Compression if each},
}


def troubles(configs: Mapping[str, str | None]) -> Iterator[str]:
    """Yield Kafka's words on each setting of *configs* that cannot be."""
    for name, value in configs.items():
        setting = SETTINGS.get(name)
        if setting is None:
            yield f"Unknown topic config name: {name}"
        elif value is None:
            yield f"Null value not supported for topic configs: {name}"
        elif (found := _trouble(setting, value)) is not None:
            yield (
                f"Invalid value {value if found[0] is None else found[0]} for configuration {name}:"
                f" {found[1]}"
            )


def _trouble(setting: TopicSetting, value: str) -> tuple[str | None, str] | None:
    """Return the value as Kafka shows it, if that differs, and its fault."""
    match setting.kind:
        case ConfigKind.INT | ConfigKind.LONG:
            return _number_trouble(setting, value)
        case ConfigKind.DOUBLE:
            try:
                number = float(value)
            except ValueError:
                return None, "Not a number of type DOUBLE"
            if 0 <= number <= 1:
                return None
            return str(number), f"Value must be {'no more than 1' if number > 1 else 'at least 0'}"
        case ConfigKind.BOOLEAN:
            plain = value.strip().lower() in ("true", "false")
            return None if plain else (None, "Expected value to be either true or false")
        case ConfigKind.LIST if setting.choices:
            wrong = [each for each in _listed(value) if each not in setting.choices]
            return (wrong[0], f"String must be one of: {', '.join(setting.choices)}") if wrong else None
        case ConfigKind.STRING if setting.choices and value not in setting.choices:
            return None, f"String must be one of: {', '.join(setting.choices)}"
    return None


def _number_trouble(setting: TopicSetting, value: str) -> tuple[str | None, str] | None:
    limit = _LIMITS[setting.kind.name]
    try:
        number = int(value.strip())
    except ValueError:
        return None, f"Not a number of type {setting.kind.name}"
    if not -limit <= number < limit:
        return None, f"Not a number of type {setting.kind.name}"
    if setting.at_least is not None and number < setting.at_least:
        return None, f"Value must be at least {setting.at_least:.0f}"
    return None


def _listed(value: str) -> list[str]:
    return [each.strip() for each in value.split(",")] if value.strip() else []


class TopicConfigs:
    """The settings of one topic: *own* are those set on it, the others those of the cluster."""

    def __init__(self, own: Mapping[str, str], *, settings: EmbeddedSettings) -> None:
        self.own = dict(own)
        self._cluster = {
            IN_SYNC: str(settings.in_sync),
            "max.message.bytes": str(settings.message_max_bytes),
        }
        self._read()

    def _read(self) -> None:
        self.max_message_bytes = self.number("max.message.bytes")
        self.is_append_time = self["message.timestamp.type"] == "LogAppendTime"
        self.before_max_ms = self.number("message.timestamp.before.max.ms")
        self.after_max_ms = self.number("message.timestamp.after.max.ms")
        self.policies = frozenset(_listed(self["cleanup.policy"]))
        self.is_compacted = "compact" in self.policies
        self.codec = _CODECS.get(self["compression.type"])
        self.min_in_sync = self.number(IN_SYNC)
        self.segment_bytes, self.segment_ms = self.number("segment.bytes"), self.number("segment.ms")

    def __getitem__(self, name: str) -> str:
        found = self.own.get(name)
        return self.default(name) if found is None else found

    def default(self, name: str) -> str:
        """Return the value for a topic that does not set it."""
        return self._cluster.get(name) or SETTINGS[name].default

    def number(self, name: str) -> int:
        return int(self[name])

    def set(self, own: Mapping[str, str]) -> None:
        """Replace the topic's own settings by *own*."""
        self.own = dict(own)
        self._read()
