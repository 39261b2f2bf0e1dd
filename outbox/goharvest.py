"""A reaper's configuration, read as the reaper reads it, and the settings of a harvester that replaces it
among the others.

    settings_of(yaml.safe_load(file)["harvest"], kafka=Settings(), name="orders")

The reaper's file defines its keys, defaults, dependent values, and the values that are refused before
anything is contacted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from sqlalchemy import URL

from holdfast.config import Settings
from holdfast.core.outbox.election import sanitise
from holdfast.errors import ConfigError
from holdfast.outbox.settings import HarvestSettings, Strategy

KEYS: Final = {
    "baseKafkaConfig",
    "producerKafkaConfig",
    "leaderTopic",
    "leaderGroupID",
    "dataSource",
    "outboxTable",
    "name",
    "limits",
}
DATA_SOURCE = "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable"
FORCED_PRODUCER = "enable.idempotence"
DECIDED = frozenset({"delivery.timeout.ms", "message.timeout.ms", "linger.ms", "queue.buffering.max.ms"})
"""Properties of reapers' producers that the strategy decides here: a delivery ends before a successor may
begin.
"""
_UNITS_MS: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperLimits:
    """A reaper's `limits`, all of them settled; times in milliseconds. One that exists is valid."""

    io_error_backoff_ms: float = 500
    poll_duration_ms: float = 1
    min_poll_interval_ms: float = 100
    heartbeat_timeout_ms: float = 5_000
    max_poll_interval_ms: float = 0
    """0: half of the heartbeat timeout."""
    queue_timeout_ms: float = 30_000
    drain_interval_ms: float = 0
    """0: the shorter of max_poll_interval_ms and queue_timeout_ms."""
    mark_backoff_ms: float = 10
    max_in_flight_records: int = 1_000
    send_concurrency: int = 8
    send_buffer: int = 10
    mark_query_records: int = 100
    min_metrics_interval_ms: float = 5_000

    def __post_init__(self) -> None:
        if not self.max_poll_interval_ms:
            object.__setattr__(self, "max_poll_interval_ms", self.heartbeat_timeout_ms / 2)
        if not self.drain_interval_ms:
            object.__setattr__(
                self, "drain_interval_ms", min(self.max_poll_interval_ms, self.queue_timeout_ms)
            )
        least: dict[str, float] = {
            **dict.fromkeys(
                ("io_error_backoff_ms", "mark_backoff_ms", "min_metrics_interval_ms", "send_buffer"), 0
            ),
            "max_poll_interval_ms": self.min_poll_interval_ms,
        }
        for each in fields(self):
            low, value = least.get(each.name, 1), getattr(self, each.name)
            if value < low:
                raise ConfigError(f"limits.{_camel(each.name)} is {value:g}, at least {low:g} is needed")


def _camel(name: str) -> str:
    """Return the reaper's name of a limit.

    >>> _camel("heartbeat_timeout_ms"), _camel("max_in_flight_records")
    ('heartbeatTimeout', 'maxInFlightRecords')
    """
    first, *rest = name.removesuffix("_ms").split("_")
    return first + "".join(each.title() for each in rest)


_LIMITS: Final = {_camel(each.name): each.name for each in fields(ReaperLimits)}


def duration_ms(what: str, value: object) -> float:
    """Return a duration as Go writes it, in ms; a bare number is nanoseconds, as in Go.

    >>> duration_ms("x", "1m1.5s"), duration_ms("x", 1_000_000), duration_ms("x", "0")
    (61500.0, 1.0, 0.0)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value / 1e6
    text = str(value)
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{what} is {value!r}; write a duration as Go does, like 2.5s or 500ms")
    return float(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))


def limits_of(given: Mapping[str, Any]) -> ReaperLimits:
    """Return a reaper's limits: *given*, and for the rest its defaults. An unknown key is a ConfigError."""
    settled: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _LIMITS:
            raise ConfigError(f"limits.{key} is not one of a reaper's limits: {', '.join(sorted(_LIMITS))}")
        if value is None:
            continue
        name = _LIMITS[key]
        if name.endswith("_ms"):
            settled[name] = duration_ms(f"limits.{key}", value)
        elif isinstance(value, int) and not isinstance(value, bool):
            settled[name] = value
        else:
            raise ConfigError(f"limits.{key} is {value!r}, a whole number is needed")
    return ReaperLimits(**settled)


def database_of(data_source: str) -> str:
    """Return libpq's key=value words as the address that SQLAlchemy takes.

    >>> database_of("host=db port=5433 user=reaper password='a@b' dbname=shop sslmode=disable")
    'postgresql+psycopg://reaper:a%40b@db:5433/shop?sslmode=disable'
    """
    words = dict(word.partition("=")[::2] for word in shlex.split(data_source))
    url = URL.create(
        "postgresql+psycopg",
        username=words.pop("user", None),
        password=words.pop("password", None) or None,
        host=words.pop("host", "localhost"),
        port=int(words.pop("port", 5432)),
        database=words.pop("dbname", None),
        query=words,
    )
    return url.render_as_string(hide_password=False)


def settings_of(document: Mapping[str, Any], *, kafka: Settings, name: str) -> HarvestSettings:
    """Return the settings of a harvester that shares table and election with the reapers of *document*, its
    `harvest` section.

    *kafka* holds what the file has not; *name* is the outbox's. Raises ConfigError for what a reaper would
    refuse, and for the two things it should: a leader topic that brokers keep to themselves, and a heartbeat
    timeout that no broker takes a session for.
    """
    if unknown := sorted(document.keys() - KEYS):
        raise ConfigError(
            f"{', '.join(unknown)}: none of a reaper's keys, which are {', '.join(sorted(KEYS))}"
        )
    producer = dict(document.get("producerKafkaConfig") or {})
    if FORCED_PRODUCER in producer:
        raise ConfigError(f"cannot override configuration '{FORCED_PRODUCER}'")
    limits = limits_of(document.get("limits") or {})
    properties = {
        key: str(value)
        for key, value in {**(document.get("baseKafkaConfig") or {}), **producer}.items()
        if key not in DECIDED
    }
    group = str(document.get("leaderGroupID") or name)
    return HarvestSettings(
        database=database_of(str(document.get("dataSource") or DATA_SOURCE)),
        kafka=replace(kafka, kafka={**kafka.kafka, **properties}),
        name=name,
        table=str(document.get("outboxTable") or "outbox"),
        layout="goharvest",
        strategy=Strategy.MARK,
        interop=True,
        instance=str(document.get("name") or ""),
        group_id=group,
        leader_topic=str(document.get("leaderTopic") or f"{sanitise(group)}.neli"),
        heartbeat_timeout_s=limits.heartbeat_timeout_ms / 1000,
        batch_rows=limits.mark_query_records,
        in_flight_rows=limits.max_in_flight_records,
        key_in_flight=1,
        retry_s=max(0.01, limits.io_error_backoff_ms / 1000),
    )
