"""Checking a bronze table: cheap from its log and the list of its files, deep from its rows, and against its
topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain as chained
from typing import Any
from urllib.parse import unquote

from holdfast.config import Settings
from holdfast.errors import BrokerError, LakeError, PipelineError, TopicError
from holdfast.pipeline.bronze.commits import (
    LastLanding,
    check_rows,
    counted_rows,
    file_of,
    files_in,
    history_of,
    listed_files,
    partition_of,
    read_chain,
)
from holdfast.pipeline.bronze.faults import FaultKind, LakeFault
from holdfast.pipeline.bronze.features import refuse_features, schema_faults
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.guarded import bronze_reader
from holdfast.pipeline.bronze.lake import bronze_path, open_table
from holdfast.pipeline.bronze.landed_notes import LandedNotes
from holdfast.pipeline.bronze.layout import Segment, layout_faults, segments
from holdfast.pipeline.checks.against_topic import topic_faults
from holdfast.pipeline.checks.deep import deep_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVerdict:
    """The faults of one bronze table. *rows* is how many its files have, by their own counts, *commits* how
    many landings its history still has; *undigested* is the offset of each partition up to which no digest
    was landed, so that a deep check proves only the count there. *version* is None where the log cannot be
    read, *compared* whether the topic could be asked, None where it was not to be.
    """

    topic: str
    table: str
    version: int | None
    rows: int
    files: int
    commits: int
    deep: bool
    faults: tuple[LakeFault, ...]
    undigested: Mapping[int, int]
    compared: bool | None = None

    @property
    def sound(self) -> bool:
        return not self.faults

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {**asdict(self), "sound": self.sound, "faults": [asdict(each) for each in self.faults]}


def check_table(
    settings: Settings,
    topic: str,
    lake: str,
    *,
    deep: bool = False,
    against_topic: bool = False,
    notes: LandedNotes | None = None,
) -> LakeVerdict:
    """Check the table of *topic* and return all that is wrong with it; *deep* reads all rows, *against_topic*
    compares with what the topic still holds, and *notes* with how far landings had come.

    Whatever keeps it from being checked is a fault as well.
    """
    path = bronze_path(lake, topic)
    checked = _Checked(path)
    checked.run("unreadable", lambda: _open(topic, checked))
    if deep:
        for partition in sorted(checked.files):
            checked.run("unreadable", partial(_deep_faults, checked, partition))
    compared = checked.compare(settings) if against_topic and checked.chain else None
    if notes is not None and checked.chain:
        checked.compare_notes(notes)
    return LakeVerdict(
        topic=topic,
        table=path,
        version=checked.version,
        rows=sum(file.rows or 0 for file in chained.from_iterable(checked.files.values())),
        files=sum(map(len, checked.files.values())),
        commits=len(checked.chain),
        deep=deep,
        faults=tuple(checked.faults),
        undigested=_undigested(checked.chain),
        compared=compared,
    )


@dataclass(slots=True)
class _Checked:
    """A table that is checked, as far as it could be read, and the faults that were found so far."""

    path: str
    version: int | None = None
    table_id: str = ""
    logged: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[int, list[File]] = field(default_factory=dict)
    chain: list[LastLanding] = field(default_factory=list)
    readers: dict[int, FileReader] = field(default_factory=dict)
    faults: list[LakeFault] = field(default_factory=list)

    def run(self, kind: FaultKind, stage: Callable[[], Iterable[LakeFault]]) -> None:
        """Note a stage's findings; if it cannot continue, that is a fault of *kind* too."""
        try:
            for each in stage():
                self.faults.append(each)
        except (PipelineError, TopicError) as error:
            self.faults.append(LakeFault(kind=kind, table=self.path, told=str(error)))

    def compare(self, settings: Settings) -> bool:
        """Compare with the topic; return whether that could be asked."""
        try:
            found = topic_faults(settings, self.path, self.chain, self.files, self.readers)
            self.run("topic", lambda: found)
        except BrokerError as error:
            told = f"{self.path} could not be compared with its topic: {error}"
            self.faults.append(LakeFault(kind="topic", table=self.path, told=told))
            return False
        return True

    def compare_notes(self, notes: LandedNotes) -> None:
        try:
            self.run("chain", lambda: notes.ahead(self.path, self.table_id, self.chain[0].landed))
        except BrokerError as error:
            told = f"{self.path} could not be compared with what landings noted in Kafka: {error}"
            self.faults.append(LakeFault(kind="chain", table=self.path, told=told))

    def segments_of(self, partition: int) -> list[Segment]:
        return segments(self.chain, partition) if self.chain else []


def _open(topic: str, checked: _Checked) -> Iterator[LakeFault]:
    """Read the log, and yield its faults: as much of it as can be read."""
    path = checked.path
    table = open_table(path)
    checked.version, checked.table_id = int(table.version()), str(table.metadata().id)
    chain = read_chain(path, history_of(table, checked.version + 1))
    checked.chain = chain.landings
    yield from chain.faults
    newest = checked.chain[0].landed if checked.chain else None
    if newest is not None and newest.topic != topic:
        told = f"{path} holds topic {newest.topic}, and lies where {topic} belongs"
        yield LakeFault(kind="topic", table=path, told=told)
    for told in schema_faults(table, 1 if newest is None else newest.columns):
        yield LakeFault(kind="schema", table=path, told=f"{path}: {told}")
    checked.run("unreadable", lambda: _usable(path, table))
    listed = files_in(table).to_pylist()
    checked.logged = {unquote(each["path"]): each for each in listed}
    checked.files = listed_files(table)
    filesystem = filesystem_of(str(table.table_uri))
    checked.readers = {p: bronze_reader(f"{path} partition {p}", filesystem) for p in checked.files}
    yield from _cheap_faults(path, table, checked.chain, checked.files)
    yield from _logged_faults(path, topic, listed)


def _usable(path: str, table: Any) -> Iterator[LakeFault]:
    refuse_features(path, table)
    return iter(())


def _logged_faults(path: str, topic: str, listed: Sequence[Mapping[str, Any]]) -> Iterator[LakeFault]:
    """Yield where the log names another topic, or its statistics of times contradict each other."""
    for each in listed:
        kind: FaultKind
        if each.get("partition.topic") != topic:
            kind, why = "file", f"is of topic {each.get('partition.topic')} by the log"
        elif (name := _contradiction(each)) is not None:
            kind, why = "statistics", f"has by the log another {name} date than the {name} timestamp"
        else:
            continue
        file, partition = file_of(each), partition_of(path, each)
        yield LakeFault(
            kind=kind,
            table=path,
            partition=partition,
            first=file.first,
            last=file.last,
            file=file.path,
            told=f"{path} partition {partition} offsets {file.first} to {file.last}: file {file.path} {why}",
        )


def _contradiction(told: Mapping[str, Any]) -> str | None:
    if told.get("null_count.date") != 0:
        return None
    for name, of in (("least", "min"), ("greatest", "max")):
        at, day = told.get(f"{of}.timestamp"), told.get(f"{of}.date")
        if at is not None and day is not None and at.date() != day:
            return name
    return None


def _deep_faults(checked: _Checked, partition: int) -> Iterator[LakeFault]:
    files, reader = checked.files[partition], checked.readers[partition]
    return deep_faults(reader, partition, files, checked.segments_of(partition), checked.logged)


def _cheap_faults(
    path: str, table: Any, chain: Sequence[LastLanding], files: Mapping[int, Sequence[File]]
) -> Iterator[LakeFault]:
    placed = list(layout_faults(path, chain, files))
    yield from placed
    if not placed and chain:
        try:
            check_rows(path, chain[0], counted_rows(table))
        except LakeError as error:  # landed by a holdfast that wrote counts of the whole alone
            yield LakeFault(kind="missing", table=path, told=str(error))
    yield from _file_faults(path, str(table.table_uri), files)


def _file_faults(path: str, uri: str, files: Mapping[int, Sequence[File]]) -> Iterator[LakeFault]:
    """Yield files that are gone, or of another size than in the log: their folders are listed, and no file is
    opened.
    """
    from pyarrow import fs

    filesystem = filesystem_of(uri)
    for partition, listed in sorted(files.items()):
        folders = {file.path.rpartition("/")[0] for file in listed}
        there = {
            unquote(each.path).lstrip("/"): each.size
            for folder in folders
            for each in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        }
        for file in listed:
            size = there.get(unquote(file.path))
            if size is None:
                said = "is gone: it was removed by hand, or by a vacuum that came too early"
            elif file.size_bytes is not None and size != file.size_bytes:
                said = (
                    f"has {size} bytes, where the table's log says {file.size_bytes}: it was changed by hand"
                )
            else:
                continue
            yield LakeFault(
                kind="file",
                table=path,
                partition=partition,
                first=file.first,
                last=file.last,
                file=file.path,
                told=(
                    f"{path} partition {partition} offsets {file.first} to {file.last}: file {file.path}"
                    f" {said}"
                ),
            )


def _undigested(chain: Sequence[LastLanding]) -> dict[int, int]:
    if not chain:
        return {}
    landed = chain[0].landed
    if landed.digests is None:
        return dict(landed.end)
    return {p: at for p, at in sorted(landed.digested_from.items()) if at > landed.begins.get(p, 0)}
