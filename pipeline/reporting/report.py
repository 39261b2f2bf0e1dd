"""Gathers the rows of a lake's derived tables for a period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.pipeline.derived.claim_intervals import INTERVALS
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS
from holdfast.pipeline.derived.derive import TABLES, derived_path
from holdfast.pipeline.derived.group_moves import MOVES
from holdfast.pipeline.derived.lag_by_minute import BY_MINUTE
from holdfast.pipeline.derived.lag_tables import COMMITS
from holdfast.pipeline.derived.outbox_latency import LATENCY
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES
from holdfast.pipeline.derived.quarantine_events import QUARANTINE
from holdfast.pipeline.histories.fold_tables import is_table
from holdfast.pipeline.reporting.slices import (
    DerivedRow,
    SliceEngine,
    Thinned,
    TimeSlice,
    TooManyRows,
    in_order,
    slice_reader,
)
from holdfast.pipeline.spark.session import SparkOptions

TIMES: Mapping[str, tuple[str, str]] = {
    INTERVALS: ("held_from", "held_until"),
    TAKEOVERS: ("taken", "taken"),
    COMMITS: ("minute", "minute"),
    BY_MINUTE: ("minute", "until"),
    MOVES: ("at", "at"),
    LATENCY: ("minute", "minute"),
    ANOMALIES: ("at", "at"),
    QUARANTINE: ("at", "at"),
}
"""The reported tables, and the columns by which their rows begin and end."""
MINUTE_MS, LAG_PARTS = 60_000, 60
"""Lag is reported at the end of so many parts of the time."""


def lag_part_ms(from_ms: int, to_ms: int) -> int:
    """Return the length of a part at whose end lag is reported: whole minutes.

    >>> lag_part_ms(0, 3_600_000), lag_part_ms(0, 86_400_000)
    (60000, 1440000)
    """
    return max(1, -(-(to_ms - from_ms) // (LAG_PARTS * MINUTE_MS))) * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The subject of a report: *lake* from *from_ms* on and before *to_ms*, lag in *topics*; *engine* reads
    the tables.
    """

    lake: str
    from_ms: int
    to_ms: int
    topics: tuple[str, ...] = ()
    engine: SliceEngine = "local"
    spark: SparkOptions = field(default_factory=SparkOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTime:
    """The rows of the tables in a period: by table name, without tables that were never derived, and those
    with too many rows to be reported: *left_out* has their counts.
    """

    from_ms: int
    to_ms: int
    tables: Mapping[str, list[DerivedRow]]
    left_out: Mapping[str, int] = field(default_factory=dict)


def report(settings: Settings, options: ReportOptions) -> ReportedTime:
    """Read the derived tables for a period; rows of tables by topic have their topic in `of_topic`.

    ConfigError for a time that ends before it begins, or a lake without derived tables.
    """
    if options.to_ms <= options.from_ms:
        raise ConfigError("--from is not before --to: a report needs a time to look at")
    paths = {
        (name, table.topic): derived_path(options.lake, table.path)
        for name in TIMES
        for table in TABLES[name](settings, options.topics)
    }
    there = {key: path for key, path in paths.items() if is_table(path)}
    if not there:
        raise ConfigError(
            f"{options.lake} has no derived tables: make them first (`holdfast pipeline derive --lake"
            f" {options.lake}`)"
        )
    tables: dict[str, list[DerivedRow]] = {}
    left_out = Counter[str]()
    with slice_reader(options.engine, options.spark) as read:
        for (name, topic), path in there.items():
            of = _slice(name, options)
            match read(path, of):
                case TooManyRows(rows):
                    left_out[name] += rows
                case found:
                    rows_of = ({**row, **_until(row, of), "of_topic": topic} for row in found)
                    tables.setdefault(name, []).extend(rows_of)
    ordered = {
        name: in_order(rows, TIMES[name][0], *sorted(rows[0] if rows else ()))
        for name, rows in tables.items()
        if name not in left_out  # of several topics, some alone would be taken for all
    }
    return ReportedTime(from_ms=options.from_ms, to_ms=options.to_ms, tables=ordered, left_out=left_out)


def _slice(name: str, options: ReportOptions) -> TimeSlice:
    thinned = None
    if name == BY_MINUTE:
        part_ms = lag_part_ms(options.from_ms, options.to_ms)
        thinned = Thinned(keys=("group_id", "partition"), values=("lag",), by="minute", part_ms=part_ms)
    elif name == COMMITS:  # for when a group committed last
        keys = ("group_id", "topic", "topic_partition")
        thinned = Thinned(keys=keys, values=(), by="minute", part_ms=options.to_ms - options.from_ms)
    return TimeSlice(*TIMES[name], options.from_ms, options.to_ms, thinned)


def _until(row: DerivedRow, of: TimeSlice) -> DerivedRow:
    """Return, of a row that is the last of its part, the last minute of that."""
    if of.thinned is None:
        return {}
    return {"until_ms": of.from_ms + (row["part"] + 1) * of.thinned.part_ms - MINUTE_MS}
