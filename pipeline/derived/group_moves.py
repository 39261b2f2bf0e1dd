"""The table `groups.moves`: which partition went from which member of a consumer group to which, in which
generation, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.core.broker_logs.assignments import (
    AssignedMember,
    GroupAssigned,
    GroupAssignment,
    decode_assignment,
)
from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.core.engine.declared.processor import Emit, Emits, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

MOVES = "groups.moves"
MoveCause = Literal["assigned", "left", "restarted", "joined", "rebalanced", "unassigned"]
NumberedAssignment = tuple[GroupAssigned, int]


class GroupMove(msgspec.Struct, frozen=True):
    """A partition of a classic consumer group that went from one member to another; None on either side is
    unowned.

    *generation* is the one that moved it, None where the coordinator has forgotten the group.
    """

    group_id: str
    topic: str
    topic_partition: int
    at: datetime
    generation: int | None
    cause: MoveCause
    from_member: str | None
    from_client: str | None
    from_host: str | None
    to_member: str | None
    to_client: str | None
    to_host: str | None
    noted_at: int


def decode_numbered(key: bytes | None, value: bytes | None, offset: int) -> NumberedAssignment:
    """Return a group's assignment in a record of the offsets log, and the record's offset."""
    return decode_assignment(key, value), offset


def fold_moves(rows: Rows[Any], event: NumberedAssignment, at_ms: int) -> Emits:
    """Emit the moves of a new assignment; keep it."""
    assigned, offset = event
    after = assigned.noted
    if after is None:
        return None
    before: GroupAssignment = rows.get(assigned.group) or GroupAssignment(None)
    if after.members:
        rows[assigned.group] = after
    elif assigned.group in rows:
        del rows[assigned.group]
    return [*_moves(assigned.group, before, after, at_ms, offset)]


def _moves(
    group: str, before: GroupAssignment, after: GroupAssignment, at_ms: int, offset: int
) -> Iterator[Emit]:
    was, now = _owners(before), _owners(after)
    for topic, partition in sorted({*was, *now}):
        left, came = was.get((topic, partition)), now.get((topic, partition))
        if (left and left.member_id) == (came and came.member_id):
            continue
        yield row_over(
            GroupMove(
                group_id=group,
                topic=topic,
                topic_partition=partition,
                at=time_at(at_ms),
                generation=after.generation,
                cause=_cause(before, after, left, came),
                from_member=None if left is None else left.member_id,
                from_client=None if left is None else left.client_id,
                from_host=None if left is None else left.host,
                to_member=None if came is None else came.member_id,
                to_client=None if came is None else came.client_id,
                to_host=None if came is None else came.host,
                noted_at=offset,
            )
        )


def _owners(of: GroupAssignment) -> dict[tuple[str, int], AssignedMember]:
    return {place: member for member in of.members for place in member.partitions}


def _cause(
    before: GroupAssignment, after: GroupAssignment, left: AssignedMember | None, came: AssignedMember | None
) -> MoveCause:
    if left is None:
        return "assigned"
    if left.member_id not in {each.member_id for each in after.members}:
        is_static = came is not None and came.instance_id is not None
        return "restarted" if is_static and came.instance_id == left.instance_id else "left"  # type: ignore[union-attr]
    if came is None:
        return "unassigned"
    return "rebalanced" if came.member_id in {each.member_id for each in before.members} else "joined"


def _current(stored: StoredRows) -> Iterable[GroupMove]:
    return ()


def group_moves() -> DerivedTable:
    """Return the table of the cluster's classic consumer groups."""
    processor = Processor(
        name="groups-moves",
        source=OFFSETS_TOPIC,
        decode=decode_numbered,
        inputs=("key", "value", "offset"),
        fold=fold_moves,
        row=GroupAssignment,
        emits=(ROWS,),
    )
    return DerivedTable(name=MOVES, row=GroupMove, processor=processor, current=_current)
