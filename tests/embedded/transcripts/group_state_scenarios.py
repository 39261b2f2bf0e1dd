"""Groups from state to state, as the protocol pages say of them (G3 to G5): the same on both brokers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.embedded.transcripts.asking import scenario
from tests.embedded.transcripts.talk import Talk, within
from tests.support.patience import DEADLINE_S

SLOW = ("a_static_member_beyond_its_session",)
"""Scenarios that wait for longer than the shortest session that a broker allows, which is six seconds."""

SESSION_S, REBALANCE_S = 10, 2


class ClassicGroup:
    """A classic group of one topic, and its members' requests."""

    def __init__(self, talk: Talk, **more: Any) -> None:
        self.talk, self.topic, self.name = talk, talk.topic("orders"), talk.name("readers")
        talk.coordinated(self.name)
        self.joins: dict[str, Any] = {
            "group_id": self.name,
            "session_timeout_ms": SESSION_S * 1_000,
            "rebalance_timeout_ms": REBALANCE_S * 1_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\x00\x00"}],
            **more,
        }

    def said(self, joined: dict[str, Any]) -> dict[str, Any]:
        told = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        return {"group_id": self.name, **told}

    def sync(self, joined: dict[str, Any], **more: Any) -> None:
        assigned = [{"member_id": joined["member_id"], "assignment": b"all"}]
        self.talk.ask("SyncGroup", 3, assignments=assigned, **self.said(joined), **more)

    def commit(self, generation: int, member: str) -> None:
        told = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
        topics = [{"name": self.topic, "partitions": [told]}]
        named: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": member}
        self.talk.ask("OffsetCommit", 9, group_id=self.name, topics=topics, **named)

    def look(self, state: str, joined: dict[str, Any]) -> None:
        """Record the answers to a heartbeat and a commit of that member in this state."""
        self.talk.lines.append(f"-- {state}")
        self.talk.ask("Heartbeat", 4, **self.said(joined))
        self.commit(joined["generation_id"], joined["member_id"])


@scenario
def heartbeats_and_commits_by_state(talk: Talk) -> None:
    """The first member does not join again, and is dropped at the rebalance timeout."""
    group = ClassicGroup(talk)
    with within(SESSION_S):
        with within(REBALANCE_S):
            one = talk.ask("JoinGroup", 3, by="one", **group.joins)
            group.look("completing the rebalance", one)
            group.sync(one)
        group.look("stable", one)
        group.commit(-1, "")
        with within(2 * REBALANCE_S):  # one for the first to join again, one for the second to sync
            with within(REBALANCE_S):
                talk.client("two").send("JoinGroup", 3, **group.joins)
                until_s = time.monotonic() + DEADLINE_S
                while talk.client().ask("Heartbeat", 4, **group.said(one))["error_code"] == 0:
                    assert time.monotonic() < until_s
                group.look("preparing a rebalance", one)
            two = talk.client("two").receive("JoinGroup", 3)
            talk.tell("JoinGroup 3 by two", two)
            group.look("dropped", one)
            group.sync(two)
        talk.ask("LeaveGroup", 1, group_id=group.name, member_id=two["member_id"])
    group.look("empty", two)
    group.commit(-1, "")
    talk.ask("DeleteGroups", 2, groups_names=[group.name])
    group.look("deleted", two)


@scenario
def a_static_member_beyond_its_session(talk: Talk) -> None:
    """Within its session it gets its assignment back without a rebalance; after it, the group begins
    again.
    """
    group = ClassicGroup(talk, session_timeout_ms=6_000, group_instance_id="desk")
    with within(REBALANCE_S):
        one = talk.ask("JoinGroup", 9, by="one", **group.joins)
        group.sync(one, group_instance_id="desk")
        two = talk.ask("JoinGroup", 9, by="two", **group.joins)
        talk.ask("Heartbeat", 4, **group.said(one), group_instance_id="desk")
        talk.ask("Heartbeat", 4, **group.said(two), group_instance_id="desk")
    time.sleep(7.5)
    talk.ask("DescribeGroups", 5, groups=[group.name])
    talk.ask("Heartbeat", 4, **group.said(two), group_instance_id="desk")
    with within(REBALANCE_S):
        three = talk.ask("JoinGroup", 9, by="three", **group.joins)
        talk.ask("LeaveGroup", 5, group_id=group.name, members=[{"member_id": three["member_id"]}])


class ModernMembers:
    """Members of a group of KIP-848, who give up only the partitions that they are asked to give up here."""

    def __init__(self, talk: Talk, topic: str) -> None:
        self.talk, self.topic, self.group = talk, topic, talk.name("readers")
        talk.coordinated(self.group)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, list[Any]] = {}
        self.told: dict[str, list[Any]] = {}
        """Last target assignment sent to each member."""

    def beat(self, member: str) -> None:
        joins = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": [self.topic]}
        told = {"group_id": self.group, "member_id": member, "member_epoch": self.epochs.get(member, 0)}
        told["topic_partitions"] = self.owned.setdefault(member, [])
        told.update({"rebalance_timeout_ms": -1} if member in self.epochs else joins)
        answer = self.talk.client().ask("ConsumerGroupHeartbeat", 1, **told)
        assert answer["error_code"] == 0, answer
        self.epochs[member] = answer["member_epoch"]
        if answer["assignment"]:
            self.told[member] = answer["assignment"]["topic_partitions"]

    def count(self, member: str) -> int:
        """Return the number of partitions in the last target assignment of *member*."""
        return sum(len(each["partitions"]) for each in self.told.get(member, []))

    def until(self, what: Callable[[], bool], *members: str) -> None:
        """Beat for *members* until it is so."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            for each in members:
                self.beat(each)
            if what():
                return
            assert time.monotonic() < until_s, self.told
            time.sleep(0.05)

    def tell(self, step: str) -> None:
        self.talk.tell(step, {each: self.count(each) for each in sorted(self.told)})
        self.talk.tell("state", self.state())

    def state(self) -> str:
        (found,) = self.talk.client().ask("ConsumerGroupDescribe", 1, group_ids=[self.group])["groups"]
        return str(found["group_state"])


@scenario
def a_revocation_of_the_new_protocol(talk: Talk) -> None:
    """A partition taken from one member reaches another only once the first has given it up."""
    members = ModernMembers(talk, talk.topic("orders", 3))
    members.until(lambda: members.count("a") == 3, "a")
    members.owned["a"] = members.told["a"]
    members.until(lambda: members.state() == "Stable", "a")
    members.tell("one member")
    members.until(lambda: members.count("a") == 2, "b", "a")
    for _ in range(5):
        members.beat("b")
    members.tell("told to give one up")
    members.owned["a"] = members.told["a"]
    members.until(lambda: members.count("b") == 1, "a", "b")
    members.tell("given up")
    members.owned["b"] = members.told["b"]
    members.until(lambda: members.state() == "Stable", "a", "b")
    members.tell("taken over")
