"""Requests to both brokers with authentication and rules for each user: as `scenarios`, on guarded
brokers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.embedded.protocol.table import message
from holdfast.embedded.security.acl_rules import (
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    AclRule,
)
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch
from tests.embedded.transcripts.guarded import GuardedTalk
from tests.support.patience import DEADLINE_S

SCENARIOS: dict[str, Callable[[GuardedTalk], None]] = {}
ALICE = "User:alice"
TOPIC, GROUP, CLUSTER, ID = (
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.CLUSTER,
    AclResource.TRANSACTIONAL_ID,
)
ANY_RULE = AclFilter(AclResource.ANY, None, AclPattern.ANY, None, None, AclOperation.ANY, AclPermission.ANY)


def scenario(body: Callable[[GuardedTalk], None]) -> Callable[[GuardedTalk], None]:
    SCENARIOS[body.__name__] = body
    return body


# -- who comes


def answer(talk: GuardedTalk, client: RawClient, api: str, version: int, **fields: Any) -> dict[str, Any]:
    """Send a request, record its answer and return it; {} where the connection is closed instead."""
    try:
        told = client.ask(api, version, **fields)
    except (ConnectionError, TimeoutError) as error:
        told = {}
        talk.lines.append(f"{api} {version}: {'silence' if isinstance(error, TimeoutError) else 'closed'}")
    else:
        talk.tell(f"{api} {version}", told)
    return told


def hears_no_more(talk: GuardedTalk, client: RawClient) -> None:
    """Write down whether the connection is closed now."""
    try:
        client.receive_frame()
    except ConnectionError:
        talk.lines.append("closed")


@scenario
def handshakes(talk: GuardedTalk) -> None:
    for version in talk.versions("SaslHandshake"):
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "", "plain"):
            client = talk.stranger()
            told = answer(talk, client, "SaslHandshake", version, mechanism=mechanism)
            if told["error_code"]:
                hears_no_more(talk, client)
            client.close()


@scenario
def what_comes_before(talk: GuardedTalk) -> None:
    software = {"client_software_name": "raw", "client_software_version": "1"}
    for version in talk.versions("ApiVersions"):
        client = talk.stranger()
        assert answer(talk, client, "ApiVersions", version, **software)
        answer(talk, client, "SaslHandshake", 1, mechanism="PLAIN")
        client.close()
    client = talk.stranger()
    answer(talk, client, "ApiVersions", 4)
    answer(talk, client, "ApiVersions", 3, **software)
    answer(talk, client, "ApiVersions", 3, **software)
    for api, fields in (
        ("Metadata", {"topics": []}),
        ("SaslAuthenticate", {"auth_bytes": b"\0root\0root-secret"}),
        ("FindCoordinator", {"coordinator_keys": ["g"]}),
    ):
        answer(talk, talk.stranger(), api, 1 if api == "Metadata" else 2, **fields)
    client = talk.stranger()
    answer(talk, client, "SaslHandshake", 1, mechanism="PLAIN")
    answer(talk, client, "SaslAuthenticate", 2, auth_bytes=b"\0root\0root-secret")
    answer(talk, client, "SaslHandshake", 1, mechanism="PLAIN")
    answer(talk, client, "SaslAuthenticate", 2, auth_bytes=b"\0root\0root-secret")
    answer(talk, client, "ApiVersions", 3, **software)


@scenario
def passwords_in_the_clear(talk: GuardedTalk) -> None:
    tokens = [
        b"\0alice\0alice-secret",
        b"alice\0alice\0alice-secret",
        b"bob\0alice\0alice-secret",
        b"\0alice\0bob-secret",
        b"\0nobody\0alice-secret",
        b"\0\0alice-secret",
        b"\0alice\0",
        b"alice\0alice-secret",
        b"\0alice\0alice-secret\0",
        b"",
        b"\xff\0alice\0alice-secret",
    ]
    for version in talk.versions("SaslAuthenticate"):
        for token in tokens:
            client = talk.stranger()
            client.ask("SaslHandshake", 1, mechanism="PLAIN")
            told = answer(talk, client, "SaslAuthenticate", version, auth_bytes=token)
            if told.get("error_code"):
                hears_no_more(talk, client)
            client.close()
    for token in tokens[:4]:
        client = talk.stranger()
        client.ask("SaslHandshake", 0, mechanism="PLAIN")
        client.send_frame(token)
        try:
            talk.lines.append(f"bare token: {client.receive_frame()!r}")
        except ConnectionError:
            talk.lines.append("bare token: closed")
            continue
        answer(talk, client, "DescribeCluster", 2, include_cluster_authorized_operations=True)


def proves(mechanism: str, client: RawClient, user: str, password: str, **wrong: Any) -> list[dict[str, Any]]:
    """Log in by SCRAM and return the answers; *wrong* replaces parts of the messages sent."""
    name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    bare = f"n={user},r=fyko"
    first = wrong.get("first", f"n,,{bare}")
    told = [client.ask("SaslAuthenticate", 2, auth_bytes=first.encode())]
    if told[0]["error_code"]:
        return told
    server = told[0]["auth_bytes"].decode()
    parts = dict(each.split("=", 1) for each in server.split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    unproved = f"c=biws,r={wrong.get('nonce', parts['r'])}"
    text = f"{bare},{server},{unproved}".encode()
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), text, name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    final = wrong.get("final", f"{unproved},p={base64.b64encode(proof).decode()}")
    told.append(client.ask("SaslAuthenticate", 2, auth_bytes=final.encode()))
    if not told[-1]["error_code"]:
        expected = hmac.digest(hmac.digest(salted, b"Server Key", name), text, name)
        assert told[-1]["auth_bytes"] == b"v=" + base64.b64encode(expected)
    return told


@scenario
def proofs_of_passwords(talk: GuardedTalk) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        user = with_password(talk, mechanism, "carol", "carol-secret")
        tries: list[tuple[str, str, dict[str, str]]] = [
            (user, "carol-secret", {}),
            (user, "wrong", {}),
            ("nobody", "carol-secret", {}),
            (user, "carol-secret", {"nonce": "fyko"}),
            (user, "carol-secret", {"first": f"y,,n={user},r=fyko"}),
            (user, "carol-secret", {"first": f"n,a={user},n={user},r=fyko"}),
            (user, "carol-secret", {"first": f"n,a=bob,n={user},r=fyko"}),
            (user, "carol-secret", {"first": f"n,,n={user},r=fyko,tokenauth=true"}),
            (user, "carol-secret", {"first": ""}),
            (user, "carol-secret", {"final": "nonsense"}),
            (user, "carol-secret", {"final": "c=biws,r=fyko,p=AAAA"}),
        ]
        for name, password, wrong in tries:
            client = talk.stranger()
            client.ask("SaslHandshake", 1, mechanism=mechanism)
            for told in proves(mechanism, client, name, password, **wrong):
                tokens = {"auth_bytes": bool(told["auth_bytes"])}
                talk.tell(f"{mechanism} {password} {sorted(wrong)}", {**told, **tokens})
            if told["error_code"]:
                hears_no_more(talk, client)
            client.close()


def with_password(talk: GuardedTalk, mechanism: str, name: str, password: str) -> str:
    """Make a user with a password for SCRAM, and return its name once the broker knows it."""
    user, salt = talk.name(name), b"0123456789abcdef"
    number = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}[mechanism]
    salted = hashlib.pbkdf2_hmac(mechanism[6:].replace("-", "").lower(), password.encode(), salt, 4096)
    wanted = {"name": user, "mechanism": number, "iterations": 4096, "salt": salt, "salted_password": salted}
    told = talk.quietly("AlterUserScramCredentials", 0, upsertions=[wanted])
    assert told["results"][0]["error_code"] == 0, told
    until_s = time.monotonic() + DEADLINE_S
    while talk.quietly("DescribeUserScramCredentials", 0, users=[{"name": user}])["results"][0]["error_code"]:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return user


@scenario
def passwords_changed(talk: GuardedTalk) -> None:
    def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
        told = {"name": name, "mechanism": mechanism, "iterations": iterations}
        return {**told, "salt": b"salt", "salted_password": b"salted"}

    def alter(*deletions: tuple[str, int], upsertions: Any = ()) -> None:
        gone = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
        told = talk.client().ask("AlterUserScramCredentials", 0, deletions=gone, upsertions=list(upsertions))
        told["results"].sort(key=lambda each: each["user"])
        talk.tell("AlterUserScramCredentials 0", told)
        time.sleep(0.2)  # until the broker has received it from its controller

    def describe(*names: str) -> None:
        told = talk.client().ask("DescribeUserScramCredentials", 0, users=[{"name": each} for each in names])
        told["results"].sort(key=lambda each: each["user"])
        for each in told["results"]:
            each["credential_infos"].sort(key=lambda one: one["mechanism"])
        talk.tell("DescribeUserScramCredentials 0", told)

    one, other = talk.name("one"), talk.name("other")
    describe(one)
    alter(upsertions=[upsertion(one), upsertion(other, 2, 16384)])
    describe(one, other)
    describe(one, one)
    alter(upsertions=[upsertion(one, 2)])
    describe(one)
    alter((one, 1), (other, 1), ("", 1), (other, 2))
    alter((one, 1), ("nobody", 2))
    describe(one, other)
    for wrong in (upsertion(""), upsertion(one, 0), upsertion(one, 3), upsertion(one, 1, 4095)):
        alter(upsertions=[wrong])
    alter(upsertions=[upsertion(one, 1, 16385)])
    alter((one, 2), upsertions=[upsertion(one)])
    alter(upsertions=[upsertion(one), upsertion(one, 2)])
    describe(one)


@scenario
def certificates(talk: GuardedTalk) -> None:
    for name in ("client", "misnamed"):
        client = talk.with_certificate(name)
        told = client.ask("DescribeCluster", 2, include_cluster_authorized_operations=True)
        talk.tell(f"DescribeCluster 2 by {name}", told)
        answer(talk, client, "SaslHandshake", 1, mechanism="PLAIN")
        client.close()


# -- rights


def rule(
    resource: AclResource, name: str, operation: AclOperation, principal: str = ALICE, **more: Any
) -> AclRule:
    return AclRule(resource, name, principal, operation, **more)


def grant(talk: GuardedTalk, *rules: AclRule) -> None:
    """Have *rules*, and no others, be in force."""
    present = rules_of(talk)
    wanted = set(rules)
    filters = [_filter(each) for each in present - wanted]
    if filters:
        talk.quietly("DeleteAcls", 3, filters=filters)
    if wanted - present:
        told = talk.quietly("CreateAcls", 3, creations=[creation_of(each) for each in wanted - present])
        assert {each["error_code"] for each in told["results"]} == {0}, told
    until_s = time.monotonic() + DEADLINE_S
    while rules_of(talk) != wanted:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def rules_of(talk: GuardedTalk) -> set[AclRule]:
    told = talk.quietly("DescribeAcls", 3, **filter_of(ANY_RULE))
    return {
        AclRule(
            AclResource(each["resource_type"]),
            each["resource_name"],
            entry["principal"],
            AclOperation(entry["operation"]),
            AclPattern(each["pattern_type"]),
            AclPermission(entry["permission_type"]),
            entry["host"],
        )
        for each in told["resources"]
        for entry in each["acls"]
    }


def filter_of(told: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": told.resource,
        "resource_name_filter": told.name,
        "pattern_type_filter": told.pattern,
        "principal_filter": told.principal,
        "host_filter": told.host,
        "operation": told.operation,
        "permission_type": told.permission,
    }


def _filter(told: AclRule) -> dict[str, Any]:
    return filter_of(
        AclFilter(
            told.resource, told.name, told.pattern, told.principal, told.host, told.operation, told.permission
        )
    )


def creation_of(told: AclRule) -> dict[str, Any]:
    return {
        "resource_type": told.resource,
        "resource_name": told.name,
        "resource_pattern_type": told.pattern,
        "principal": told.principal,
        "host": told.host,
        "operation": told.operation,
        "permission_type": told.permission,
    }


def _sorted(told: dict[str, Any]) -> dict[str, Any]:
    for each in told.get("resources", ()):
        each["acls"].sort(key=str)
    for each in told.get("filter_results", ()):
        each["matching_acls"].sort(key=str)
    told.get("resources", []).sort(key=str)
    return told


@scenario
def rules_made(talk: GuardedTalk) -> None:
    grant(talk)
    topic = talk.name("orders")
    good = rule(TOPIC, topic, AclOperation.READ)
    for version in talk.versions("CreateAcls"):
        talk.ask("CreateAcls", version, creations=[creation_of(good)])
    wrong = [
        good._replace(name=""),
        good._replace(resource=AclResource.UNKNOWN),
        good._replace(resource=AclResource.ANY),
        good._replace(resource=CLUSTER),
        good._replace(resource=CLUSTER, name="kafka-cluster", operation=AclOperation.READ),
        good._replace(pattern=AclPattern.ANY),
        good._replace(pattern=AclPattern.MATCH),
        good._replace(operation=AclOperation.ANY),
        good._replace(operation=AclOperation.UNKNOWN),
        good._replace(operation=AclOperation.CLUSTER_ACTION),
        good._replace(permission=AclPermission.ANY),
        good._replace(principal="alice"),
        good._replace(principal=""),
        good._replace(host=""),
        good._replace(host="nowhere"),
    ]
    for each in wrong:
        answer(talk, talk.client(f"root/{each}"), "CreateAcls", 3, creations=[creation_of(each)])
    talk.ask("CreateAcls", 3, creations=[creation_of(good), creation_of(wrong[0]), creation_of(good)])
    talk.ask("CreateAcls", 3, creations=[])
    grant(talk)


@scenario
def rules_found(talk: GuardedTalk) -> None:
    topic = talk.name("orders")
    rules = [
        rule(TOPIC, topic, AclOperation.READ),
        rule(TOPIC, topic, AclOperation.WRITE, permission=AclPermission.DENY),
        rule(TOPIC, topic, AclOperation.READ, "User:bob", host="127.0.0.1"),
        rule(TOPIC, "ord", AclOperation.READ, pattern=AclPattern.PREFIXED),
        rule(TOPIC, "*", AclOperation.ALL, "User:*"),
        rule(GROUP, topic, AclOperation.READ),
        rule(CLUSTER, "kafka-cluster", AclOperation.CREATE),
        rule(ID, topic, AclOperation.WRITE, "User:bob"),
    ]
    grant(talk, *rules)
    filters = [
        ANY_RULE,
        ANY_RULE._replace(resource=TOPIC),
        ANY_RULE._replace(name=topic),
        ANY_RULE._replace(name=topic, pattern=AclPattern.MATCH),
        ANY_RULE._replace(resource=TOPIC, name=topic, pattern=AclPattern.MATCH),
        ANY_RULE._replace(resource=TOPIC, name="other", pattern=AclPattern.MATCH),
        ANY_RULE._replace(name=topic, pattern=AclPattern.LITERAL),
        ANY_RULE._replace(name="ord", pattern=AclPattern.PREFIXED),
        ANY_RULE._replace(principal=ALICE),
        ANY_RULE._replace(host="127.0.0.1"),
        ANY_RULE._replace(operation=AclOperation.READ),
        ANY_RULE._replace(permission=AclPermission.DENY),
        ANY_RULE._replace(resource=AclResource.UNKNOWN),
        ANY_RULE._replace(pattern=AclPattern.UNKNOWN),
        ANY_RULE._replace(operation=AclOperation.UNKNOWN),
    ]
    for version in talk.versions("DescribeAcls"):
        for number, each in enumerate(filters):
            client = talk.client(f"root/{version}/{number}")
            try:
                told = client.ask("DescribeAcls", version, **filter_of(each))
            except ConnectionError:
                talk.lines.append(f"DescribeAcls {version}: closed")
            else:
                talk.tell(f"DescribeAcls {version}", _sorted(told))
    for version in talk.versions("DeleteAcls"):
        grant(talk, *rules)
        for each in (*filters[6:8], *filters[-3:], filters[3]):
            client = talk.client(f"root/deletes/{version}/{each}")
            try:
                told = client.ask("DeleteAcls", version, filters=[filter_of(each)])
            except ConnectionError:
                talk.lines.append(f"DeleteAcls {version}: closed")
            else:
                talk.tell(f"DeleteAcls {version}", _sorted(told))
    grant(talk)


@scenario
def what_rules_allow(talk: GuardedTalk) -> None:
    """Operations of alice on a topic, its group and the cluster, by each set of rules."""
    topic, group = talk.topic("orders"), talk.name("orders-group")
    talk.coordinated(group)
    deny: dict[str, Any] = {"permission": AclPermission.DENY}
    prefixed: dict[str, Any] = {"pattern": AclPattern.PREFIXED}
    everything = rule(TOPIC, topic, AclOperation.ALL)
    single = [[rule(TOPIC, topic, each)] for each in AclOperation if each >= AclOperation.ALL]
    sets: list[list[AclRule]] = [
        [],
        *single,
        *[
            [everything, rule(TOPIC, topic, each, **deny)]
            for each in AclOperation
            if each >= AclOperation.ALL
        ],
        [rule(TOPIC, topic, AclOperation.READ, "User:*")],
        [rule(TOPIC, topic, AclOperation.READ, "User:bob")],
        [rule(TOPIC, topic, AclOperation.READ, host="127.0.0.1")],
        [rule(TOPIC, topic, AclOperation.READ, host="10.0.0.1")],
        [rule(TOPIC, topic[:3], AclOperation.READ, **prefixed)],
        [rule(TOPIC, topic, AclOperation.READ, **prefixed)],
        [rule(TOPIC, f"{topic}x", AclOperation.READ, **prefixed)],
        [rule(TOPIC, topic[:3], AclOperation.READ)],
        [rule(TOPIC, "*", AclOperation.READ)],
        [rule(TOPIC, "*", AclOperation.READ, **prefixed)],
        [rule(TOPIC, "*", AclOperation.ALL), rule(TOPIC, topic[:4], AclOperation.WRITE, **deny, **prefixed)],
        [everything, rule(TOPIC, "*", AclOperation.READ, "User:*", **deny)],
        [everything, rule(TOPIC, topic, AclOperation.ALL, "User:bob", **deny)],
        [rule(TOPIC, topic, AclOperation.WRITE), rule(TOPIC, topic, AclOperation.DESCRIBE, **deny)],
        [rule(GROUP, group, AclOperation.READ), rule(CLUSTER, "kafka-cluster", AclOperation.ALTER)],
        [rule(GROUP, "*", AclOperation.ALL), rule(CLUSTER, "kafka-cluster", AclOperation.ALL)],
    ]
    for rules in sets:
        grant(talk, *rules)
        (found,) = talk.client("alice").ask(
            "Metadata", 12, topics=[{"name": topic}], include_topic_authorized_operations=True
        )["topics"]
        talk.lines.append(f"topic {found['error_code']} {found['topic_authorized_operations']}")
        told = talk.client("alice").ask(
            "DescribeGroups", 5, groups=[group], include_authorized_operations=True
        )["groups"][0]
        talk.lines.append(f"group {told['error_code']} {told['authorized_operations']}")
        found = talk.client("alice").ask("DescribeCluster", 2, include_cluster_authorized_operations=True)
        talk.lines.append(f"cluster {found['error_code']} {found['cluster_authorized_operations']}")
        root = talk.client().ask(
            "Metadata", 12, topics=[{"name": topic}], include_topic_authorized_operations=True
        )
        talk.lines.append(f"root {root['topics'][0]['topic_authorized_operations']}")
    grant(talk)


def requests(talk: GuardedTalk, topic: str, group: str, name: str) -> Mapping[str, dict[str, Any]]:
    """Return one request about these names to each api that requires a right."""
    topic_id = talk.topic_id(topic)
    named = {"name": topic, "topic": topic, "topic_id": topic_id}
    member = {"group_id": group, "member_id": "m", "generation_id": 3, "group_instance_id": None}
    producer = {"transactional_id": name, "producer_id": 7, "producer_epoch": 0}
    partition: dict[str, Any] = {
        "index": 0,
        "partition": 0,
        "partition_index": 0,
        "records": batch(b"one"),
        "timestamp": -1,
        "committed_offset": 1,
        "offset": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        "leader_epoch": 0,
    }
    topics = [{**named, "partitions": [partition]}]
    numbers = [{**named, "partitions": [0], "partition_indexes": [0]}]
    settings = {"resource_type": 2, "resource_name": topic}
    setting = {"name": "retention.ms", "value": "1000", "config_operation": 0}
    markers = {"producer_id": 7, "producer_epoch": 0, "transaction_result": True, "topics": numbers}
    transaction = {**producer, "verify_only": True, "topics": numbers}
    return {
        "Produce": {"acks": -1, "timeout_ms": 1000, "topic_data": [{**named, "partition_data": [partition]}]},
        "Fetch": {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": topics},
        "ListOffsets": {"replica_id": -1, "topics": topics},
        "Metadata": {"topics": [{"name": topic}], "allow_auto_topic_creation": True},
        "OffsetCommit": {**member, "generation_id_or_member_epoch": -1, "topics": topics},
        "OffsetFetch": {
            "group_id": group,
            "topics": numbers,
            "groups": [{"group_id": group, "topics": numbers}],
        },
        "FindCoordinator": {"key": group, "coordinator_keys": [group]},
        "JoinGroup": {
            **member,
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 6000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        "Heartbeat": member,
        "LeaveGroup": {**member, "members": [{"member_id": "m"}]},
        "SyncGroup": {**member, "protocol_type": "consumer", "protocol_name": "range"},
        "DescribeGroups": {"groups": [group], "include_authorized_operations": True},
        "CreateTopics": {
            "topics": [{"name": f"{topic}-made", "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        "DeleteTopics": {"topic_names": [topic], "topics": [{"name": topic}], "timeout_ms": 10_000},
        "DeleteRecords": {"topics": topics, "timeout_ms": 10_000},
        "InitProducerId": {"transactional_id": name, "transaction_timeout_ms": 10_000},
        "OffsetForLeaderEpoch": {"replica_id": -1, "topics": topics},
        "AddPartitionsToTxn": {
            **{f"v3_and_below_{key}": value for key, value in {**producer, "topics": numbers}.items()},
            "transactions": [transaction],
        },
        "AddOffsetsToTxn": {**producer, "group_id": group},
        "EndTxn": {**producer, "committed": True},
        "TxnOffsetCommit": {**producer, "group_id": group, "topics": topics},
        "WriteTxnMarkers": {"markers": [markers]},
        "DescribeAcls": filter_of(ANY_RULE),
        "CreateAcls": {"creations": [creation_of(rule(TOPIC, topic, AclOperation.READ))]},
        "DeleteAcls": {"filters": [filter_of(ANY_RULE), filter_of(ANY_RULE)]},
        "ListConfigResources": {},
        "DescribeConfigs": {"resources": [{**settings, "configuration_keys": ["retention.ms"]}]},
        "AlterConfigs": {"resources": [{**settings, "configs": [setting]}], "validate_only": True},
        "IncrementalAlterConfigs": {"resources": [{**settings, "configs": [setting]}], "validate_only": True},
        "CreatePartitions": {
            "topics": [{"name": topic, "count": 3}],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        "DeleteGroups": {"groups_names": [group]},
        "OffsetDelete": {"group_id": group, "topics": topics},
        "DescribeUserScramCredentials": {"users": [{"name": "nobody"}]},
        "AlterUserScramCredentials": {"deletions": [{"name": "nobody", "mechanism": 1}]},
        "ElectLeaders": {"topic_partitions": [{"topic": topic, "partitions": [0]}]},
        "ListPartitionReassignments": {"topics": [{"name": topic, "partition_indexes": [0]}]},
        "DescribeLogDirs": {"topics": [{"topic": topic, "partitions": [0]}]},
        "DescribeCluster": {"include_cluster_authorized_operations": True},
        "DescribeTopicPartitions": {"topics": [{"name": topic}], "response_partition_limit": 10},
        "DescribeProducers": {"topics": numbers},
        "DescribeTransactions": {"transactional_ids": [name]},
        "ConsumerGroupHeartbeat": {
            "group_id": group,
            "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
            "member_epoch": 0,
            "rebalance_timeout_ms": 6000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        },
        "ConsumerGroupDescribe": {"group_ids": [group], "include_authorized_operations": True},
    }


def fields_of(api: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return of *fields* those that the message has, at each level."""

    def kept(value: Any, told: Any) -> Any:
        if isinstance(value, list):
            return [kept(each, told) for each in value]
        if isinstance(value, dict):
            by_name = {each.name: each for each in told}
            return {key: kept(each, by_name[key].fields) for key, each in value.items() if key in by_name}
        return value

    found: dict[str, Any] = kept(fields, message(f"{api}Request").fields)
    return found


@scenario
def nothing_is_allowed(talk: GuardedTalk) -> None:
    """Each version of each api, by a user without rights: on resources that exist, and on others."""
    grant(talk)
    topic, group, name = talk.topic("orders"), talk.name("group"), talk.name("copier")
    asked = requests(talk, topic, group, name)
    for api, fields in asked.items():
        for version in talk.versions(api):
            client = talk.client(f"alice/{api}/{version}")
            answer(talk, client, api, version, **fields_of(api, fields))
    nowhere = talk.name("nowhere")
    talk.ask("ListGroups", 5, by="alice")
    talk.ask("ListTransactions", 2, by="alice")
    talk.ask("Metadata", 12, by="alice", topics=None)
    talk.ask("Metadata", 12, by="alice", topics=[{"name": nowhere}], allow_auto_topic_creation=True)
    talk.ask("Metadata", 12, by="alice", topics=[{"name": None, "topic_id": talk.topic_id(topic)}])
    talk.ask("Metadata", 12, by="alice", topics=[{"name": None, "topic_id": b"x" * 16}])
    talk.ask(
        "DeleteTopics",
        6,
        by="alice",
        topics=[{"name": None, "topic_id": talk.topic_id(topic)}],
        timeout_ms=1000,
    )
    talk.ask("DeleteTopics", 6, by="alice", topics=[{"name": nowhere}], timeout_ms=1000)
    talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
    told = batch(b"one", attributes=16, producer_id=7, producer_epoch=0, base_sequence=0)
    data = {"name": topic, "partition_data": [{"index": 0, "records": told}]}
    talk.ask("Produce", 11, by="alice", acks=-1, timeout_ms=1000, transactional_id=name, topic_data=[data])
    talk.ask("Produce", 11, by="alice", acks=-1, timeout_ms=1000, transactional_id=None, topic_data=[data])
    broker = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["num.partitions"]}
    of_group = {"resource_type": 32, "resource_name": group, "configuration_keys": []}
    talk.ask("DescribeConfigs", 4, by="alice", resources=[broker, of_group])
    talk.ask("FindCoordinator", 6, by="alice", key_type=1, coordinator_keys=[name])
    for key in ("g", "h"):
        talk.ask("FindCoordinator", 3, by="alice", key_type=0, key=key)
    everything = rule(TOPIC, topic, AclOperation.ALL)
    grant(talk, everything)
    session = talk.client("alice").ask(
        "Fetch",
        12,
        max_wait_ms=0,
        min_bytes=0,
        session_epoch=0,
        topics=[{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}],
    )
    grant(talk)
    talk.ask(
        "Fetch", 12, by="alice", max_wait_ms=0, min_bytes=0, session_id=session["session_id"], session_epoch=1
    )


@scenario
def a_part_is_allowed(talk: GuardedTalk) -> None:
    """Requests that need several rights, each without one of them."""
    topic, other = talk.topic("orders"), talk.topic("other")
    group, name = talk.name("group"), talk.name("copier")
    talk.coordinated(name, 1)
    talk.coordinated(group)
    # The first producer id of a broker's life has to wait for a block of them.
    talk.quietly("InitProducerId", 5, transactional_id=talk.name("first"), transaction_timeout_ms=1000)
    asked = requests(talk, topic, group, name)

    def ask(api: str, version: int | None = None, **more: Any) -> dict[str, Any]:
        return talk.ask(api, version, by="alice", **{**fields_of(api, asked[api]), **more})

    reads, writes = rule(GROUP, group, AclOperation.READ), rule(ID, name, AclOperation.WRITE)
    grant(talk, reads)
    ask("OffsetCommit", 9)
    ask("OffsetCommit")
    ask("OffsetFetch", 9)
    ask("OffsetFetch")
    ask("OffsetFetch", 7)
    ask("AddOffsetsToTxn")
    ask("TxnOffsetCommit")
    ask("ConsumerGroupHeartbeat")
    ask("DescribeGroups")
    ask("OffsetDelete")
    talk.ask("ListGroups", 5, by="alice")
    grant(talk, rule(TOPIC, topic, AclOperation.READ), reads)
    ask("OffsetCommit", 9)
    told = [
        {"name": each, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
        for each in (topic, other)
    ]
    ask("OffsetCommit", 9, topics=told)
    missing = {"name": talk.name("nowhere"), "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    ask("OffsetCommit", 9, topics=[*told, missing])
    ask("OffsetFetch", 9)
    talk.ask("OffsetFetch", 9, by="alice", groups=[{"group_id": group, "topics": None}])
    wanted = [{"name": each, "partition_indexes": [0]} for each in (topic, other)]
    talk.ask("OffsetFetch", 9, by="alice", groups=[{"group_id": group, "topics": wanted}])
    talk.ask("OffsetCommit", 9, group_id=group, topics=told)
    talk.ask("OffsetFetch", 9, by="alice", groups=[{"group_id": group, "topics": None}])
    talk.ask("ListGroups", 5, by="alice", types_filter=["consumer"])
    ask("DescribeGroups")
    ask("Fetch", 12)
    ask("ListOffsets")
    ask("OffsetForLeaderEpoch")
    ask("DescribeProducers")
    ask("Produce", 11)
    ask("CreateTopics")
    ask("DeleteTopics")
    grant(talk, writes)
    ask("InitProducerId", 5)
    talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
    ask("AddPartitionsToTxn", 3)
    ask("AddOffsetsToTxn")
    ask("TxnOffsetCommit")
    ask("DescribeTransactions")
    grant(talk, writes, rule(TOPIC, topic, AclOperation.WRITE))
    places = [{"name": each, "partitions": [0]} for each in (topic, other, talk.name("nowhere"))]
    ask("AddPartitionsToTxn", 3, v3_and_below_topics=places)
    talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
    data = [
        {"name": each, "partition_data": [{"index": 0, "records": batch(b"1")}]} for each in (topic, other)
    ]
    ask("Produce", 11, topic_data=data)
    cluster = "kafka-cluster"
    for operation in (
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.CLUSTER_ACTION,
    ):
        grant(talk, rule(CLUSTER, cluster, operation))
        ask("CreateTopics")
        talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
        ask("ListConfigResources", resource_types=[4])
        ask("DescribeUserScramCredentials")
        ask("AlterUserScramCredentials")
        ask("DescribeCluster")
        ask("OffsetForLeaderEpoch")
        ask("DeleteAcls", filters=[filter_of(ANY_RULE._replace(principal="User:nobody"))])
    for operation in (
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ):
        grant(talk, rule(TOPIC, "*", operation))
        for api in (
            "CreateTopics",
            "CreatePartitions",
            "DeleteRecords",
            "DescribeConfigs",
            "IncrementalAlterConfigs",
        ):
            ask(api)
        talk.ask(
            "Metadata",
            12,
            by="alice",
            topics=[{"name": talk.name("nowhere")}],
            allow_auto_topic_creation=True,
        )
        talk.ask("DeleteTopics", 6, by="alice", topics=[{"name": talk.name("nowhere")}], timeout_ms=1000)
        told_id = [{"name": None, "topic_id": talk.topic_id(other)}]
        if operation is not AclOperation.DELETE:
            talk.ask("DeleteTopics", 6, by="alice", topics=told_id, timeout_ms=1000)
    grant(
        talk,
        rule(TOPIC, topic, AclOperation.WRITE),
        rule(TOPIC, "ord", AclOperation.WRITE, pattern=AclPattern.PREFIXED, permission=AclPermission.DENY),
    )
    talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
    grant(
        talk,
        rule(TOPIC, topic, AclOperation.WRITE),
        rule(TOPIC, topic, AclOperation.WRITE, permission=AclPermission.DENY),
    )
    talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
    grant(
        talk,
        rule(TOPIC, "*", AclOperation.WRITE),
        rule(TOPIC, topic, AclOperation.WRITE, permission=AclPermission.DENY),
    )
    talk.ask("InitProducerId", 5, by="alice", transactional_id=None, transaction_timeout_ms=1000)
    grant(talk)
