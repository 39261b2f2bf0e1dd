"""The table groups.moves, compared with a second computation over random generations, and with the callbacks
of real consumers.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from deltalake import DeltaTable

from holdfast.cli.__main__ import main
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.broker_logs.assignments import (
    AssignedMember,
    GroupAssigned,
    GroupAssignment,
    decode_assignment,
)
from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import WireError
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named
from holdfast.pipeline.derived.group_moves import MOVES
from holdfast.pipeline.histories.fold import FoldOptions
from tests.pipeline.accounts import Record
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

NO_KAFKA = Settings(app="derived")
Assigned = Mapping[str, Sequence[tuple[str, int]]]


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def assignment(places: Sequence[tuple[str, int]], version: int = 0, more: bytes = b"") -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    out = struct.pack(">hi", version, len(topics))
    for topic, partitions in topics.items():
        out += text(topic) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return out + struct.pack(">i", -1) + more


def generation(
    number: int, members: Assigned, instances: Mapping[str, str | None], kind: str = "consumer"
) -> bytes:
    """Return a group's value in version 3, as brokers write it."""
    out = (
        struct.pack(">h", 3)
        + text(kind)
        + struct.pack(">i", number)
        + text("range")
        + text(None)
        + struct.pack(">q", 5)
    )
    out += struct.pack(">i", len(members))
    for member, places in members.items():
        given = assignment(places)
        out += text(member) + text(instances.get(member)) + text(f"client of {member}") + text("/10.0.0.1")
        out += (
            struct.pack(">ii", 300_000, 45_000)
            + struct.pack(">i", 2)
            + b"ab"
            + struct.pack(">i", len(given))
            + given
        )
    return out


def key_of(group: str, kind: int = 2) -> bytes:
    return struct.pack(">h", kind) + text(group)


def test_an_assignment_is_read_of_every_version_and_no_byte_is_guessed() -> None:
    places = [("orders", 3), ("orders", 1), ("bills", 0)]
    value = generation(4, {"m": places}, {"m": "static"})
    member = AssignedMember(
        "m", "static", "client of m", "/10.0.0.1", (("bills", 0), ("orders", 1), ("orders", 3))
    )
    assert decode_assignment(key_of("g"), value) == GroupAssigned("g", GroupAssignment(4, (member,)))
    assert decode_assignment(key_of("g"), None) == GroupAssigned("g", GroupAssignment(None))
    assert decode_assignment(key_of("g", 5), b"?").noted is None
    assert decode_assignment(key_of("g"), generation(1, {}, {}, "connect")).noted is None
    later = value.replace(assignment(places), assignment(places, 1, b"")[:-4] + struct.pack(">i", -1))
    assert decode_assignment(key_of("g"), later) == GroupAssigned("g", GroupAssignment(4, (member,)))
    for end in range(len(value)):
        with pytest.raises(WireError):
            decode_assignment(key_of("g"), value[:end])


# -- random generations


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> TopicInMemory:
    made = TopicInMemory(OFFSETS_TOPIC)
    landed_from(monkeypatch, made)
    return made


def put(offsets: TopicInMemory, key: bytes, value: bytes | None, at_ms: int) -> int:
    at = offsets.end[0]
    offsets.logs[0].append(Record(at, at_ms, key, value, ()))
    offsets.end[0] = at + 1
    return at


def rows_in(lake: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(derived_path(str(lake), MOVES)).to_pyarrow_table().to_pylist()
    return sorted(
        found, key=lambda row: (row["partition"], row["noted_at"], row["topic"], row["topic_partition"])
    )


def cause_of(
    owner: str, heir: str | None, there: Assigned, before: Assigned, instances: Mapping[str, str | None]
) -> str:
    if owner in there:
        return "unassigned" if heir is None else ("rebalanced" if heir in before else "joined")
    same = (
        heir is not None and instances.get(owner) is not None and instances.get(owner) == instances.get(heir)
    )
    return "restarted" if same else "left"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_moves_are_those_that_asking_for_each_partition_finds(
    offsets: TopicInMemory, lake: Path, seed: int
) -> None:
    chance, expected = random.Random(seed), list[tuple[Any, ...]]()
    now: dict[str, dict[str, list[tuple[str, int]]]] = {"g": {}, "h": {}}
    places = [("orders", at) for at in range(4)] + [("bills", 0)]
    instances = {f"m{at}": (f"static{at % 3}" if at % 2 else None) for at in range(9)}
    for number in range(60):
        group, before = chance.choice("gh"), {}
        before = now[group]
        after: dict[str, list[tuple[str, int]]] = {
            member: [] for member in chance.sample([*instances], chance.randrange(4))
        }
        for place in places if after else ():
            if chance.random() < 0.9:
                after[chance.choice([*after])].append(place)
        gone = not after and chance.random() < 0.5
        at = put(
            offsets, key_of(group), None if gone else generation(number, after, instances), 1_000 * number
        )
        put(offsets, key_of("x", 0) + text("t") + b"\0\0\0\1", None, 1_000 * number)
        for topic, partition in places:
            owner, heir = (
                next((member for member, has in of.items() if (topic, partition) in has), None)
                for of in (before, after)
            )
            if owner != heir:
                cause = "assigned" if owner is None else cause_of(owner, heir, after, before, instances)
                expected.append((group, topic, partition, None if gone else number, cause, owner, heir, at))
        now[group] = after
        if number % 20 == 19:
            land(offsets, lake)
            [table] = tables_named(MOVES, NO_KAFKA)
            derive(table, NO_KAFKA, FoldOptions(lake=str(lake), engine="local"))
    names = (
        "group_id",
        "topic",
        "topic_partition",
        "generation",
        "cause",
        "from_member",
        "to_member",
        "noted_at",
    )
    found = [tuple(row[name] for name in names) for row in rows_in(lake)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {row[4] for row in found} >= {"assigned", "left", "joined", "unassigned"}


# -- real consumers


class Watched:
    """A consumer whose callbacks keep its assignment."""

    def __init__(self, kafka: EmbeddedKafka, group: str, client: str, topic: str) -> None:
        self.has = set[int]()
        config = {
            "group.id": group,
            "client.id": client,
            "session.timeout.ms": 180_000,
            "heartbeat.interval.ms": 200,
        }
        self._consumer = Consumer({**kafka.client_config(), **config})
        self._consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken)

    def _given(self, _: Consumer, places: list[Any]) -> None:
        self.has = {each.partition for each in places}

    def _taken(self, _: Consumer, places: list[Any]) -> None:
        self.has = set()

    def poll(self) -> None:
        self._consumer.poll(0.05)

    def close(self) -> None:
        self._consumer.close()


def wait(members: Sequence[Watched], parts: int) -> None:
    """Poll until all partitions are given out among the members."""
    deadline_s = system_clock.monotonic_s() + DEADLINE_S
    while not (all(each.has for each in members) and sum(len(each.has) for each in members) == parts):
        assert system_clock.monotonic_s() < deadline_s, [each.has for each in members]
        for each in members:
            each.poll()


@pytest.mark.long
def test_the_table_has_the_moves_that_real_consumers_receive(
    embedded_kafka: EmbeddedKafka, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ending()
    topic = embedded_kafka.create_topic(f"moved-{name}", partitions=3)
    producer = Producer(embedded_kafka.client_config())
    producer.produce(topic, b"x")
    assert producer.flush(DEADLINE_S) == 0
    told: list[dict[int, str]] = []
    with closing(Watched(embedded_kafka, f"g-{name}", "ann", topic)) as ann:
        wait([ann], 3)
        told.append(dict.fromkeys(ann.has, "ann"))
        with closing(Watched(embedded_kafka, f"g-{name}", "ben", topic)) as ben:
            wait([ann, ben], 3)
            told.append({**dict.fromkeys(ann.has, "ann"), **dict.fromkeys(ben.has, "ben")})
    for words in (("land", "--topics", OFFSETS_TOPIC), ("derive", MOVES)):
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "--bootstrap",
                    embedded_kafka.bootstrap,
                    "pipeline",
                    *words,
                    "--lake",
                    str(lake),
                    "--engine",
                    "local",
                ]
            )
        assert not ended.value.code, capsys.readouterr().err
    owners: dict[int, str | None] = {}
    seen = list[dict[int, str | None]]()
    rows = [row for row in rows_in(lake) if row["group_id"] == f"g-{name}"]
    for at, row in enumerate(rows):
        assert row["from_client"] == owners.get(row["topic_partition"])
        owners[row["topic_partition"]] = row["to_client"]
        if at + 1 == len(rows) or rows[at + 1]["noted_at"] != row["noted_at"]:
            seen.append(dict(owners))
    assert [each for each in seen if each in told] == told
    assert set(seen[-1].values()) == {None}
    assert [row["cause"] for row in rows[:3]] == ["assigned"] * 3
    assert {row["cause"] for row in rows[3:]} <= {"joined", "left", "unassigned"}
