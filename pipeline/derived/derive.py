"""Bringing derived tables up to what was landed: the folds of `holdfast pipeline fold`, each with its own table beside the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.derived.claim_intervals import INTERVALS, claim_intervals
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS, claim_takeovers
from holdfast.pipeline.derived.group_moves import MOVES, group_moves
from holdfast.pipeline.derived.outbox_latency import LATENCY, outbox_latency
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES, producer_anomalies
from holdfast.pipeline.derived.quarantine_events import QUARANTINE, quarantine_events
from holdfast.pipeline.derived.table import ROWS, DerivedOutput, DerivedTable
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport, fold
from holdfast.pipeline.histories.fold_tables import is_table


def _anomalies(settings: Settings) -> list[DerivedTable]:
    return [producer_anomalies(topic) for topic in settings.book_topics]


def _latencies(settings: Settings) -> list[DerivedTable]:
    return [outbox_latency(topic) for topic in settings.progress_topics]


TABLES: Mapping[str, Callable[[Settings], Sequence[DerivedTable]]] = {
    INTERVALS: lambda settings: [claim_intervals(settings)],
    TAKEOVERS: lambda settings: [claim_takeovers(settings)],
    MOVES: lambda settings: [group_moves(settings)],
    LATENCY: _latencies,
    ANOMALIES: _anomalies,
    QUARANTINE: lambda settings: [quarantine_events(settings)],
}
"""The tables that can be derived, by name: one, or one for each topic."""
_NAMED_BY = {
    LATENCY: "progress (--set progress=shop.progress)",
    ANOMALIES: "books (--set books=orders,payments)",
}


def derived_folder(lake: str, path: str) -> str:
    """Return where a derived table lies, with the state that it goes on from; *path* is its `DerivedTable.path`.

    >>> derived_folder("/lake/", "claims.intervals")
    '/lake/derived/claims.intervals'
    """
    return f"{lake.rstrip('/')}/derived/{path}"


def derived_path(lake: str, path: str) -> str:
    """Return where the rows of a derived table lie.

    >>> derived_path("/lake", "claims.intervals")
    '/lake/derived/claims.intervals/rows'
    """
    return f"{derived_folder(lake, path)}/{ROWS}"


def tables_named(name: str, settings: Settings) -> Sequence[DerivedTable]:
    """Return the tables of a name; ConfigError where there are none."""
    made = TABLES.get(name)
    if made is None:
        raise ConfigError(f"there is no derived table {name!r:.200}; there are {', '.join(TABLES)}")
    found = made(settings)
    if not found:
        raise ConfigError(f"{name} is derived of topics that you name in the setting {_NAMED_BY[name]}")
    return found


def landed_tables(lake: str, settings: Settings) -> list[DerivedTable]:
    """Return the tables whose topic was landed; ConfigError where there is none."""
    every = [table for make in TABLES.values() for table in make(settings)]
    found = [table for table in every if is_table(bronze_path(lake, table.topic))]
    if not found:
        topics = ", ".join(dict.fromkeys(table.topic for table in every))
        raise ConfigError(
            f"{lake} holds none of the topics that tables are derived from: land them first (`holdfast pipeline land --topics TOPIC`): {topics}"
        )
    return found


def derive(table: DerivedTable, settings: Settings, options: FoldOptions) -> FoldReport:
    """Take what was landed since the last time into a derived table; both engines write the same rows.

    Raises what `fold` does: LakeError where the topic was never landed or something else has changed the tables, ConfigError for tables of other settings.
    """
    into = options.into or derived_folder(options.lake, table.path)
    return fold(table.processor, settings, replace(options, into=into), output=DerivedOutput(table))
