"""Settings of how a worker fetches and batches records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.config.sections.section import GIB, KIB, MIB, Section, setting


@dataclass(frozen=True, kw_only=True)
class FetchingSettings(Section):
    """Sizes of fetches and batches, and what becomes of a batch that cannot be read."""

    linger_ms: int = setting(
        40, "upper bound of the adaptive wait that fills a batch when live", low=0, high=10_000
    )
    source_wait_ms: int = setting(
        5_000,
        "for tables of several sources: how long records wait for a source whose end no broker reports",
        low=0,
        high=600_000,
    )
    origin_idle_ms: int = setting(
        1_000,
        "how long a source partition of a step stays at the end of its log before it holds back no windows"
        " and joins behind the step",
        low=10,
        high=86_400_000,
    )
    trim_internal: bool = setting(
        False, "delete records of internal topics once every reader has folded them"
    )
    fetch_records: int = setting(200_000, "largest fetch, in records", low=1, high=1_000_000)
    fetch_bytes: int = setting(8 * MIB, "largest fetch, in bytes; 8MiB is understood", low=64 * KIB, high=GIB)
    inflight_bytes: int = setting(
        64 * MIB,
        "fetched and not yet applied, per worker; no transaction is larger",
        low=64 * KIB,
        high=16 * GIB,
    )
    unpacked_batch_bytes: int = setting(
        64 * MIB,
        "largest batch of a source once unpacked; a partition stops before a larger one",
        low=MIB,
        high=GIB,
    )
    unreadable: str = setting(
        "halt",
        "a batch of a source that cannot be read stops its partition (halt), or is skipped and noted"
        " (quarantine)",
    )

    def problems(self) -> Iterator[str]:
        yield from self.at_most("fetch_bytes", "inflight_bytes", "one fetch must fit")
        yield from self.one_of("unreadable", "halt", "quarantine")
