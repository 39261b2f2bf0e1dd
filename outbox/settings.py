"""The settings of a harvester."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from holdfast.config import Settings
from holdfast.core.outbox.election import ElectionSettings, sanitise
from holdfast.core.outbox.harvest import BUCKETS, producer_name
from holdfast.errors import ConfigError
from holdfast.kafka.clients import CRITICAL
from holdfast.outbox.schema.layouts import layout_named

_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")


class Strategy(StrEnum):
    """The way of rows from the table to Kafka."""

    FENCED = "fenced"
    """Exactly once for readers of committed records: rows and progress in one transaction."""
    MARK = "mark"
    """At least once, as goharvest: rows are marked, published, deleted; can share a table with goharvest."""


class Poison(StrEnum):
    """The treatment of a row that Kafka refuses each time, and of the later rows of its key."""

    PASS = "pass"
    """After `attempts` it is set aside in the quarantine, and the key continues."""
    WAIT = "wait"
    """It is tried for ever, less and less often, and its key waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestSettings:
    """One outbox and how it is harvested. One that exists is valid; times are in seconds.

    *name* is the outbox's: producers, group and topics are named after it, so it must be unique on its Kafka
    cluster and never change.
    """

    database: str = field(repr=False)
    kafka: Settings = field(default_factory=Settings)
    name: str = "outbox"
    table: str = "outbox"
    layout: str = "holdfast"
    strategy: Strategy = Strategy.FENCED
    shards: int = 1
    instance: str = ""
    """This process among the harvesters; default: host and process id."""
    static_instance: bool = False
    """Join the group under `instance` for ever: a restart within the session moves nothing, and a stop is
    noticed only after it.
    """
    leader_topic: str = ""
    group_id: str = ""
    interop: bool = False
    """Share the election with goharvest processes (strategy mark)."""
    heartbeat_timeout_s: float = 5.0
    batch_rows: int = 5_000
    batch_bytes: int = 8 << 20
    attempts: int = 5
    poison: Poison = Poison.PASS
    retry_s: float = 1.0
    retry_limit_s: float = 60.0
    idle_poll_s: float = 0.25
    transaction_timeout_s: float = 10.0
    commit_timeout_s: float = 15.0
    in_flight_rows: int = 10_000
    """Strategy mark: rows handed to Kafka and not yet answered for."""
    key_in_flight: int = 1_000
    """Strategy mark: of these, rows of one key; 1 is goharvest's strict barrier."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"the outbox's name is {self.name!r}; use 1 to 150 letters, digits, '.', '_' or '-': topics"
                " are named after it"
            )
        for name, low, high in (
            ("shards", 1, BUCKETS),
            ("batch_rows", 1, 100_000),
            ("batch_bytes", 1024, 1 << 30),
            ("attempts", 1, 1_000),
            ("retry_s", 0.01, 3_600),
            ("retry_limit_s", self.retry_s, 86_400),
            ("idle_poll_s", 0.01, 60),
            ("transaction_timeout_s", 1, 900),
            ("commit_timeout_s", 1, 900),
            ("in_flight_rows", 1, 1_000_000),
            ("key_in_flight", 1, 1_000_000),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; the range is {low:g} to {high:g}")
        for name, kind in (("strategy", Strategy), ("poison", Poison)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(kind)}"
                ) from None
        if self.shards > 1 and not layout_named(self.layout).sharded:
            raise ConfigError(
                f"layout {self.layout} has no column that spreads rows over {self.shards} shards; it has one"
                " shard"
            )
        if self.strategy is Strategy.MARK and self.layout != "goharvest":
            raise ConfigError(
                f"strategy mark needs the column leader_id of layout goharvest; layout {self.layout} has none"
            )
        if self.shards > 1 and self.strategy is Strategy.MARK:
            raise ConfigError(
                f"strategy mark has one shard, not {self.shards}: goharvest's marks know no others"
            )
        if self.static_instance and not self.instance:
            raise ConfigError(
                "static_instance needs instance: a name of this process that is its own and stays the same"
            )
        if not self.instance:
            object.__setattr__(self, "instance", f"{sanitise(socket.gethostname())}_{os.getpid()}")
        # Troubles are logged once, when they begin and when they end. librdkafka's clients would each log
        # every attempt to connect.
        properties = {"log_level": str(CRITICAL), **self.kafka.kafka}
        object.__setattr__(self, "kafka", replace(self.kafka, kafka=properties))
        self.election()

    def election(self) -> ElectionSettings:
        """Return the election's settings; ConfigError when they do not hold together."""
        kafka = self.kafka
        return ElectionSettings(
            group_id=self.group_id or self.default_group,
            elder_group="" if self.group_id or self.interop else self.name,
            leader_topic=self.leader_topic or f"{self.name}.neli",
            name=self.instance,
            roles=self.shards,
            instance_id=self.instance if self.static_instance else None,
            interop=self.interop,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            consumer=kafka.consumer(),
            producer=kafka.client(),
        )

    @property
    def default_group(self) -> str:
        """Return the election's group for settings without one: not the outbox's name alone, which an
        application's workers may have for their group, but among goharvest's processes theirs.
        """
        return self.name if self.interop else f"{self.name}.harvesters"

    @property
    def commands_topic(self) -> str:
        """Return the topic of commands to the outbox's harvesters: pause, resume, flush and status."""
        return f"{self.name}.commands"

    @property
    def answers_topic(self) -> str:
        """Return the topic on which they answer."""
        return f"{self.name}.answers"

    @property
    def progress_topic(self) -> str:
        """Return the topic on which the leaders of the outbox keep their progress, one partition a shard."""
        return f"{self.name}.progress"

    def transactional_id(self, shard: int) -> str:
        """Return the id that fences the leaders of *shard*."""
        return f"holdfast-outbox-{producer_name(self.name, shard)}"

    def producer(self, **more: Any) -> dict[str, Any]:
        """Return the configuration of a producer of rows."""
        return {**self.kafka.producer(), **more}


def harvest_settings(settings: Settings, **given: Any) -> HarvestSettings:
    """Return the outbox's settings in *settings* (`outbox_...`); *given* are fields of HarvestSettings that
    win unless None.

    Raises ConfigError when no database is named.
    """
    if settings.outbox_database is None and given.get("database") is None:
        raise ConfigError(
            "name the database in outbox_database (HOLDFAST_OUTBOX_DATABASE), like"
            " postgresql://user:password@host/name"
        )
    configured: dict[str, Any] = {
        "database": settings.outbox_database,
        "name": settings.outbox_name or f"{settings.app}-outbox",
        "table": settings.outbox_table,
        "layout": settings.outbox_layout,
        "strategy": settings.outbox_strategy,
        "shards": settings.outbox_shards,
        "poison": settings.outbox_poison,
        "attempts": settings.outbox_attempts,
        "heartbeat_timeout_s": settings.outbox_heartbeat_timeout_s,
        "batch_rows": settings.outbox_batch_rows,
    }
    return HarvestSettings(
        kafka=settings,
        **{**configured, **{name: value for name, value in given.items() if value is not None}},
    )
