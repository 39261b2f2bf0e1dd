"""Questions to workers: one request about one partition of a table, or about a global table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.clients.tables.directory import Workers
from holdfast.core.engine.declared.processor import Processor, table_name
from holdfast.core.engine.query_wire import AtOffset, Reply, Staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request about one partition of one table, and the terms of its answer. *table* is "" for the
    processor's own.
    """

    processor: Processor[Any, Any]
    partition: int
    verb: str
    table: str = ""
    body: bytes
    at_offset: AtOffset | None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics that *at_offset* is of, as far as they are known."""
    staleness: Staleness | None

    def __str__(self) -> str:
        return f"{table_name(self.processor, self.table)}/{self.partition}"

    @property
    def path(self) -> str:
        """Return the path of its endpoint."""
        return f"/tables/{table_name(self.processor, self.table)}/{self.partition}/{self.verb}"

    @property
    def terms(self) -> list[str]:
        """Return the terms in its URL."""
        stale = [] if self.staleness is None else [f"stale-ok={self.staleness}"]
        return [f"version={self.processor.version}", *stale]

    @property
    def offsets(self) -> str | None:
        """Return the offsets to be reflected as a URL has them; None for any."""
        if self.at_offset is None or isinstance(self.at_offset, int):
            return None if self.at_offset is None else str(self.at_offset)
        return ",".join(f"{topic}:{offset}" for topic, offset in self.at_offset.items())

    def candidates(self, workers: Workers) -> list[str]:
        """Return the URLs of the workers that may answer, the likeliest first."""
        name, version = self.processor.name, self.processor.version
        urls = list(workers.claimants(name, version, self.partition))
        if self.staleness is None:
            return urls
        # An older claim is worth a question where only the owner may answer; where others may, the first
        # of them is nearer the truth.
        return urls[:1] + [url for url in self._standbys(workers) if url not in urls] + urls[1:]

    def besides(self, urls: list[str], workers: Workers) -> list[str]:
        """Return the workers of *urls* that are still worth a question when one has said that it cannot
        answer yet: the substitutes.
        """
        standbys = self._standbys(workers)
        return [url for url in urls if url in standbys]

    def _standbys(self, workers: Workers) -> list[str]:
        if self.staleness is None:
            return []
        return workers.standbys(self.processor.name, self.processor.version, self.partition)

    def why_other(self, reply: Reply) -> str | None:
        """Return why a reply is of another table; None when it is not."""
        if reply.version == self.processor.version:
            return None
        return f"serves {self.processor.name} in version {reply.version}, not {self.processor.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalQuestion:
    """One request about a global table. Any worker may answer it from its copy; *first* says with which of
    them to begin.
    """

    table: str
    verb: str
    body: bytes
    at_offset: Mapping[int, int] | None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    first: int = 0
    processor: None = None
    staleness: None = None

    def __str__(self) -> str:
        return f"global table {self.table}"

    @property
    def path(self) -> str:
        """Return the path of its endpoint."""
        return f"/globals/{self.table}/{self.verb}"

    @property
    def terms(self) -> list[str]:
        """Return the terms in its URL: none."""
        return []

    @property
    def offsets(self) -> str | None:
        """Return the offsets to be reflected, by partition, as a URL has them; None for any."""
        if not self.at_offset:
            return None
        return ",".join(f"{partition}:{offset}" for partition, offset in self.at_offset.items())

    def candidates(self, workers: Workers) -> list[str]:
        """Return the URLs of all workers, in turn for each question."""
        urls = sorted(workers.urls)
        at = self.first % len(urls) if urls else 0
        return urls[at:] + urls[:at]

    def besides(self, urls: list[str], workers: Workers) -> list[str]:
        """Return which of *urls* are worth a question when a worker has said that it cannot answer yet:
        all.
        """
        return urls

    def why_other(self, reply: Any) -> str | None:
        """Return why a reply is of another table; None when it is not."""
        return None if reply.table == self.table else f"answered for {reply.table[:80]!r}"


AnyQuestion: TypeAlias = Question | GlobalQuestion
