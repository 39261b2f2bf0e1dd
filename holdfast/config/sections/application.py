"""Settings of the application as a whole: its name, its topics, and its workers' data besides tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.config.sections.section import Section, is_topic, names_in, setting

_APP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class ApplicationSettings(Section):
    """The application's name, replicas and topics."""

    app: str = setting(
        "holdfast", "application id: consumer group, prefix of changelogs and transactional ids"
    )
    data_dir: Path = setting(Path(".holdfast/data"), "folder of the RocksDB stores; one per worker")
    instance_id: str | None = setting(
        None, "static membership: a worker that returns with this id within the session keeps its partitions"
    )
    switch_versions: str = setting(
        "caught-up",
        "when a new version of a table becomes the current one: caught-up, or command (`holdfast tables"
        " switch`)",
    )
    build_limit_s: float = setting(
        0,
        "a new version answers, and its worker is ready, after this time even if it has not caught up; 0 for"
        " no limit",
        low=0,
        high=31_536_000,
    )
    earlier_version_s: float = setting(
        3_600,
        "how long the earlier version of a table is kept readable after the switch",
        low=0,
        high=31_536_000,
    )
    accept_partial: bool = setting(
        False,
        "a worker goes on with a table whose changelog and sources have lost records, as far as they are left"
        " (`holdfast worker --accept-partial`)",
    )
    standbys: int = setting(1, "standby replicas of each table partition", low=0, high=100)
    replication_factor: int = setting(1, "replicas of each topic that holdfast creates", low=1, high=100)
    coordination_topic: str = setting("__marshal", "coordination topic: claims and heartbeats")
    claim_interval_s: float = setting(
        60.0,
        "heartbeat interval of claims: a claim is free after twice this; equal in the whole fleet",
        low=1,
        high=3_600,
    )
    compat_view: bool = setting(False, "also fold claims as the Go library would, to compare")
    groups: bool = setting(False, "also fold the balanced groups")
    groups_topic: str = setting(
        "holdfast.groups", "topic where members of balanced groups announce themselves"
    )
    ranges: bool = setting(False, "also create the topic of range consumers")
    ranges_topic: str = setting("holdfast.ranges", "topic where range consumers share out blocks of offsets")
    registry: bool = setting(False, "workers keep the registry of producers' names")
    producers_topic: str = setting("holdfast.producers", "topic of the registry's commands")
    books: str = setting("", "stamped topics to keep ledgers of: orders,payments")
    dedupe: str = setting("", "stamped topics to clean, and the clean ones: orders:orders-clean,...")
    progress: str = setting("", "outbox progress topics to keep ledgers of")

    @property
    def claim_stale_after_s(self) -> int:
        """Return the age from which on a claim is free, in whole seconds as all times of the protocol."""
        return int(2 * self.claim_interval_s)

    @property
    def quarantine_topic(self) -> str:
        """Return the topic of records that could not be decoded or folded."""
        return f"{self.app}-quarantine"

    @property
    def skips_topic(self) -> str:
        """Return the topic in which is written what of the sources is skipped."""
        return f"{self.app}-skips"

    @property
    def workers_topic(self) -> str:
        """Return the topic in which workers announce what they serve."""
        return f"{self.app}-workers"

    @property
    def reset_topic(self) -> str:
        """Return the topic that exists while a reset of the application is under way; workers do not start
        then.
        """
        return f"{self.app}-reset"

    @property
    def book_topics(self) -> tuple[str, ...]:
        """Return the topics named in `books`."""
        return names_in(self.books)

    @property
    def progress_topics(self) -> tuple[str, ...]:
        """Return the topics named in `progress`."""
        return names_in(self.progress)

    @property
    def dedupe_topics(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of source and clean topic named in `dedupe`."""
        pairs = (pair.partition(":") for pair in names_in(self.dedupe))
        return tuple((source.strip(), clean.strip()) for source, _, clean in pairs)

    def problems(self) -> Iterator[str]:
        if not _APP.fullmatch(self.app):
            yield (
                f"{self.place('app')} is {self.app!r:.200}; use 1 to 100 letters, digits, '.', '_' or '-': "
                "it becomes part of topic names"
            )
        yield from self.one_of("switch_versions", "caught-up", "command")
        if not is_topic(self.coordination_topic):
            yield (
                f"{self.place('coordination_topic')} is {self.coordination_topic!r:.300}, "
                "which is not a valid Kafka topic name"
            )
        for name, topics in self._topics_of().items():
            form = "write source:clean pairs" if name == "dedupe" else "write topics"
            yield from (
                f"{self.place(name)}: {topic!r:.300} is not a valid Kafka topic name; {form}, separated by"
                " commas"
                for topic in topics
                if not is_topic(topic)
            )
        if self.instance_id is not None and not _INSTANCE.fullmatch(self.instance_id):
            yield (
                f"{self.place('instance_id')} is {self.instance_id!r:.300}; "
                "use 1 to 249 letters, digits, '.', '_' or '-'"
            )
        if 2 * self.claim_interval_s % 1:
            yield (
                f"{self.place('claim_interval_s')} is {self.claim_interval_s:g}: use steps of 0.5, "
                "since a claim is free after twice that, in whole seconds"
            )

    def _topics_of(self) -> dict[str, tuple[str, ...]]:
        return {
            "producers_topic": (self.producers_topic,),
            "groups_topic": (self.groups_topic,),
            "ranges_topic": (self.ranges_topic,),
            "books": self.book_topics,
            "progress": self.progress_topics,
            "dedupe": tuple(name for pair in self.dedupe_topics for name in pair),
        }
