"""Members that wait for others and go away in the meantime: no state is kept of them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from holdfast.clock import ManualClock
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from tests.embedded.clients.raw_client import RawClient
from tests.support.patience import DEADLINE_S

MEMBER: dict[str, Any] = {
    "session_timeout_ms": 30_000,
    "rebalance_timeout_ms": 30_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"x"}],
}


def joined(client: RawClient, group: str, member_id: str = "") -> dict[str, Any]:
    return client.ask("JoinGroup", 9, group_id=group, member_id=member_id, **MEMBER)


def test_of_a_member_that_joins_again_and_again_one_request_waits() -> None:
    with EmbeddedKafka() as kafka, RawClient(kafka.bootstrap) as leader:
        waiting = kafka.cluster.groups._waiting
        joined(leader, "readers", joined(leader, "readers")["member_id"])
        member_id = joined(leader, "readers")["member_id"]
        for _ in range(20):
            with RawClient(kafka.bootstrap) as other:
                other.send("JoinGroup", 9, group_id="readers", member_id=member_id, **MEMBER)
                other.settle()
        until_s = time.monotonic() + DEADLINE_S
        while waiting:
            assert time.monotonic() < until_s, f"{len(waiting)} requests of clients that have gone"
            time.sleep(0.01)


def test_a_group_that_no_member_joined_after_all_is_forgotten() -> None:
    with EmbeddedKafka() as kafka, RawClient(kafka.bootstrap) as client:
        clock = kafka.cluster.clock = ManualClock(now_ms=1_700_000_000_000)
        joined(client, "readers")
        group = kafka.cluster.groups.get("readers")
        assert group is not None
        clock.advance_ms(MEMBER["session_timeout_ms"] + 1)
        kafka._on_loop(lambda: kafka.cluster.groups._pass_time(group))
        assert kafka.cluster.groups.get("readers") is None


def test_a_member_may_join_with_its_id_after_a_refused_request_of_another() -> None:
    with EmbeddedKafka() as kafka, RawClient(kafka.bootstrap) as client:
        member_id = joined(client, "readers")["member_id"]
        told = {"partition_index": 0, "committed_offset": 1}
        topics = [{"name": "nowhere", "partitions": [told]}]
        answer = client.ask(
            "OffsetCommit",
            9,
            group_id="readers",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=topics,
        )
        assert answer["topics"][0]["partitions"][0]["error_code"] == 3
        assert joined(client, "readers", member_id)["error_code"] == 0


def test_a_consumer_that_goes_away_waits_for_no_records() -> None:
    with EmbeddedKafka() as kafka:
        log = kafka.cluster.topics.partition(kafka.create_topic("orders"), 0)
        assert log is not None
        wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
        for _ in range(5):
            with RawClient(kafka.bootstrap) as client:
                told = {"max_wait_ms": 600_000, "min_bytes": 1, "max_bytes": 1_000, "session_epoch": -1}
                client.send("Fetch", 12, topics=[{"topic": "orders", "partitions": wanted}], **told)
                client.settle()
        until_s = time.monotonic() + DEADLINE_S
        while log.log._waiting:
            assert time.monotonic() < until_s, "it waits still"
            time.sleep(0.01)


def test_members_that_join_together_are_one_group() -> None:
    """The second comes before the first is answered: it is of the same kind."""
    members = [dict(MEMBER, protocol_type=kind) for kind in ("consumer", "consumer", "connect", "consumer")]
    with EmbeddedKafka(group_initial_delay_ms=200) as kafka, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(kafka.bootstrap)) for _ in members]
        for client, member in zip(clients, members, strict=True):
            client.send("JoinGroup", 1, group_id="readers", member_id="", **member)
        answers = [client.receive("JoinGroup", 1) for client in clients]
    assert [each["error_code"] for each in answers] == [0, 0, KafkaCode.INCONSISTENT_GROUP_PROTOCOL, 0]
    assert {each["generation_id"] for each in answers if not each["error_code"]} == {1}
    assert [len(each["members"]) for each in answers] == [3, 0, 0, 0]
