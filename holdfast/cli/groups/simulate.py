"""`holdfast groups simulate`: the assignment of an assignor for a membership, and the moves after a change of
it. Asks no broker.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.options.context import output_of
from holdfast.cli.output import Output, OutputRow, note, show, show_json
from holdfast.core.groups.announcements import LIMIT_GROUP_MEMBERS, LIMIT_PARTITIONS
from holdfast.core.groups.assignors.assign import assign, spread
from holdfast.core.groups.assignors.types import NO_GENERATION, Assignment, AssignorName, Subscriber
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.errors import ConfigError

COLUMNS = ("member", "topics", "before", "after", "kept", "given_up", "gained", "assignment")
LIMIT_ROUNDS = 10
LIMIT_FILE_BYTES = 16_000_000


class FileMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member in a file; without *topics* it wants all."""

    id: str
    topics: tuple[str, ...] = ()
    instance_id: str | None = None
    owned: tuple[str, ...] = ()
    generation: int = NO_GENERATION


class FileGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A membership in a file: partitions by topic, members, and what changes."""

    topics: dict[str, int] = {}
    members: tuple[FileMember, ...] = ()
    join: tuple[FileMember, ...] = ()
    leave: tuple[str, ...] = ()
    grow: dict[str, int] = {}
    assignor: str = AssignorName.COOPERATIVE_STICKY


def simulate(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Membership as TOML or JSON; flags add to it.")
    ] = None,
    assignor: Annotated[
        AssignorName | None, typer.Option("--assignor", help="The assignor. [default: cooperative-sticky]")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC:N", help="A topic and its partition count.")
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(
            "--member",
            metavar="ID[:TOPIC,...]",
            help="A member; it subscribes to all topics unless some are named.",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", metavar="ID[:TOPIC,...]", help="A member that joins afterwards."),
    ] = None,
    leave: Annotated[
        list[str] | None, typer.Option("--leave", metavar="ID", help="A member that leaves afterwards.")
    ] = None,
    grow: Annotated[
        list[str] | None,
        typer.Option("--grow", metavar="TOPIC:N", help="A topic's partition count afterwards."),
    ] = None,
) -> None:
    given = FileGroup() if file is None else read_file(file)
    group = FileGroup(
        topics={**given.topics, **dict(map(_count, topic or ()))},
        members=(*given.members, *map(_member, member or ())),
        join=(*given.join, *map(_member, join or ())),
        leave=(*given.leave, *(leave or ())),
        grow={**given.grow, **dict(map(_count, grow or ()))},
        assignor=assignor or given.assignor,
    )
    records, summary = simulated(group)
    if output_of(context) is Output.JSON:
        show_json({**summary, "members": records})
        return
    show(records, COLUMNS, Output.TABLE)
    note(
        f"{summary['assignor']}: {summary['moved']} of {summary['partitions']} partitions change their"
        f" member, spread {summary['spread']}, {summary['rounds']} rounds"
    )


def simulated(group: FileGroup) -> tuple[list[OutputRow], dict[str, Any]]:
    """Return a record for each member before or after, and a summary."""
    name, before_members, after_members, after_counts = _checked(group)
    before, _ = settled(name, group.topics, before_members)
    held = [
        (
            msgspec.structs.replace(each, owned=tuple(before[each.member_id]), generation=1)
            if each.member_id in before
            else each
        )
        for each in after_members
    ]
    after, rounds = settled(name, after_counts, held)
    owner = {each: member_id for member_id, part in before.items() for each in part}
    moved = sum(owner.get(each, member_id) != member_id for member_id, part in after.items() for each in part)
    wants = {each.member_id: each.topics for each in (*before_members, *after_members)}
    records: list[OutputRow] = []
    for member_id in sorted(wants):
        old, new = set(before.get(member_id, ())), set(after.get(member_id, ()))
        records.append(
            {
                "member": member_id,
                "topics": list(wants[member_id]),
                "before": len(old) if member_id in before else None,
                "after": len(new) if member_id in after else None,
                "kept": len(old & new),
                "given_up": _texts(old - new),
                "gained": _texts(new - old),
                "assignment": _texts(new),
            }
        )
    partitions = sum(len(part) for part in after.values())
    return records, {
        "assignor": name.value,
        "partitions": partitions,
        "moved": moved,
        "spread": spread(after),
        "rounds": rounds,
    }


def settled(
    name: AssignorName, counts: Mapping[str, int], members: Sequence[Subscriber]
) -> tuple[Assignment, int]:
    """Return the assignment a group ends with, and after how many rounds: more than one only where members
    must give up first.
    """
    now, number = list(members), 0
    while True:
        number += 1
        parts = assign(name, counts, now)
        waiting = any(set(each.owned) - set(parts[each.member_id]) for each in now)
        if name is not AssignorName.COOPERATIVE_STICKY or not waiting or number == LIMIT_ROUNDS:
            return parts, number
        now = [
            msgspec.structs.replace(each, owned=tuple(parts[each.member_id]), generation=number + 1)
            for each in now
        ]


def read_file(path: Path) -> FileGroup:
    """Return the membership in a TOML or JSON file; ConfigError names its fault."""
    try:
        if path.stat().st_size > LIMIT_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {LIMIT_FILE_BYTES} bytes")
        text = path.read_text("utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return msgspec.convert(found, FileGroup)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _checked(group: FileGroup) -> tuple[AssignorName, list[Subscriber], list[Subscriber], dict[str, int]]:
    try:
        name = AssignorName(group.assignor)
    except ValueError:
        raise ConfigError(
            f"no assignor {group.assignor!r:.100}; choose one of {', '.join(AssignorName)}"
        ) from None
    after = {**group.topics, **group.grow}
    for topic, count in (*group.topics.items(), *after.items()):
        if not 0 < count <= LIMIT_PARTITIONS:
            raise ConfigError(f"topic {topic} with {count} partitions: use 1 to {LIMIT_PARTITIONS}")
    if sum(after.values()) > LIMIT_PARTITIONS or len(group.members) + len(group.join) > LIMIT_GROUP_MEMBERS:
        raise ConfigError(
            f"too large: at most {LIMIT_PARTITIONS} partitions and {LIMIT_GROUP_MEMBERS} members"
        )
    if not group.topics or not group.members:
        raise ConfigError(
            "nothing to assign: name at least one topic (--topic orders:12) and one member (--member a)"
        )
    members = [_subscriber(each, after) for each in group.members]
    ids = [each.member_id for each in members]
    if unknown := [each for each in group.leave if each not in ids]:
        raise ConfigError(f"{', '.join(unknown)} cannot leave: the members are {', '.join(ids)}")
    joined = [_subscriber(each, after) for each in group.join]
    return name, members, [each for each in members if each.member_id not in group.leave] + joined, after


def _subscriber(member: FileMember, counts: Mapping[str, int]) -> Subscriber:
    if unknown := [topic for topic in member.topics if topic not in counts]:
        raise ConfigError(
            f"member {member.id} wants {', '.join(unknown)}, of unknown partition count: add --topic"
            f" {unknown[0]}:N"
        )
    return Subscriber(
        member_id=member.id,
        topics=tuple(sorted(member.topics or counts)),
        instance_id=member.instance_id,
        owned=tuple(map(_partition, member.owned)),
        generation=member.generation,
    )


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    if not topic or not number.isdecimal():
        raise ConfigError(f"owned {text!r}: write TOPIC-PARTITION, orders-3 for example")
    return TopicPartition(topic, int(number))


def _count(text: str) -> tuple[str, int]:
    topic, _, number = text.rpartition(":")
    if not topic or not number.isdecimal():
        raise ConfigError(f"{text!r}: write TOPIC:N, orders:12 for example")
    return topic, int(number)


def _member(text: str) -> FileMember:
    name, _, topics = text.partition(":")
    return FileMember(id=name, topics=tuple(topic for topic in topics.split(",") if topic))


def _texts(partitions: set[TopicPartition]) -> list[str]:
    return [f"{topic}-{number}" for topic, number in sorted(partitions)]
