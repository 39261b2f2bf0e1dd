"""Records of classic groups and transactions in the coordinators' logs: each of them, in order."""

from __future__ import annotations

from typing import Any

from holdfast.embedded.internal_log import OFFSETS, TRANSACTIONS
from tests.embedded.transcripts.asking import scenario
from tests.embedded.transcripts.coordinator_logs import log_of
from tests.embedded.transcripts.talk import Talk, within
from tests.embedded.transcripts.transaction_scenarios import BareProducer

SESSION_S, REBALANCE_S = 10, 1


def tell_log(talk: Talk, topic: str, name: str, **names: str) -> None:
    """Write down the log of *name*; of *names*, each value is written as its key, for members have ids of
    their own.
    """
    for kind, key, value, version in log_of(talk, topic, name):
        told = _masked(value, {value: key for key, value in names.items()})
        talk.tell(kind if version is None else f"{kind} v{version}", {"key": key, "value": told})


def _masked(value: Any, names: dict[str, str]) -> Any:
    """Times are shown as true or false for set or not: -1 would be masked like a time that is set."""
    match value:
        case dict():
            return {
                key: each > 0 if "timestamp" in key and isinstance(each, int) else _masked(each, names)
                for key, each in value.items()
            }
        case list():
            return [_masked(each, names) for each in value]
        case str():
            return names.get(value, value)
        case _:
            return value


class BareMember:
    """Members of one classic group, each with a connection of its own."""

    def __init__(self, talk: Talk, group: str) -> None:
        self.talk, self.group = talk, group

    def send(self, by: str, member_id: str = "", version: int = 3, **more: Any) -> None:
        told: dict[str, Any] = {
            "session_timeout_ms": SESSION_S * 1_000,
            "rebalance_timeout_ms": REBALANCE_S * 1_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0"}],
            **more,
        }
        self.talk.client(by).send("JoinGroup", version, group_id=self.group, member_id=member_id, **told)

    def receive(self, by: str, version: int = 3) -> dict[str, Any]:
        return self.talk.client(by).receive("JoinGroup", version)

    def sync(self, by: str, joined: dict[str, Any]) -> dict[str, Any]:
        """Give all to that member; return how it names itself."""
        said = {"group_id": self.group, "generation_id": joined["generation_id"]}
        said["member_id"] = joined["member_id"]
        parts = [{"member_id": joined["member_id"], "assignment": by.encode()}]
        assert self.talk.client(by).ask("SyncGroup", 3, assignments=parts, **said)["error_code"] == 0
        return said


@scenario
def log_of_a_classic_group(talk: Talk) -> None:
    """A group with one member, a second member before which the first is dropped, offsets, and its end."""
    topic, group = talk.topic("orders", 2), talk.name("readers")
    talk.coordinated(group)
    members = BareMember(talk, group)

    def commit(partition: int, generation: int, member: str) -> None:
        told = {"partition_index": partition, "committed_offset": 5, "committed_metadata": "m"}
        named: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": member}
        topics = [{"name": topic, "partitions": [{**told, "committed_leader_epoch": 0}]}]
        talk.ask("OffsetCommit", 9, group_id=group, topics=topics, **named)

    with within(SESSION_S):
        with within(REBALANCE_S):
            members.send("one")
            one = members.receive("one")
            commit(1, -1, "")
            members.sync("one", one)
        commit(0, one["generation_id"], one["member_id"])
        with within(2 * REBALANCE_S):  # one for the first to join again, one for the second to sync
            members.send("two")
            two = members.receive("two")
            left = members.sync("two", two)
        talk.client().ask("LeaveGroup", 1, group_id=group, member_id=left["member_id"])
    commit(1, -1, "")
    talk.ask(
        "OffsetDelete", 0, group_id=group, topics=[{"name": topic, "partitions": [{"partition_index": 0}]}]
    )
    talk.ask("DeleteGroups", 2, groups_names=[group])
    tell_log(talk, OFFSETS, group, one=one["member_id"], two=two["member_id"])


@scenario
def log_of_classic_groups_that_never_were(talk: Talk) -> None:
    """A group is noted once a member requests it, even if it is refused; not if its session is refused."""
    topic = talk.topic("orders")
    wanted: dict[str, dict[str, Any]] = {
        "pending": {},
        "refused": {"protocols": []},
        "short": {"session_timeout_ms": 10},
        "unknown": {"member_id": "nobody"},
    }
    for name, told in wanted.items():
        group = talk.name(name)
        talk.coordinated(group)
        members = BareMember(talk, group)
        for _ in range(2):
            members.send(name, version=9, **told)
            talk.tell(f"{name} is told", {"error_code": members.receive(name, 9)["error_code"]})
        tell_log(talk, OFFSETS, group)
    group = talk.name("committed")
    talk.coordinated(group)
    one = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": 0,
        "committed_metadata": "m",
    }
    talk.ask("OffsetCommit", 9, group_id=group, topics=[{"name": topic, "partitions": [one]}])
    members = BareMember(talk, group)
    members.send("committed", version=9)
    members.receive("committed", 9)
    tell_log(talk, OFFSETS, group)


@scenario
def log_of_transactions(talk: Talk) -> None:
    """Of producers of both protocols: committed, aborted, without a record, and fenced."""
    topic = talk.topic("orders")
    for version in (4, 5):
        one = BareProducer(talk, f"writer-{version}")
        for commit in (True, False):
            if version == 4:
                one.add(topic)
            one.send(topic, b"a", 11 if version == 4 else 12)
            one.end(commit, version)
            one.describe()
        if version == 5:
            one.end(False, 5)
            one.describe()
        one.add(topic)
        one.start()
        one.describe()
        tell_log(talk, TRANSACTIONS, one.name)
