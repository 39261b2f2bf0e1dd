"""Gathering what the derived tables of a lake tell of a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.pipeline.derived.claim_intervals import INTERVALS
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS
from holdfast.pipeline.derived.derive import TABLES, derived_path
from holdfast.pipeline.derived.group_moves import MOVES
from holdfast.pipeline.derived.outbox_latency import LATENCY
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES
from holdfast.pipeline.derived.quarantine_events import QUARANTINE
from holdfast.pipeline.histories.fold_tables import is_table
from holdfast.pipeline.reporting.slices import DerivedRow, SliceEngine, TimeSlice, in_order, slice_reader
from holdfast.pipeline.spark.session import SparkOptions

TIMES: Mapping[str, tuple[str, str]] = {
    INTERVALS: ("held_from", "held_until"),
    TAKEOVERS: ("taken", "taken"),
    MOVES: ("at", "at"),
    LATENCY: ("minute", "minute"),
    ANOMALIES: ("at", "at"),
    QUARANTINE: ("at", "at"),
}
"""By which columns the rows of a table begin and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What to report: *lake* from *from_ms* on and before *to_ms*; *engine* reads the tables."""

    lake: str
    from_ms: int
    to_ms: int
    engine: SliceEngine = "local"
    spark: SparkOptions = field(default_factory=SparkOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTime:
    """What the tables tell of a time: the rows of each by its name, without those that were never derived."""

    from_ms: int
    to_ms: int
    tables: Mapping[str, list[DerivedRow]]


def report(settings: Settings, options: ReportOptions) -> ReportedTime:
    """Read what the derived tables tell of a time; rows of tables by topic tell their topic in `of_topic`.

    ConfigError for a time that ends before it begins, or a lake without derived tables.
    """
    if options.to_ms <= options.from_ms:
        raise ConfigError("--from is not before --to: a report needs a time to look at")
    paths = {
        (name, table.topic): derived_path(options.lake, table.path)
        for name, make in TABLES.items()
        for table in make(settings)
    }
    there = {key: path for key, path in paths.items() if is_table(path)}
    if not there:
        raise ConfigError(
            f"{options.lake} has no derived tables: make them first (`holdfast pipeline derive --lake {options.lake}`)"
        )
    tables: dict[str, list[DerivedRow]] = {}
    with slice_reader(options.engine, options.spark) as read:
        for (name, topic), path in there.items():
            rows = read(path, TimeSlice(*TIMES[name], options.from_ms, options.to_ms))
            tables.setdefault(name, []).extend({**row, "of_topic": topic} for row in rows)
    ordered = {
        name: in_order(rows, TIMES[name][0], *sorted(rows[0] if rows else ()))
        for name, rows in tables.items()
    }
    return ReportedTime(from_ms=options.from_ms, to_ms=options.to_ms, tables=ordered)
