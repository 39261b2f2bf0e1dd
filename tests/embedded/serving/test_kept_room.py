"""The coordinators' state left by strangers is bounded over all groups, ids and topics together."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from holdfast.core.groups.codes import GroupCode
from holdfast.embedded.fetch_sessions import LIMIT_PARTITIONS, FetchSession, FetchSessions
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.kept_room import OVERHEAD_BYTES, KeptRoom
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation, AclResource
from holdfast.embedded.security.authorizer import EmbeddedAuthorizer
from tests.embedded.clients.raw_client import RawClient

LIMIT = 400_000
MANY = 1_000


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=1, kept_max_bytes=LIMIT, max_partitions=60, message_max_bytes=20_000) as running:
        running.create_topic("orders", partitions=4)
        yield running


@pytest.fixture
def client(kafka: EmbeddedKafka) -> Iterator[RawClient]:
    with RawClient(kafka.bootstrap) as made:
        yield made


def until_refused(kafka: EmbeddedKafka, ask: Any, code: int) -> int:
    """Ask again until there is no room; return how often it was taken."""
    for taken in range(MANY):
        told = ask(taken)
        assert kafka._on_loop(kafka.cluster._kept_bytes) <= LIMIT
        if told:
            assert told == code
            return taken
    raise AssertionError("it is never refused")


def join(client: RawClient, group: str, size: int, member_id: str = "") -> dict[str, Any]:
    return client.ask(
        "JoinGroup",
        3,
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": bytes(size)}],
    )


def test_members_of_all_groups_together_say_no_more_than_is_kept(
    kafka: EmbeddedKafka, client: RawClient
) -> None:
    taken = until_refused(
        kafka,
        lambda at: join(client, f"g{at}", 9_000)["error_code"],
        GroupCode.GROUP_MAX_SIZE_REACHED,
    )
    assert taken > LIMIT // (4 * 9_000)
    assert join(client, "late", 10)["error_code"] == GroupCode.NONE, "little finds room"


def test_there_is_room_again_when_others_are_gone(kafka: EmbeddedKafka, client: RawClient) -> None:
    ids = []

    def ask(at: int) -> int:
        told = join(client, f"g{at}", 9_000)
        ids.append((f"g{at}", told["member_id"]))
        return int(told["error_code"])

    until_refused(kafka, ask, GroupCode.GROUP_MAX_SIZE_REACHED)
    for group, member in ids[:-1]:
        assert client.ask("LeaveGroup", 0, group_id=group, member_id=member)["error_code"] == 0
    assert client.ask("DeleteGroups", 2, groups_names=[group for group, _ in ids[:-1]])
    assert join(client, "late", 9_000)["error_code"] == GroupCode.NONE


def test_members_of_modern_groups_count_too(kafka: EmbeddedKafka, client: RawClient) -> None:
    def ask(at: int) -> int:
        told = client.ask(
            "ConsumerGroupHeartbeat",
            1,
            group_id=f"g{at}",
            member_id=f"m{at}",
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=[f"{at:08}-{each:04}" * 4 for each in range(200)],
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=[],
        )
        return int(told["error_code"])

    until_refused(kafka, ask, GroupCode.GROUP_MAX_SIZE_REACHED)


def commit(client: RawClient, group: str, text: str) -> int:
    told = client.ask(
        "OffsetCommit",
        2,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[
            {
                "name": "orders",
                "partitions": [
                    {"partition_index": each, "committed_offset": 1, "committed_metadata": text}
                    for each in range(4)
                ],
            }
        ],
    )
    (code,) = {each["error_code"] for each in told["topics"][0]["partitions"]}
    return int(code)


def test_committed_offsets_of_all_groups_count(kafka: EmbeddedKafka, client: RawClient) -> None:
    assert commit(client, "g", "x" * 4_097) == KafkaCode.OFFSET_METADATA_TOO_LARGE
    until_refused(
        kafka, lambda at: commit(client, f"g{at}", "x" * 4_000), KafkaCode.INVALID_COMMIT_OFFSET_SIZE
    )


def test_a_group_that_commits_again_and_again_finds_room(kafka: EmbeddedKafka, client: RawClient) -> None:
    assert {commit(client, "g", "x" * 1_000) for _ in range(300)} == {0}


def begin(client: RawClient, name: str) -> int:
    told = client.ask(
        "InitProducerId",
        4,
        transactional_id=name,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    return int(told["error_code"])


def test_transactional_ids_count(kafka: EmbeddedKafka, client: RawClient) -> None:
    until_refused(kafka, lambda at: begin(client, f"{at:04}" * 500), KafkaCode.POLICY_VIOLATION)


def test_topics_have_no_more_partitions_than_there_is_room_for(
    kafka: EmbeddedKafka, client: RawClient
) -> None:
    def create(name: str, count: int) -> int:
        topic = {
            "name": name,
            "num_partitions": count,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        told = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=1_000, validate_only=False)
        return int(told["topics"][0]["error_code"])

    def grow(count: int) -> int:
        topic = {"name": "orders", "count": count, "assignments": None}
        told = client.ask("CreatePartitions", 3, topics=[topic], timeout_ms=1_000, validate_only=False)
        return int(told["results"][0]["error_code"])

    assert create("a", 57) == KafkaCode.POLICY_VIOLATION
    assert create("a", 50) == 0
    assert grow(11) == KafkaCode.POLICY_VIOLATION
    assert grow(10) == 0
    assert create("b", 1) == KafkaCode.POLICY_VIOLATION


def test_settings_of_topics_count(kafka: EmbeddedKafka, client: RawClient) -> None:
    def ask(at: int) -> int:
        config = {"name": "leader.replication.throttled.replicas", "value": "1:1," * 5_000 + "1:1"}
        topic = {
            "name": f"t{at}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [config],
        }
        told = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=1_000, validate_only=False)
        return int(told["topics"][0]["error_code"])

    until_refused(kafka, ask, KafkaCode.POLICY_VIOLATION)


def test_a_generation_that_is_larger_than_a_record_is_not_written(
    kafka: EmbeddedKafka, client: RawClient
) -> None:
    joined = join(client, "g", 1_000)
    fields = {
        "group_id": "g",
        "generation_id": joined["generation_id"],
        "member_id": joined["member_id"],
        "assignments": [{"member_id": joined["member_id"], "assignment": bytes(19_001)}],
    }
    assert client.ask("SyncGroup", 2, **fields)["error_code"] == KafkaCode.UNKNOWN_SERVER_ERROR
    fields["assignments"] = [{"member_id": joined["member_id"], "assignment": bytes(19_000)}]
    assert client.ask("SyncGroup", 2, **fields)["error_code"] == 0


def test_kept_bytes_are_counted_when_they_seem_too_many_and_not_too_often() -> None:
    now_s, counts = [0.0], [0]

    def count() -> int:
        counts[0] += 1
        now_s[0] += 0.1
        return 50

    room = KeptRoom(100, count, lambda: now_s[0])
    assert [room.take(40) for _ in range(2)] == [True, True]
    assert counts == [0]
    assert room.take(40)
    assert counts == [1]
    assert not room.take(40), "it was counted just now"
    assert counts == [1]
    now_s[0] += 2.1
    assert room.take(40)
    assert counts == [2]
    assert not KeptRoom(100, lambda: 90, lambda: now_s[0]).take(11 + 90)


def test_fetch_sessions_stay_within_their_limit_when_they_grow() -> None:
    sessions = FetchSessions(Random(1), 10)
    first = sessions.open([(("a", 0), {})], by_id=False)
    grown = sessions.open([(("a", 0), {})], by_id=False)
    sessions.change(grown, [(("b", each), {}) for each in range(LIMIT_PARTITIONS)], [])
    assert len(sessions) == 0
    assert sessions.use(first.session_id, 1, by_id=False) is KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    session = FetchSession(1, by_id=False)
    session.change([(("a" * 32_000, 0), {}), (("b", 0), {})], [])
    assert session.weight == 2 + 32_000 // 250
    session.change([(("b", 0), {})], [("a" * 32_000, 0), ("c", 0)])
    assert session.weight == 1


def test_decisions_about_long_names_are_not_remembered() -> None:
    rules = EmbeddedAuthorizer(allow_if_no_rule=True)
    assert rules.may("User:a", "h", AclOperation.READ, AclResource.GROUP, "g" * 32_000)
    assert not rules._decided
    assert rules.may("User:a", "h", AclOperation.READ, AclResource.GROUP, "g")
    assert rules._decided
    assert OVERHEAD_BYTES > 0
