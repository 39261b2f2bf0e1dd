"""Groups of KIP-848 rebuilt from their records: after every step, the log has the coordinator's state."""

from __future__ import annotations

import asyncio
from functools import cache
from random import Random
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.core.kafka.record_batch import decode_batch
from holdfast.embedded.apis.call import Call
from holdfast.embedded.apis.handlers import HANDLERS
from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.groups.group import EmbeddedGroup
from holdfast.embedded.groups.modern_records import GROUP as METADATA
from holdfast.embedded.groups.modern_records import MODERN_KINDS, ModernImage, image_of, restore, take
from holdfast.embedded.internal_log import KINDS, OFFSETS, Note, home_of
from holdfast.embedded.protocol.codec import decode, encode
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.models.consumer_group import SESSION_MS, ModernGroup, heartbeat
from holdfast.models.consumer_group import ModernHeartbeat as Said
from holdfast.models.group_coordinator.types import CoordinatorSettings
from tests.support.scale import scaled

GROUP = "readers"


@cache
def read(batch: bytes) -> tuple[Note, ...]:
    """Return the notes in a batch: it is read once, though the log is gone through after every step."""
    found, kinds = [], {number: kind for kind, number in KINDS.items() if kind != "TransactionLog"}
    for record in decode_batch(batch).records:
        key, value = record.key or b"", record.value
        kind = kinds[int.from_bytes(key[:2], "big")]
        told = None if value is None else decode(f"{kind}Value", int.from_bytes(value[:2], "big"), value, 2)
        found.append(Note(kind, decode(f"{kind}Key", 0, key, 2), told))
    return tuple(found)


class Bench:
    """A cluster without sockets, and requests to it."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=1_000_000)
        self.cluster = EmbeddedCluster(EmbeddedSettings(), seed=1, clock=self.clock)

    def topic(self, name: str, partitions: int) -> None:
        self.cluster.topics.make(name, num_partitions=partitions)

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        sent = bytes(encode(f"{api}Request", version, fields, bytearray()))
        return HANDLERS[api](Call(self.cluster, 1, version, decode(f"{api}Request", version, sent), "client"))

    def beat(self, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        named = {"group_id": GROUP, "member_id": member, "member_epoch": epoch}
        usual = {"rebalance_timeout_ms": -1, "topic_partitions": None, "subscribed_topic_names": None}
        told: dict[str, Any] = {**named, **usual, **more}
        found: dict[str, Any] = self.ask("ConsumerGroupHeartbeat", 1, **told)
        return found

    async def joins_as_of_old(self) -> None:
        """Have a member of the classic protocol come, whose request waits for others."""
        named = {"group_id": GROUP, "member_id": "", "protocol_type": "consumer"}
        protocols = [{"name": "range", "metadata": b""}]
        times = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 6_000}
        self.ask("JoinGroup", 5, **named, **times, protocols=protocols)
        self.cluster.groups.close()

    @property
    def group(self) -> EmbeddedGroup:
        found = self.cluster.groups.get(GROUP)
        assert found is not None
        return found

    def notes(self) -> list[Note]:
        """Return the groups' records in the offsets topic, decoded from their bytes."""
        log = home_of(self.cluster.topics, OFFSETS, GROUP).log
        return [note for stored in log for note in read(bytes(stored.data))]

    def image(self) -> ModernImage:
        image: ModernImage = {}
        for each in self.notes():
            if each.kind in MODERN_KINDS:
                take(image, each)
        return image

    def rebuilt(self) -> EmbeddedGroup:
        group = EmbeddedGroup.empty(GROUP, CoordinatorSettings())
        restore(group, self.image(), self.cluster.topics, self.clock.now_ms())
        return group


def told(group: ModernGroup | None, *, empty: bool = False) -> Any:
    """Return the parts of a group that a rebuilt group must have too: not the times of its members'
    heartbeats, nor the assignor chosen by former members, nor the target of an empty group.
    """
    if group is None:
        return None
    members = {
        name: (
            each.instance_id,
            each.topics,
            each.epoch,
            max(0, each.previous_epoch),
            each.state,
            each.assigned,
            each.revoking,
            each.away,
        )
        for name, each in group.members.items()
    }
    target = (group.target_epoch, group.target) if members else None
    return group.epoch, members, target


def compare(bench: Bench, *, may_differ: frozenset[str] = frozenset()) -> None:
    """Check that the rebuilt group equals the live one, and would write no records but of the kinds that
    *may_differ*, where the live one would too.
    """
    live, again = bench.group, bench.rebuilt()
    assert told(again.modern) == told(live.modern)
    assert (again.told, again.homes, again.since, again.matched) == (
        live.told,
        live.homes,
        live.since,
        live.matched,
    )
    now_ms, topics = bench.clock.now_ms(), bench.cluster.topics
    wanted = image_of(again, topics, now_ms)
    assert (wanted, again.written) == (image_of(live, topics, now_ms), live.written)
    anew = {key for key in wanted | again.written if wanted.get(key) != again.written.get(key)}
    assert {kind for kind, _ in anew} <= may_differ, "nothing to be written anew"


@pytest.mark.parametrize("seed", range(scaled(30)))
def test_a_group_is_made_again_of_its_records(seed: int) -> None:
    chance, bench = Random(seed), Bench()
    topics = [f"topic-{number}" for number in range(3)]
    for number, name in enumerate(topics[:2], 1):
        bench.topic(name, 2 * number)
    epochs: dict[str, int] = {}
    held: dict[str, list[Any]] = {}
    instances = {"c": "desk", "d": "desk"}
    unseen = frozenset[str]()

    def joins(member: str) -> dict[str, Any]:
        if chance.random() < 0.3:
            return {"subscribed_topic_regex": chance.choice(["topic-.*", ".*2"])}
        return {"subscribed_topic_names": chance.sample(topics, chance.randint(1, 3))}

    for _ in range(60):
        member = chance.choice("abcd")
        more: dict[str, Any] = {"instance_id": instances.get(member)}
        act = chance.choice(["beat"] * 6 + ["leave", "away", "change", "pass", "wrong", "grow"])
        if act == "pass":
            bench.clock.advance_ms(chance.choice([1_000, SESSION_MS]))
            if chance.random() < 0.5:
                bench.cluster.groups.sweep()
        elif act == "grow" and bench.cluster.topics.get(topics[2]) is None:
            bench.topic(topics[2], 3)
            unseen = frozenset([METADATA])  # until a heartbeat is answered
        epoch = epochs.get(member, 0)
        if epoch <= 0:
            epoch = 0
            more |= {"rebalance_timeout_ms": 5_000, "topic_partitions": [], **joins(member)}
        elif act == "leave":
            epoch = -1
        elif act == "away" and member in instances:
            epoch = -2
        elif act == "wrong":
            epoch += 9
        elif act == "change":
            more |= {"server_assignor": chance.choice(["range", "uniform"]), **joins(member)}
        elif chance.random() < 0.7:
            more["topic_partitions"] = held.get(member, [])
        answer = bench.beat(member, epoch, **more)
        epochs[member] = 0
        if not answer["error_code"]:
            epochs[member], unseen = answer["member_epoch"], frozenset()
            if answer.get("assignment"):
                held[member] = answer["assignment"]["topic_partitions"]
        if bench.cluster.groups.get(GROUP) is not None:
            compare(bench, may_differ=unseen)
    assert len(bench.notes()) > 20


def test_a_rebuilt_group_continues() -> None:
    bench = Bench()
    bench.topic("orders", 4)
    join: dict[str, Any] = {
        "rebalance_timeout_ms": 5_000,
        "topic_partitions": [],
        "subscribed_topic_names": ["orders"],
    }
    assert bench.beat("a", 0, **join)["member_epoch"] == 1
    again = bench.rebuilt().modern
    assert again is not None
    counts, now_ms = bench.cluster.topics.counts(), bench.clock.now_ms()
    after, reply = heartbeat(again, Said(member_id="a", epoch=1), counts, now_ms)
    assert (reply.code, reply.epoch, len(reply.assigned)) == (0, 1, 4)
    assert after.epoch == 1


def test_a_member_without_heartbeats_for_a_session_is_gone_even_if_no_other_joins() -> None:
    bench = Bench()
    bench.topic("orders", 4)
    join: dict[str, Any] = {
        "rebalance_timeout_ms": 5_000,
        "topic_partitions": [],
        "subscribed_topic_names": ["orders"],
    }
    bench.beat("a", 0, **join)
    bench.clock.advance_ms(SESSION_MS - 1)
    bench.beat("b", 0, **join)
    bench.cluster.groups.sweep()
    assert bench.group.modern is not None
    assert set(bench.group.modern.members) == {"a", "b"}
    bench.clock.advance_ms(1)
    written = len(bench.notes())
    bench.cluster.groups.sweep()
    assert set(bench.group.modern.members) == {"b"}
    assert len(bench.group.modern.target["b"]) == 4
    compare(bench)
    assert len(bench.notes()) > written
    bench.clock.advance_ms(SESSION_MS)
    bench.cluster.groups.sweep()
    assert bench.group.is_empty
    compare(bench)
    written = len(bench.notes())
    bench.cluster.groups.sweep()
    assert len(bench.notes()) == written
    assert bench.ask("DeleteGroups", 2, groups_names=[GROUP])["results"][0]["error_code"] == 0


def test_topics_that_are_gone_are_nobodys() -> None:
    bench = Bench()
    for name in ("orders", "payments"):
        bench.topic(name, 2)
    names = {"subscribed_topic_names": ["orders", "payments"], "topic_partitions": []}
    bench.beat("a", 0, rebalance_timeout_ms=5_000, **names)
    gone = bench.cluster.topics.get("payments")
    assert gone is not None
    bench.cluster.delete_topics([gone])
    again = bench.rebuilt()
    assert again.modern is not None
    assert {each.topic for each in again.modern.members["a"].assigned} == {"orders"}
    assert {each.topic for each in again.since["a"]} == {"orders"}


def test_nothing_is_left_of_a_group_that_is_deleted_or_becomes_classic() -> None:
    bench = Bench()
    bench.topic("orders", 1)
    join: dict[str, Any] = {
        "rebalance_timeout_ms": 5_000,
        "topic_partitions": [],
        "subscribed_topic_names": ["orders"],
    }
    for end in ("delete", "join"):
        bench.beat("a", 0, **join)
        assert bench.image()
        bench.beat("a", -1)
        if end == "delete":
            assert bench.ask("DeleteGroups", 2, groups_names=[GROUP])["results"][0]["error_code"] == 0
        else:
            asyncio.run(bench.joins_as_of_old())
        assert bench.image() == {}


def test_a_refused_join_writes_nothing_and_leaves_no_group() -> None:
    bench = Bench()
    answer = bench.beat("a", 0, rebalance_timeout_ms=5_000, topic_partitions=[], server_assignor="mine")
    assert answer["error_code"] != 0
    assert bench.cluster.groups.get(GROUP) is None
    assert bench.notes() == []
