"""The outbox of a service at one moment: its waiting rows, its leaders, the quarantined rows, and how long
rows wait until they are committed.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.console.watching.findings import HealthFinding, Urgency
from holdfast.core.outbox.created_times import rank_of, read_created
from holdfast.errors import BrokerError, ConfigError, DecodeError, HoldfastError
from holdfast.kafka.clients import reader_options
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.log_reader import reading

if TYPE_CHECKING:
    from holdfast.outbox.harvest.table.row_types import QuarantinedRow
    from holdfast.outbox.settings import HarvestSettings

logger = logging.getLogger(__name__)

LIMIT_ROWS = 100
WAITS_EVERY_S = 10.0
WAITS_MS = 600_000
"""Latency is of the rows that were committed within so long."""
LIMIT_OFFSETS = 500
"""So many offsets of each shard's progress are read, from the end back; a transaction takes three or more."""
TIMEOUT_S = 5.0
LONG_MS = 60_000
"""A row that waits for so long waits for something: harvesters look several times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWaits:
    """The times that rows of a shard waited from their creation to the progress record that their transaction
    commits, in ms; *last_ms* is the last such record.
    """

    shard: int
    rows: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    longest_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPicture:
    """The outbox at one moment; *oldest_age_ms* is how long its first row waits. *leases* are (shard, leader,
    epoch, when).

    *waits_trouble* is why *waits* are not known.
    """

    waiting: int
    oldest_age_ms: int | None
    failing: int
    quarantined: int
    leases: Sequence[tuple[int, str, int, int]]
    rows: Sequence[QuarantinedRow]
    waits: Sequence[ShardWaits]
    waits_trouble: str | None
    stops: Sequence[tuple[int, str]] = ()
    """Shards that are not published until they are resumed, and why."""


class OutboxLooks:
    """Looks at the database, and now and then at the harvesters' progress. Calls block, one at a time."""

    def __init__(self, settings: Settings, clock: Clock = system_clock) -> None:
        self._settings, self._clock = settings, clock
        self._waits: tuple[float, Sequence[ShardWaits], str | None] | None = None

    def look(self) -> OutboxPicture:
        """Return the outbox as it is now; HoldfastError where it cannot be read."""
        try:
            from holdfast.outbox.harvest.table.rows import OutboxRows
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error}; pip install 'holdfast[outbox]'") from None

        settings = self._settings
        assert settings.outbox_database is not None
        with OutboxRows(
            settings.outbox_database, table=settings.outbox_table, layout=settings.outbox_layout
        ) as rows:
            status, aside = rows.status(), rows.quarantined(LIMIT_ROWS)
        oldest_ms = status.oldest_created_ms
        waits, trouble = self._recent_waits()
        return OutboxPicture(
            waiting=status.waiting,
            oldest_age_ms=None if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms),
            failing=status.failing,
            quarantined=status.quarantined,
            leases=[(each.shard, each.leader, each.epoch, each.updated_ms) for each in status.leases],
            rows=aside,
            waits=waits,
            waits_trouble=trouble,
            stops=[(each.shard, each.why) for each in status.stops],
        )

    def _recent_waits(self) -> tuple[Sequence[ShardWaits], str | None]:
        from holdfast.outbox.settings import Strategy, harvest_settings

        now_s = self._clock.monotonic_s()
        if self._waits is not None and now_s - self._waits[0] < WAITS_EVERY_S:
            return self._waits[1:]
        found, trouble = list[ShardWaits](), None
        try:
            harvest = harvest_settings(self._settings)
            if harvest.strategy is Strategy.MARK:
                trouble = "strategy mark notes no times: see holdfast_outbox_publish_latency_seconds"
            else:
                found = recent_waits(harvest, since_ms=self._clock.now_ms() - WAITS_MS, clock=self._clock)
        except HoldfastError as error:
            trouble = str(error)
        self._waits = now_s, found, trouble
        return found, trouble


def recent_waits(harvest: HarvestSettings, *, since_ms: int, clock: Clock = system_clock) -> list[ShardWaits]:
    """Return how long the rows waited that were committed since *since_ms*, by shard; none of a shard that
    published none.

    BrokerError where the progress topic cannot be read to its end in time.
    """
    topic, settings = harvest.progress_topic, harvest.kafka
    options = reader_options(f"{settings.app}-console-outbox", committed=True, wait_ms=10)
    waited: Mapping[int, Counter[int]] = defaultdict(Counter)
    last_ms: dict[int, int] = {}
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    with reading(settings, topic, settings.consumer(**options), logger=logger, clock=clock) as reader:
        listed = reader.consumer.list_topics(topic, timeout=TIMEOUT_S).topics.get(topic)
        if listed is None or not listed.partitions:
            raise BrokerError(
                f"topic {topic} does not exist: no harvester has run, or outbox_name is another"
            )
        starts = {}
        for shard in sorted(listed.partitions):
            first, end = log_bounds(reader.consumer, (topic, shard), TIMEOUT_S, clock=clock)
            starts[topic, shard] = max(first, end - LIMIT_OFFSETS)
        reader.assign(starts)
        for message in reader.until(lambda: reader.ended.keys() == starts.keys(), deadline_s=deadline_s):
            shard, sent_ms = message.partition() or 0, message.timestamp()[1]
            if sent_ms < since_ms:
                continue
            for created_ms, rows in _created(message.headers() or ()):
                waited[shard][max(0, sent_ms - created_ms)] += rows
                last_ms[shard] = sent_ms
    return [_waits(shard, sorted(waited[shard].items()), last_ms[shard]) for shard in sorted(waited)]


def _created(headers: object) -> list[tuple[int, int]]:
    try:
        return read_created(tuple(headers))  # type: ignore[arg-type]
    except DecodeError:
        return []  # a stranger's record is no row's time; harvesters report its fault


def _waits(shard: int, ordered: Sequence[tuple[int, int]], last_ms: int) -> ShardWaits:
    return ShardWaits(
        shard=shard,
        rows=sum(count for _, count in ordered),
        p50_ms=rank_of(ordered, 50),
        p95_ms=rank_of(ordered, 95),
        p99_ms=rank_of(ordered, 99),
        longest_ms=ordered[-1][0],
        last_ms=last_ms,
    )


def judge_outbox(found: OutboxPicture) -> Iterator[HealthFinding]:
    """Yield the faults of an outbox."""
    for shard, why in found.stops:
        yield HealthFinding(
            urgency=Urgency.CRITICAL,
            what=f"shard {shard} of the outbox is stopped: {why}",
            cure="`holdfast outbox resume` has it published again once the database does what it reports.",
            page="/outbox",
        )
    if found.oldest_age_ms is not None and found.oldest_age_ms >= LONG_MS:
        yield HealthFinding(
            urgency=Urgency.CRITICAL,
            what=(
                f"{found.waiting:,} rows of the outbox wait, the first for {found.oldest_age_ms // 1000:,} s"
            ),
            cure=(
                "`holdfast outbox harvesters` asks who leads; if nobody does, start `holdfast outbox"
                " harvest`."
            ),
            page="/outbox",
        )
    if found.failing:
        yield HealthFinding(
            urgency=Urgency.WARNING,
            what=f"{found.failing:,} rows of the outbox have failed, and are tried again",
            cure=(
                "`holdfast outbox harvesters` tells the last error; `holdfast outbox flush` tries them at"
                " once."
            ),
            page="/outbox",
        )
    if found.quarantined:
        yield HealthFinding(
            urgency=Urgency.WARNING,
            what=f"{found.quarantined:,} rows of the outbox are set aside",
            cure="Each has its reason; `holdfast outbox quarantine` sends them again or discards them.",
            page="/outbox",
        )
