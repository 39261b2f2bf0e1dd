"""A bronze table against what its topic still holds: record by record, so that a fault's offset is known
exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from holdfast.config import Settings
from holdfast.errors import LakeError
from holdfast.kafka.fetching.records import Records
from holdfast.pipeline.bronze.columns import DERIVED, untrue
from holdfast.pipeline.bronze.commits import LastLanding
from holdfast.pipeline.bronze.digests import DIGESTED, hashes_in, hashes_of
from holdfast.pipeline.bronze.faults import FaultKind, LakeFault
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.lake import check_identity
from holdfast.pipeline.bronze.ordered import in_order, overlapping
from holdfast.pipeline.topic import Span, TopicLog, TopicReader

_COMPARED = [*DIGESTED, *DERIVED, "leader_epoch"]
_UNTRUE = np.uint64(1)
LIMIT_FAULTS = 100
"""The most offsets of a partition that are reported."""
_SAID: Mapping[FaultKind, str] = {
    "missing": "the topic has a record, and the table none",
    "changed": "the table's row is not the topic's record",
    "extra": "the table has a row, and the topic no record (which is no fault where the topic is compacted)",
}


def topic_faults(
    settings: Settings,
    table: str,
    chain: Sequence[LastLanding],
    files: Mapping[int, Sequence[File]],
    readers: Mapping[int, FileReader],
) -> Iterator[LakeFault]:
    """Yield where the table differs from what the topic holds of the offsets that were landed."""
    landed = chain[0].landed
    with TopicLog(settings, landed.topic) as log:
        spans, identity = log.spans(), log.identity()
    try:
        check_identity(table, landed, landed.topic, identity)
    except LakeError as error:
        yield LakeFault(kind="topic", table=table, told=str(error))
        return
    skips = {p: tuple(ranges) for p, ranges in landed.left_out.items()}
    with TopicReader(settings, landed.topic, skips) as reader:
        for partition, end in sorted(landed.end.items()):
            kept = spans.get(partition)
            if kept is None or kept.end < end:
                yield _cut_off(table, landed.topic, partition, 0 if kept is None else kept.end, end)
            if kept is None:
                continue
            first = max(kept.first, landed.begins.get(partition, 0))
            span = Span(first=first, end=max(first, min(end, kept.end)))
            yield from _partition_faults(
                table, partition, reader, readers.get(partition), files.get(partition, ()), span
            )


def _partition_faults(
    table: str,
    partition: int,
    topic: TopicReader,
    reader: FileReader | None,
    files: Sequence[File],
    span: Span,
) -> Iterator[LakeFault]:
    """Yield where a partition differs. Where a file cannot be read, its offsets alone are not compared."""
    told = list[LakeFault]()
    try:
        for fault in differences(table, partition, topic.records(partition, span), reader, files, span):
            told.append(fault)
            yield fault
        return
    except LakeError as error:
        first_error = str(error)
    assert reader is not None, "whatever fails to be read is read by it"
    groups = [*overlapping([file for file in files if file.touches(span)])]
    bounds = [span.first, *(group[0].first or span.first for group in groups[1:]), span.end]
    seen, errors = {(each.kind, each.first) for each in told}, list[str]()
    for group, first, end in zip(groups, bounds, bounds[1:], strict=False):
        part = Span(first=max(span.first, min(first, span.end)), end=max(span.first, min(end, span.end)))
        try:
            for fault in differences(table, partition, topic.records(partition, part), reader, group, part):
                if (fault.kind, fault.first) not in seen:
                    yield fault
        except LakeError as error:
            errors.append(str(error))
    for each in dict.fromkeys([*errors, *([] if errors else [first_error])]):
        yield LakeFault(kind="unreadable", table=table, partition=partition, told=each)


def differences(
    table: str,
    partition: int,
    held: Iterable[tuple[Records, int]],
    reader: FileReader | None,
    files: Sequence[File],
    span: Span,
) -> Iterator[LakeFault]:
    """Yield where the rows of *files* in *span*, which *reader* reads, are not the records that a topic holds
    of it, by ascending offset.
    """
    live = (_run_of(records) for records, _ in held)
    rows = iter(()) if reader is None else _rows(reader, files, span)
    yield from _compared(table, partition, live, rows)


def _cut_off(table: str, topic: str, partition: int, ends: int, landed: int) -> LakeFault:
    told = f"{table} holds partition {partition} up to offset {landed}, but topic {topic} ends at {ends}"
    return LakeFault(kind="topic", table=table, partition=partition, first=ends, last=landed - 1, told=told)


class _Run(NamedTuple):
    """Some records or rows in the order of their offsets: the hash of each, and the epoch of the leader that
    took it, -1 if unknown.
    """

    offsets: Any
    hashes: Any
    epochs: Any

    def cut(self, start: int, stop: int | None) -> _Run:
        return _Run(self.offsets[start:stop], self.hashes[start:stop], self.epochs[start:stop])


def _run_of(records: Records) -> _Run:
    stops = np.diff([0, *(stop for stop, _ in records.origins)])
    epochs = np.repeat([origin.leader_epoch for _, origin in records.origins], stops)
    return _Run(np.asarray(records.offsets), hashes_of(records), epochs)


def _rows(reader: FileReader, files: Sequence[File], span: Span) -> Iterator[_Run]:
    for rows in in_order(reader, [file for file in files if file.touches(span)], _COMPARED):
        offsets = rows.column("offset").to_numpy()
        start, stop = (int(at) for at in np.searchsorted(offsets, [span.first, span.end]))
        if stop <= start:
            continue
        some = rows.slice(start, stop - start)
        hashes = hashes_in(some)
        # No hash covers what follows from others: where that is untrue, the row is not the topic's record.
        hashes[np.logical_or.reduce([untrue(some, name) for name in DERIVED])] ^= _UNTRUE
        epochs = some.column("leader_epoch").fill_null(-1).to_numpy()
        yield _Run(offsets[start:stop], hashes, epochs)


def _compared(table: str, partition: int, live: Iterator[_Run], rows: Iterator[_Run]) -> Iterator[LakeFault]:
    told = 0
    for kind, offsets in _differences(live, rows):
        for offset in offsets:
            if told == LIMIT_FAULTS:
                return
            told += 1
            said = f"{table} partition {partition} offset {offset}: {_SAID[kind]}"
            yield LakeFault(kind=kind, table=table, partition=partition, first=offset, last=offset, told=said)


def _differences(live: Iterator[_Run], rows: Iterator[_Run]) -> Iterator[tuple[FaultKind, list[int]]]:
    """Yield what differs of two runs, each in the order of offsets."""
    one, other = next(live, None), next(rows, None)
    while one is not None or other is not None:
        if one is None or other is None:
            left = other if one is None else one
            assert left is not None
            yield "extra" if one is None else "missing", left.offsets.tolist()
            one, other = next(live, None), next(rows, None)
            continue
        upto = min(one.offsets[-1], other.offsets[-1])
        a, b = (int(np.searchsorted(each.offsets, upto, "right")) for each in (one, other))
        yield from _apart(one.cut(0, a), other.cut(0, b))
        one = one.cut(a, None) if a < len(one.offsets) else next(live, None)
        other = other.cut(b, None) if b < len(other.offsets) else next(rows, None)


def _apart(one: _Run, other: _Run) -> Iterator[tuple[FaultKind, list[int]]]:
    _, here, there = np.intersect1d(one.offsets, other.offsets, assume_unique=True, return_indices=True)
    yield "missing", np.delete(one.offsets, here).tolist()
    yield "extra", np.delete(other.offsets, there).tolist()
    known = (one.epochs[here] >= 0) & (other.epochs[there] >= 0)
    others = known & (one.epochs[here] != other.epochs[there])
    yield "changed", one.offsets[here][(one.hashes[here] != other.hashes[there]) | others].tolist()
