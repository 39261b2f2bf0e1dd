"""The formulas of docs/capacity.md: what an application of a given load needs. Pure.

Constants are measured by `python -P -m bench.sizing` and `python -P -m bench.fleet_claims`; bench/RESULTS.md
has the runs. They are of small records on an ordinary machine: measure your own fold, and set *fold_us*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from math import ceil

from holdfast.agents.descriptors import needed
from holdfast.agents.faust.rebalancing.telling import LIMIT_TOLD_BYTES
from holdfast.clients.topics.specs import DEFAULT_MESSAGE_BYTES, HOUR_MS
from holdfast.config import Settings
from holdfast.core.engine.linger import SHARE
from holdfast.errors import ConfigError

MEGABYTE = 1_000_000
DAY_S = 86_400
LIMIT = 1e15
"""The limit for every number of a load: so that results stay numbers."""

# Workers (bench.sizing).
BASE_BYTES = 94 * MEGABYTE
PARTITION_BYTES = int(0.7 * MEGABYTE)
DECODED_BYTES = 175
DECODED_FACTOR = 1.0
STORE_FACTOR = 2.4
STORE_BYTES = 30_000
TRANSACTION_S = 0.0005
FOLD_US = 2.4
"""Of a fold that counts (bench.backlog)."""
FULL_CORE = 0.7

# Logs (bench.sizing).
ROW_LOG_BYTES = 10
RECORD_LOG_BYTES = 10
TRANSACTION_LOG_BYTES = 160
COORDINATOR_BYTES = 400
CHOICE_LOG_BYTES = 110
DIRTY_SHARE = 0.1
"""`min.cleanable.dirty.ratio` of changelogs: how much of one may be replaced rows before it is compacted."""

# Claims (bench.fleet_claims).
BEATS = 2.0
FRAME_LOG_BYTES = 165
FRAME_US = 6.5
CLAIM_BYTES = 435

# The group of the workers (bench.fleet_workers).
MEMBER_BYTES = 700
HELD_BYTES = 25
TOLD_BYTES = 2.5


class Unit(StrEnum):
    """The unit of a figure."""

    COUNT = "count"
    CORES = "cores"
    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    PER_S = "1/s"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of an application. Rates and *keys* are of the whole application, sizes in bytes.

    *record_bytes* and *row_bytes* are of key and value together. *changes* is how many rows a record changes,
    *emits* how many records it sends. *retention_s* is how long the sources are kept, None for forever: then
    disk of sources is given for a day.
    """

    partitions: int
    workers: int = 1
    records_per_s: float = 1_000.0
    record_bytes: int = 100
    keys: int = 100_000
    row_bytes: int = 100
    sources: int = 1
    changes: float = 1.0
    emits: float = 0.0
    emit_bytes: int = 100
    retention_s: float | None = None
    brokers: int = 3
    fold_us: float = FOLD_US
    claim_members: int = 0
    claim_partitions: int = 0

    def __post_init__(self) -> None:
        for name in ("partitions", "workers", "brokers", "sources"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it is at least 1")
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not 0 <= value <= LIMIT:  # no number is in no range either
                raise ConfigError(f"{each.name} is {value}: write a number from 0 to {LIMIT:.0e}")
        if bool(self.claim_members) != bool(self.claim_partitions):
            raise ConfigError(
                "claim_members and claim_partitions belong together: tell how many members share how many"
                " partitions, or neither"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the answer: for the busiest worker (of claims: a member), and for all or the cluster; *how*
    is the formula, *share* how much of a known limit is used.
    """

    figure: str
    unit: Unit
    each: float | None
    all: float | None
    how: str
    share: float | None = None
    limit: str = ""


def capacity(load: Load, settings: Settings) -> list[Figure]:
    """Return all figures of *load* with the settings that matter: standbys, replicas, caches, intervals."""
    return [*_Capacity(load, settings).figures()]


class _Capacity:
    """One load, and what several formulas share."""

    def __init__(self, load: Load, settings: Settings) -> None:
        self._load, self._settings = load, settings
        self._standbys = min(settings.standbys, load.workers - 1)
        self._owned = ceil(load.partitions / load.workers)
        self._held = self._owned + ceil(load.partitions * self._standbys / load.workers)
        self._share = self._owned / load.partitions
        self._transactions_per_s = min(load.records_per_s * self._share, SHARE / TRANSACTION_S)
        """Of the busiest worker, at most: with fewer records each is one of its own, with many they are
        gathered.
        """

    def figures(self) -> Iterator[Figure]:
        yield from self._of_workers()
        yield from self._of_logs()
        yield from self._of_brokers()
        if self._load.claim_members:
            yield from self._of_claims()

    # -- workers

    def _of_workers(self) -> Iterator[Figure]:
        load, settings = self._load, self._settings
        yield Figure(
            figure="partitions folded",
            unit=Unit.COUNT,
            each=self._owned,
            all=load.partitions,
            how="partitions / workers, rounded up",
        )
        yield Figure(
            figure="partitions held",
            unit=Unit.COUNT,
            each=self._held,
            all=load.partitions * (1 + self._standbys),
            how=f"with {self._standbys} standby of each",
        )
        busy = load.records_per_s * load.fold_us / 1e6
        yield Figure(
            figure="processor for records",
            unit=Unit.CORES,
            each=busy * self._share,
            all=busy,
            how=f"records/s x {load.fold_us:g} us",
            share=busy * self._share / FULL_CORE,
            limit=f"{FULL_CORE:g} of a core: a worker has one",
        )
        yield Figure(
            figure="processor for being quick",
            unit=Unit.CORES,
            each=min(SHARE, self._transactions_per_s * TRANSACTION_S),
            all=None,
            how=f"{TRANSACTION_S * 1e3:g} ms a transaction, {SHARE:g} of a core at most",
        )
        yield self._memory()
        yield self._disk()
        yield Figure(
            figure="open files",
            unit=Unit.COUNT,
            each=needed(self._held, settings.web_connections) + max(0, self._connections() - 2 * self._owned),
            all=None,
            how="128 + 7 a partition held + web_connections + connections to brokers beyond two a partition",
        )

    def _memory(self) -> Figure:
        load, settings = self._load, self._settings
        rows = min(settings.cache_rows * self._owned, load.keys * self._share)
        decoded = int(rows * (DECODED_BYTES + DECODED_FACTOR * load.row_bytes))
        shared = settings.store_cache_bytes + settings.store_write_buffer_bytes
        fetched = settings.inflight_bytes + 3 * settings.fetch_bytes
        each = BASE_BYTES + self._held * PARTITION_BYTES + shared + fetched + decoded
        return Figure(
            figure="memory, at most",
            unit=Unit.BYTES,
            each=each,
            all=each * load.workers,
            how=(
                f"{BASE_BYTES // MEGABYTE} MB + {PARTITION_BYTES / MEGABYTE:g} MB a partition held + caches"
                f" and buffers of the settings + {DECODED_BYTES} B and its size for each of {rows:,.0f}"
                " decoded rows"
            ),
        )

    def _disk(self) -> Figure:
        load = self._load
        rows = load.keys * self._held / load.partitions
        each = int(rows * (load.row_bytes + 1) * STORE_FACTOR) + self._held * STORE_BYTES
        return Figure(
            figure="disk of stores, at most",
            unit=Unit.BYTES,
            each=each,
            all=int(load.keys * (1 + self._standbys) * (load.row_bytes + 1) * STORE_FACTOR)
            + load.partitions * (1 + self._standbys) * STORE_BYTES,
            how=f"rows held x (row + 1) x {STORE_FACTOR:g} + {STORE_BYTES / 1000:g} kB a partition held",
        )

    def _connections(self) -> int:
        """Return the connections of the busiest worker's writers: each has its own to the coordinator, and to
        every leader that it writes to.
        """
        load = self._load
        leaders = load.brokers if load.emits else 1
        return self._owned * min(load.brokers, 1 + leaders)

    # -- logs

    def _of_logs(self) -> Iterator[Figure]:
        load, replicas = self._load, self._settings.replication_factor
        per_s = self._transactions_per_s
        rows_per_s = load.records_per_s * load.changes
        transactions = min(load.records_per_s, per_s * load.workers)
        yield Figure(
            figure="transactions, at most",
            unit=Unit.PER_S,
            each=per_s,
            all=transactions,
            how="the least of records/s and what the share of a core allows",
        )
        written = rows_per_s * (load.row_bytes + 1 + ROW_LOG_BYTES) + transactions * TRANSACTION_LOG_BYTES
        yield Figure(
            figure="written to changelogs, at most",
            unit=Unit.BYTES_PER_S,
            each=written * self._share,
            all=written,
            how=(
                f"changed rows/s x (row + {1 + ROW_LOG_BYTES} B) + {TRANSACTION_LOG_BYTES} B a transaction; x"
                f" {replicas} replicas on brokers, read by {self._standbys} standby of each"
            ),
        )
        if load.sources > 1:
            yield Figure(
                figure="written as choices, at most",
                unit=Unit.BYTES_PER_S,
                each=per_s * CHOICE_LOG_BYTES,
                all=transactions * CHOICE_LOG_BYTES,
                how=(
                    f"{CHOICE_LOG_BYTES} B for each transaction that needs one, kept for ever; most need none"
                ),
            )
        if load.emits:
            emitted = load.records_per_s * load.emits * (load.emit_bytes + RECORD_LOG_BYTES)
            yield Figure(
                figure="emitted",
                unit=Unit.BYTES_PER_S,
                each=emitted * self._share,
                all=emitted,
                how=f"records/s x emits x (size + {RECORD_LOG_BYTES} B)",
            )
        yield Figure(
            figure="written by the transactions' coordinators",
            unit=Unit.BYTES_PER_S,
            each=None,
            all=transactions * COORDINATOR_BYTES,
            how=f"{COORDINATOR_BYTES} B a transaction, x replicas of __transaction_state",
        )

    def _of_brokers(self) -> Iterator[Figure]:
        load, replicas = self._load, self._settings.replication_factor
        kept_s = DAY_S if load.retention_s is None else load.retention_s
        source = int(load.records_per_s * kept_s * (load.record_bytes + RECORD_LOG_BYTES))
        told = (
            "a day, and each day again: retention is for ever"
            if load.retention_s is None
            else f"{kept_s:,.0f} s"
        )
        yield Figure(
            figure="disk of sources",
            unit=Unit.BYTES,
            each=None,
            all=source * replicas,
            how=(
                f"records/s x (size + {RECORD_LOG_BYTES} B) x {told} x {replicas} replicas, before"
                " compression"
            ),
        )
        row = load.row_bytes + 1 + ROW_LOG_BYTES
        hour = load.records_per_s * load.changes * row * HOUR_MS / 1000
        yield Figure(
            figure="disk of changelogs, at most",
            unit=Unit.BYTES,
            each=None,
            all=int((load.keys * row / (1 - DIRTY_SHARE) + hour) * replicas),
            how=(
                f"(keys x (row + {1 + ROW_LOG_BYTES} B) / {1 - DIRTY_SHARE:g} + an hour of changes, the"
                f" segment that is not compacted) x {replicas} replicas"
            ),
        )
        yield Figure(
            figure="connections to brokers",
            unit=Unit.COUNT,
            each=self._connections(),
            all=self._connections() * load.workers,
            how=(
                "of the writers of partitions folded: coordinator, leader of the changelog, and leaders of"
                " what is emitted"
            ),
        )
        held = load.partitions * (1 + self._standbys)
        others = min(LIMIT_TOLD_BYTES, load.workers * load.partitions * TOLD_BYTES)
        group = load.workers * MEMBER_BYTES + held * HELD_BYTES + others
        yield Figure(
            figure="the broker's record of the group",
            unit=Unit.BYTES,
            each=None,
            all=group,
            how=(
                f"{MEMBER_BYTES} B a worker + {HELD_BYTES} B a partition held + what members are told of"
                f" others, {LIMIT_TOLD_BYTES // 1000} kB at most"
            ),
            share=group / DEFAULT_MESSAGE_BYTES,
            limit="max.message.bytes of __consumer_offsets, which brokers can raise",
        )

    # -- claims

    def _of_claims(self) -> Iterator[Figure]:
        load, interval_s = self._load, self._settings.claim_interval_s
        frames = BEATS * load.claim_partitions / interval_s
        yield Figure(
            figure="frames of claims",
            unit=Unit.PER_S,
            each=frames / load.claim_members,
            all=frames,
            how=f"{BEATS:g} a partition and interval of {interval_s:g} s",
        )
        yield Figure(
            figure="read by claim members",
            unit=Unit.BYTES_PER_S,
            each=frames * FRAME_LOG_BYTES,
            all=frames * FRAME_LOG_BYTES * load.claim_members,
            how=(
                f"each member reads all frames of its topics' coordination partition, {FRAME_LOG_BYTES} B"
                " each"
            ),
        )
        yield Figure(
            figure="processor of a claim member",
            unit=Unit.CORES,
            each=frames * FRAME_US / 1e6,
            all=frames * FRAME_US / 1e6 * load.claim_members,
            how=f"{FRAME_US:g} us a frame",
        )
        yield Figure(
            figure="memory of a claim member",
            unit=Unit.BYTES,
            each=load.claim_partitions * CLAIM_BYTES,
            all=load.claim_partitions * CLAIM_BYTES * load.claim_members,
            how=f"{CLAIM_BYTES} B a claim of its group",
        )
