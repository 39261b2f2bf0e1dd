"""The right that each api requires: calls of a user with that right alone, and of one with every other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from holdfast.embedded.security.acl_rules import (
    ANYTHING,
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResource,
    AclRule,
)
from holdfast.embedded.security.authorizer import OPERATIONS
from tests.embedded.transcripts.asking import batch
from tests.embedded.transcripts.guarded import GuardedTalk
from tests.embedded.transcripts.guarded_scenarios import (
    ANY_RULE,
    creation_of,
    fields_of,
    filter_of,
    grant,
    requests,
    rule,
    scenario,
)
from tests.embedded.transcripts.guarded_sessions import SCENARIOS
from tests.embedded.transcripts.talk import NOT_YET, codes_in
from tests.support.patience import DEADLINE_S

__all__ = ["SCENARIOS"]

_OPERATIONS = {
    **OPERATIONS,
    AclResource.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
}
FORBIDDEN = {29, 30, 31, 53}
NOT_OFFERED = ((4, "1", "nonsense", "2"), (32, "", "consumer.session.timeout.ms", "50000"))
"""Kinds of resources whose settings cannot be changed here: kind, name, setting, value. Only the permission
is recorded of them. Kafka checks known settings of a broker before it checks rights.
"""
WITHOUT_LOGGERS = {("DescribeConfigs", 8), ("IncrementalAlterConfigs", 8)}
RIGHTS = [(kind, each) for kind, several in _OPERATIONS.items() for each in several]


def _named(kind: AclResource) -> str:
    return CLUSTER_NAME if kind is AclResource.CLUSTER else ANYTHING


def rule_sets() -> Iterator[tuple[str, list[AclRule]]]:
    """Yield sets of rules, by name: nothing, everything, each right alone, and everything without it."""
    everything = [rule(kind, _named(kind), AclOperation.ALL) for kind in _OPERATIONS]
    yield "nothing", []
    yield "everything", everything
    for kind, operation in RIGHTS:
        right = rule(kind, _named(kind), operation)
        yield f"{operation.name} of {kind.name}", [right]
        denial = right._replace(permission=AclPermission.DENY)
        yield f"all but {operation.name} of {kind.name}", [*everything, denial]


def _config(kind: int, name: str, setting: str, value: str) -> dict[str, Any]:
    told = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
    return {**told, "configs": [{"name": setting, "value": value, "config_operation": 0}]}


def further(topic: str, group: str, name: str) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
    """Yield requests that ask for other rights than those of `requests` do: api, version, fields."""
    for kind, about, setting, value in NOT_OFFERED:
        resource = {
            "resources": [_config(kind, about or group, setting, value)],
            "validate_only": True,
        }
        yield "DescribeConfigs", None, resource
        yield "IncrementalAlterConfigs", None, resource
    for about, kind in (("", 2), (topic, 3), ("1", 8)):
        for api in ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"):
            if (api, kind) not in WITHOUT_LOGGERS:
                resource = {"resources": [_config(kind, about, "nonsense", "1")], "validate_only": True}
                yield api, None, resource
    yield "FindCoordinator", None, {"key_type": 1, "coordinator_keys": [name]}
    yield "FindCoordinator", 2, {"key_type": 1, "key": name}
    yield "InitProducerId", 5, {"transactional_id": None, "transaction_timeout_ms": 1000}
    written = batch(b"one", attributes=16, producer_id=7, producer_epoch=0, base_sequence=0)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": written}]}]
    yield "Produce", 11, {"acks": -1, "timeout_ms": 1000, "transactional_id": name, "topic_data": data}
    yield "Metadata", 12, {"topics": None, "include_cluster_authorized_operations": True}
    absent = [{"name": f"{topic}-absent"}]
    yield "Metadata", 12, {"topics": absent, "allow_auto_topic_creation": False}
    yield "DescribeTopicPartitions", None, {"topics": absent, "response_partition_limit": 10}
    yield "ListGroups", None, {}
    yield "ListTransactions", None, {}


def _asked(talk: GuardedTalk, topic: str, group: str, name: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    more: dict[str, dict[str, Any]] = {
        "DeleteAcls": {"filters": [filter_of(ANY_RULE._replace(principal="User:nobody"))]},
        "DeleteTopics": {"topics": [{"name": f"{topic}-absent"}], "timeout_ms": 1000},
        "CreateAcls": {
            "creations": [creation_of(rule(AclResource.TOPIC, topic, AclOperation.READ, "unnamed"))]
        },
        "ConsumerGroupHeartbeat": {"group_id": f"{group}-modern"},
    }
    for api, fields in requests(talk, topic, group, name).items():
        versions = list(talk.versions(api))
        for version in (3, versions[-1]) if api == "AddPartitionsToTxn" else (versions[-1],):
            yield api, version, {**fields_of(api, fields), **more.get(api, {})}
    for api, asked, fields in further(topic, group, name):
        yield api, list(talk.versions(api))[-1] if asked is None else asked, fields_of(api, fields)


def _codes(talk: GuardedTalk, client: str, api: str, version: int, fields: dict[str, Any]) -> str:
    """Return the codes of an answer, and whether each of its lists has any element."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < until_s
        told = talk.client(client).ask(api, version, **fields)
        if not (codes := codes_in(told)) & NOT_YET:
            if {each.get("resource_type") for each in fields.get("resources", ())} & {4, 32}:
                return "refused" if codes & FORBIDDEN else "allowed"
            seen = [min(len(value), 1) for key, value in sorted(told.items()) if isinstance(value, list)]
            return f"{sorted(codes)} {seen}"


@scenario
def rights_of_each_api(talk: GuardedTalk) -> None:
    topic, group, name = talk.topic("orders"), talk.name("group"), talk.name("copier")
    talk.coordinated(name, 1)
    talk.coordinated(group)
    talk.coordinated(f"{group}-modern")
    asked = list(_asked(talk, topic, group, name))
    for words, rules in rule_sets():
        grant(talk, *rules)
        for number, (api, version, fields) in enumerate(asked):
            client = f"alice/{number}"
            try:
                talk.lines.append(f"{words}: {api} {version} {_codes(talk, client, api, version, fields)}")
            except ConnectionError:
                talk.lines.append(f"{words}: {api} {version} closed")
                talk.forget(client)
    grant(talk)
