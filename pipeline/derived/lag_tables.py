"""The tables that lag by the minute is joined of: `lag.commits`, what groups had committed, and `lag.ends`,
where partitions ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.broker_logs.folds import (
    OFFSETS_TOPIC,
    GroupEvent,
    OffsetNote,
    decode_group,
    offset_key,
    place_of_key,
)
from holdfast.core.engine.declared.processor import Emits, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

COMMITS, ENDS = "lag.commits", "lag.ends"
MINUTE_MS = 60_000
_END = "end"


class CommitMinute(msgspec.Struct, frozen=True, array_like=True):
    """The last minute in which a group committed in a partition: what it committed last, None for forgotten,
    and how often.
    """

    minute: int
    offset: int | None
    commits: int


class CommittedAt(msgspec.Struct, frozen=True):
    """A group's committed offset in a partition at the end of *minute*, in which it committed; *offset* is
    None if its coordinator forgot it.
    """

    group_id: str
    topic: str
    topic_partition: int
    minute: datetime
    offset: int | None
    commits: int


def fold_commits(rows: Rows[Any], event: GroupEvent, at_ms: int) -> Emits:
    """Take in a commit; emit its group's committed offset at the end of the last minute in which it
    committed.
    """
    if not isinstance(event, OffsetNote):
        return None
    key, minute = offset_key(event.group, event.topic, event.partition), at_ms // MINUTE_MS
    before: CommitMinute | None = rows.get(key)
    offset, made = (None, 0) if event.noted is None else (event.noted.offset, 1)
    if before is None or before.minute != minute:
        rows[key] = CommitMinute(minute, offset, made)
        return None if before is None else [row_over(_committed(key, before))]
    rows[key] = CommitMinute(minute, offset, before.commits + made)
    return None


def _committed(key: str, of: CommitMinute) -> CommittedAt:
    return CommittedAt(*place_of_key(key), time_at(of.minute * MINUTE_MS), of.offset, of.commits)


def _current_commits(stored: StoredRows) -> Iterator[CommittedAt]:
    for key, of in stored.items(""):
        yield _committed(key, of)


def lag_commits() -> DerivedTable:
    """Return the table of what the cluster's groups have committed."""
    processor = Processor(
        name="lag-commits",
        source=OFFSETS_TOPIC,
        decode=decode_group,
        inputs=("key", "value"),
        fold=fold_commits,
        row=CommitMinute,
        emits=(ROWS,),
    )
    return DerivedTable(name=COMMITS, row=CommittedAt, processor=processor, current=_current_commits)


class EndMinute(msgspec.Struct, frozen=True, array_like=True):
    """The last minute in which a partition got records: where it ended, and how many they were."""

    minute: int
    end: int
    records: int


class EndedAt(msgspec.Struct, frozen=True):
    """The end of a partition at the end of *minute*, in which it got *records*: after the last of them."""

    minute: datetime
    end_offset: int
    records: int


def decode_offset(offset: int) -> int:
    """Return the offset, which is all that counts of a record."""
    return offset


def fold_ends(rows: Rows[Any], offset: int, at_ms: int) -> Emits:
    """Count a record; emit the partition's end at the end of the last minute that had any."""
    minute, before = at_ms // MINUTE_MS, rows.get(_END)
    if before is not None and before.minute == minute:
        rows[_END] = EndMinute(minute, offset + 1, before.records + 1)
        return None
    rows[_END] = EndMinute(minute, offset + 1, 1)
    return None if before is None else [row_over(_ended(before))]


def _ended(of: EndMinute) -> EndedAt:
    return EndedAt(time_at(of.minute * MINUTE_MS), of.end, of.records)


def _current_ends(stored: StoredRows) -> Iterator[EndedAt]:
    for _, of in stored.items(""):
        yield _ended(of)


def lag_ends(topic: str) -> DerivedTable:
    """Return the table of where the partitions of a topic ended."""
    processor = Processor(
        name="lag-ends",
        source=topic,
        decode=decode_offset,
        inputs=("offset",),
        fold=fold_ends,
        row=EndMinute,
        emits=(ROWS,),
    )
    return DerivedTable(name=ENDS, row=EndedAt, processor=processor, current=_current_ends, is_of_topic=True)
