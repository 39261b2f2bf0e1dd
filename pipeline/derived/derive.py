"""Updates derived tables from the landed data: the folds of `holdfast pipeline fold`, each with an output
table in addition to its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.derived.claim_intervals import INTERVALS, claim_intervals
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS, claim_takeovers
from holdfast.pipeline.derived.group_moves import MOVES, group_moves
from holdfast.pipeline.derived.lag_by_minute import BY_MINUTE, LagTable
from holdfast.pipeline.derived.lag_join import join_lag
from holdfast.pipeline.derived.lag_tables import COMMITS, ENDS, lag_commits, lag_ends
from holdfast.pipeline.derived.outbox_latency import LATENCY, outbox_latency
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES, producer_anomalies
from holdfast.pipeline.derived.quarantine_events import QUARANTINE, quarantine_events
from holdfast.pipeline.derived.table import ROWS, DerivedOutput, DerivedTable
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport, fold
from holdfast.pipeline.histories.fold_tables import is_table

AnyTable: TypeAlias = DerivedTable | LagTable


def _anomalies(settings: Settings, topics: Sequence[str]) -> list[DerivedTable]:
    return [producer_anomalies(topic) for topic in settings.book_topics]


def _latencies(settings: Settings, topics: Sequence[str]) -> list[DerivedTable]:
    return [outbox_latency(topic) for topic in settings.progress_topics]


def _ends(settings: Settings, topics: Sequence[str]) -> list[DerivedTable]:
    return [lag_ends(topic) for topic in topics]


def _by_minute(settings: Settings, topics: Sequence[str]) -> list[LagTable]:
    return [LagTable(topic=topic) for topic in topics]


TABLES: Mapping[str, Callable[[Settings, Sequence[str]], Sequence[AnyTable]]] = {
    INTERVALS: lambda settings, topics: [claim_intervals(settings)],
    TAKEOVERS: lambda settings, topics: [claim_takeovers(settings)],
    COMMITS: lambda settings, topics: [lag_commits()],
    ENDS: _ends,
    BY_MINUTE: _by_minute,
    MOVES: lambda settings, topics: [group_moves()],
    LATENCY: _latencies,
    ANOMALIES: _anomalies,
    QUARANTINE: lambda settings, topics: [quarantine_events(settings)],
}
"""The tables that can be derived, by name: one, or one for each topic. They are made of the settings, and
those of lag of topics that are named; a table comes after those that it is joined of.
"""
_NAMED_BY = {
    ENDS: "name them: --topics orders,payments",
    BY_MINUTE: "name them: --topics orders,payments",
    LATENCY: "name them in the setting progress: --set progress=shop.progress",
    ANOMALIES: "name them in the setting books: --set books=orders,payments",
}


def derived_folder(lake: str, path: str) -> str:
    """Return the folder of a derived table, with the state that it continues from; *path* is its
    `DerivedTable.path`.

    >>> derived_folder("/lake/", "claims.intervals")
    '/lake/derived/claims.intervals'
    """
    return f"{lake.rstrip('/')}/derived/{path}"


def derived_path(lake: str, path: str) -> str:
    """Return the path of the rows of a derived table.

    >>> derived_path("/lake", "claims.intervals")
    '/lake/derived/claims.intervals/rows'
    """
    return f"{derived_folder(lake, path)}/{ROWS}"


def derived_columns(name: str, topic: str = "") -> pa.Schema:
    """Return the columns of a derived table, of *topic* where there is one for each: for readers who find
    that it was not made.
    """
    table, *_ = tables_named(name, Settings(books=topic, progress=topic), [topic])
    own = {field.name for field in table.schema}
    shared = [("partition", pa.int32()), ("is_current", pa.bool_())]
    return pa.schema([*(each for each in shared if each[0] not in own), *table.schema])


def tables_named(name: str, settings: Settings, topics: Sequence[str] = ()) -> Sequence[AnyTable]:
    """Return the tables of a name, of those of lag the ones of *topics*; ConfigError where there are none."""
    made = TABLES.get(name)
    if made is None:
        raise ConfigError(f"there is no derived table {name!r:.200}; there are {', '.join(TABLES)}")
    found = made(settings, topics)
    if not found:
        raise ConfigError(f"{name} has a table for each of some topics: {_NAMED_BY[name]}")
    return found


def tables_to_derive(
    names: Sequence[str], lake: str, settings: Settings, topics: Sequence[str] = ()
) -> list[AnyTable]:
    """Return the tables of *names*, by default those whose topics were landed: each once, and after those
    that it is joined of.

    ConfigError for a name of none, or a lake in which no topic of any was landed.
    """
    if not names:
        return _landed(lake, settings, topics)
    wanted = dict.fromkeys(
        each for name in names for each in ((COMMITS, ENDS, name) if name == BY_MINUTE else (name,))
    )
    return [table for name in wanted for table in tables_named(name, settings, topics)]


def _landed(lake: str, settings: Settings, topics: Sequence[str]) -> list[AnyTable]:
    every = [table for make in TABLES.values() for table in make(settings, topics)]
    there = {
        topic: is_table(bronze_path(lake, topic))
        for topic in dict.fromkeys(each for table in every for each in table.sources)
    }
    found = [table for table in every if all(there[topic] for topic in table.sources)]
    if not found:
        raise ConfigError(
            f"{lake} holds none of the topics that tables are derived from: land them first (`holdfast"
            f" pipeline land --topics TOPIC`): {', '.join(there)}"
        )
    return found


def derive(table: AnyTable, settings: Settings, options: FoldOptions) -> FoldReport:
    """Take the data landed since the last time into a derived table; both engines write the same rows.
    `lag.by_minute` is joined of the tables derived of both its logs.

    Raises what `fold` does: LakeError where the topic was never landed or something else has changed the
    tables, ConfigError for tables of other settings.
    """
    if isinstance(table, LagTable):
        return join_lag(table, settings, options, lag_paths(options.lake, table))
    into = options.into or derived_folder(options.lake, table.path)
    return fold(table.processor, settings, replace(options, into=into), output=DerivedOutput(table))


def lag_paths(lake: str, table: LagTable) -> dict[str, str]:
    """Return the paths of `lag.by_minute` of a topic and of the two tables that it is joined of."""
    return {
        BY_MINUTE: derived_path(lake, table.path),
        COMMITS: derived_path(lake, COMMITS),
        ENDS: derived_path(lake, lag_ends(table.topic).path),
    }
