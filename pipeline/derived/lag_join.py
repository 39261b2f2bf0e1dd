"""Updates `lag.by_minute` from `lag.commits` and `lag.ends`: a commit records up to where both were taken in,
and the rows that are not over are the state.
"""

from __future__ import annotations

import uuid
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyarrow import compute

from holdfast.config import Settings
from holdfast.core.engine.positions import stored_format
from holdfast.errors import LakeError, UnknownCommitError
from holdfast.pipeline.bronze.commits import files_in
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.lake import LAST_TIME_MS, LEAST_TIME_MS, open_table
from holdfast.pipeline.derived.lag_by_minute import (
    BY_MINUTE,
    LagTable,
)
from holdfast.pipeline.derived.lag_parts import NOTHING, LagWork, MinutesFile, drop, minutes_of
from holdfast.pipeline.derived.lag_tables import COMMITS, ENDS, MINUTE_MS, lag_commits, lag_ends
from holdfast.pipeline.derived.table import DerivedTable
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport
from holdfast.pipeline.histories.fold_commit import (
    FoldCommit,
    FoldIdentity,
    PartitionCommit,
    check_identity,
)
from holdfast.pipeline.histories.fold_tables import (
    HISTORY_BY,
    FoldTable,
    is_table,
    last_told,
)
from holdfast.pipeline.histories.partition_fold import PART_SCHEMA, FoldedPart, parts_in
from holdfast.pipeline.run import Engine, ThisProcess, chosen_engine, spark_tasks

PART_ROWS = 1_000_000
"""About so many rows are read at once: partitions are joined in lots of so many, since each lot looks through
the commits of all.
"""


@dataclass(frozen=True, slots=True)
class _Input:
    """One of the two tables as it was read: its files by partition, and what its last fold says of itself."""

    uri: str
    files: Mapping[int, Sequence[MinutesFile]]
    commit: FoldCommit


def join_lag(
    table: LagTable, settings: Settings, options: FoldOptions, paths: Mapping[str, str]
) -> FoldReport:
    """Join the new data of both tables, and return a report; *paths* are the paths of the three tables, by
    name.

    Both engines write the same rows, in one commit. Raises ConfigError for the table of another application,
    LakeError where one of the two was not derived, was put back to an older state, or another run has
    extended the table first: nothing was written then.
    """
    with ExitStack() as opened:
        return _LagJoin(table, settings, options, paths, opened).run()


class _LagJoin:
    def __init__(
        self,
        table: LagTable,
        settings: Settings,
        options: FoldOptions,
        paths: Mapping[str, str],
        opened: ExitStack,
    ) -> None:
        self._lag_table, self._settings, self._options, self._opened = table, settings, options, opened
        self._inputs = {name: _input(name, paths[name]) for name in (COMMITS, ENDS)}
        self._table = FoldTable.open(paths[BY_MINUTE], table.schema, HISTORY_BY)
        self._identity = FoldIdentity(
            app=settings.app, processor="lag-by-minute", version=1, topics=table.sources, code=""
        )
        self._ids = {
            topic: id for each in self._inputs.values() for topic, id in each.commit.topic_ids.items()
        }
        self._before = None if options.rebuild else self._table.last()
        if self._before is not None:
            check_identity(self._table.path, self._before, self._identity, self._ids)
        self._table.widen(table.schema, rebuild=options.rebuild)
        self._was = _known(table, {} if self._before is None else self._before.joined)
        self._now = _known(table, {name: each.commit.partitions for name, each in self._inputs.items()})
        self._check_order()

    def run(self) -> FoldReport:
        report = FoldReport(
            processor="lag-by-minute",
            version=1,
            engine="none",
            state=self._table.path,
            output=self._table.path,
        )
        changed = self._changed()
        if self._before is not None and not changed:
            return report
        work, rows = self._work(changed)
        report.engine, parts = self._joined(work, rows)
        told = FoldCommit(
            batch=uuid.uuid4().hex,
            start="" if self._before is None else self._before.batch,
            identity=self._identity,
            partitions={},
            topic_ids=self._ids,
            joined={name: each.commit.partitions for name, each in self._inputs.items()},
        )
        done = {part.partition for part in parts}
        gone = [
            (file, values)
            for partition, file, values in self._table.files()
            if self._before is None or (partition in done and values["is_current"] == "true")
        ]
        try:
            self._table.commit(told, [file for part in parts for file in part.output], gone)
        except LakeError as error:
            if not isinstance(error, UnknownCommitError):  # else the table may name them
                drop(str(self._table.handle.table_uri), parts)
            raise
        report.commits, report.records = 1, sum(part.records for part in parts)
        report.changes = sum(part.changes for part in parts)
        return report

    def _check_order(self) -> None:
        """Refuse to continue with tables that were put back: rows joined of them are final."""
        for name, known in self._was.items():
            for partition, minute in known.items():
                if self._now[name].get(partition, NOTHING) < minute:
                    raise LakeError(
                        f"{self._inputs[name].uri} partition {partition} was put back, or is being made anew,"
                        f" and does not reach what was joined of it: derive {name} first, or begin anew"
                        " (--rebuild)"
                    )

    def _changed(self) -> list[int]:
        """Return the partitions of the topic that anything is new of."""
        return sorted(self._moved(ENDS) | self._committed_in(self._moved(COMMITS)))

    def _moved(self, name: str) -> set[int]:
        """Return the partitions of one of the logs that were folded further since."""
        noted = {} if self._before is None else self._before.joined.get(name, {})
        now = self._inputs[name].commit.partitions
        return {at for at, each in now.items() if at not in noted or noted[at].position != each.position}

    def _committed_in(self, moved: Iterable[int]) -> set[int]:
        """Return the partitions in which any group has committed since; some may be younger than the landed
        part of the topic.
        """
        found, of, files = set[int](), self._inputs[COMMITS], self._commit_files()
        reader = FileReader(where=of.uri, filesystem=filesystem_of(of.uri))
        for partition in moved:
            known = self._was[COMMITS].get(partition, NOTHING)
            for each in files.get(partition, ()):
                for rows in reader.rows(each.file, ["topic", "topic_partition", "minute"]):
                    some = rows.filter(compute.equal(rows.column("topic"), self._lag_table.topic))
                    places = some.column("topic_partition").to_pylist()
                    found |= {
                        at for at, minute in zip(places, minutes_of(some), strict=True) if minute >= known
                    }
        return found

    def _commit_files(self) -> dict[int, list[MinutesFile]]:
        known = self._was[COMMITS]
        return {
            partition: [each for each in files if each.reaches(known.get(partition, NOTHING))]
            for partition, files in self._inputs[COMMITS].files.items()
        }

    # -- joining

    def _work(self, changed: Sequence[int]) -> tuple[LagWork, int]:
        """Return the work of the join, and about how many rows will be read."""
        commits, ends = self._commit_files(), self._inputs[ENDS].files
        current = defaultdict[int, list[File]](list)
        for partition, file, values in self._table.files():
            if self._before is not None and values["is_current"] == "true":
                current[partition].append(file)
        was = self._was[ENDS]
        every = [each for some in commits.values() for each in some]
        every += [each for at in changed for each in ends.get(at, ()) if each.reaches(was.get(at, NOTHING))]
        rows = sum(each.file.rows or 0 for each in every)
        lots = max(1, min(len(changed), -(-rows // PART_ROWS)))
        work = LagWork(
            table=self._lag_table,
            lots={lot: changed[lot::lots] for lot in range(lots)},
            uris={
                BY_MINUTE: str(self._table.handle.table_uri),
                **{name: each.uri for name, each in self._inputs.items()},
            },
            ends={at: ends[at] for at in changed if at in ends},
            commits=commits,
            current={at: current[at] for at in changed if at in current},
            was=self._was,
            now=self._now,
        )
        return work, rows

    def _joined(self, work: LagWork, rows: int) -> tuple[str, list[FoldedPart]]:
        what, spark = f"join of {self._lag_table.path}", self._options.spark
        engine: Engine = ThisProcess()
        if chosen_engine(self._options.engine, spark, "bronze", rows, len(work.lots)) == "spark":
            engine = self._opened.enter_context(spark_tasks(spark, what, what))
        parts: list[FoldedPart] = []
        try:
            for part in parts_in(engine.run(work.lots, work, PART_SCHEMA)):
                parts.append(part)  # noqa: PERF402  what came before a failure is dropped
        except BaseException:
            drop(work.uris[BY_MINUTE], parts)
            raise
        return engine.name, parts


def _input(name: str, path: str) -> _Input:
    """Return one of the two tables as it is now; LakeError where it was never derived."""
    if not is_table(path):
        raise LakeError(f"{path}: {name} was not derived yet: land its topic, and derive it first")
    handle = open_table(path)
    commit = last_told(path, handle)
    if commit is None:
        raise LakeError(f"{path}: nothing was derived into {name} yet: derive it first")
    files = defaultdict[int, list[MinutesFile]](list)
    for each in files_in(handle).to_pylist():
        size, rows = each["size_bytes"], each.get("num_records")
        file = File(
            path=each["path"],
            first=None,
            last=None,
            latest_ms=None,
            row_bytes=size // max(1, rows or 1),
            rows=rows,
            size_bytes=size,
        )
        last = each.get("max.minute")
        files[int(each["partition.partition"])].append(
            MinutesFile(file, None if last is None else int(last.timestamp() // 60))
        )
    return _Input(str(handle.table_uri), files, commit)


def _known(table: LagTable, joined: Mapping[str, Mapping[int, PartitionCommit]]) -> dict[str, dict[int, int]]:
    """Return up to which minute each partition of both logs was folded; rows of earlier minutes are there for
    good.
    """
    inputs: dict[str, DerivedTable] = {COMMITS: lag_commits(), ENDS: lag_ends(table.topic)}
    found = dict[str, dict[int, int]]()
    for name, of in inputs.items():
        decode = stored_format(of.processor).decode
        times = {at: decode(b64decode(each.position)).stream_ms for at, each in joined.get(name, {}).items()}
        # As rows have it: a time that no calendar holds is the first or last that one does.
        found[name] = {at: min(max(ms, LEAST_TIME_MS), LAST_TIME_MS) // MINUTE_MS for at, ms in times.items()}
    return found
