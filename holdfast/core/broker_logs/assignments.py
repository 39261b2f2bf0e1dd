"""The partitions of each member of a classic consumer group, from the records of the group's coordinator in
`__consumer_offsets`.
"""

from __future__ import annotations

import msgspec

from holdfast.core.broker_logs.folds import decode_group_key, read_generation
from holdfast.core.kafka.wire import WireReader

CONSUMER = "consumer"
"""The protocol type whose assignments are those of consumers; others (Connect's) mean something else."""


class AssignedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member with its *partitions*, as (topic, partition) in order."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[tuple[str, int], ...]


class GroupAssignment(msgspec.Struct, frozen=True, array_like=True):
    """The members' partitions in one generation of a group; no *members* once it is empty or gone, and
    *generation* is None
    then if the coordinator has forgotten it.
    """

    generation: int | None
    members: tuple[AssignedMember, ...] = ()


class GroupAssigned(msgspec.Struct, frozen=True):
    """A coordinator's record of a group; None for a record about something else."""

    group: str
    noted: GroupAssignment | None


def decode_assignment(key: bytes | None, value: bytes | None) -> GroupAssigned:
    """Return the group assignment in one record of `__consumer_offsets`; WireError, a DecodeError, when it
    cannot be read.
    """
    group = decode_group_key(key)
    if group is None:
        return GroupAssigned("", None)
    if value is None:
        return GroupAssigned(group, GroupAssignment(None))
    generation, assigned = read_generation(value)
    if generation.protocol_type not in (CONSUMER, ""):
        return GroupAssigned(group, None)
    members = tuple(
        AssignedMember(
            each.member_id, each.instance_id, each.client_id, each.host, _partitions(assigned[each.member_id])
        )
        for each in generation.members
    )
    return GroupAssigned(group, GroupAssignment(generation.generation, members))


def _partitions(assigned: bytes) -> tuple[tuple[str, int], ...]:
    """Return the partitions in a consumer's assignment. Versions after the first add fields at the end."""
    if not assigned:
        return ()
    reader = WireReader(assigned)
    reader.int16("version of an assignment")
    found: list[tuple[str, int]] = []
    for _ in range(reader.array("topics", 6)):
        topic = reader.text("topic")
        found += [(topic, reader.int32("partition")) for _ in range(reader.array("partitions", 4))]
    return tuple(sorted(found))
