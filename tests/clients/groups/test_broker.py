"""Questions to coordinators that are not ready yet: a broker that has just started loads its log first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.groups.records import GroupDescription
from holdfast.config import Settings
from holdfast.embedded.apis import handlers
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.errors import BrokerError, GroupError

LOADING, MOVED, DENIED = (
    KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaCode.NOT_COORDINATOR,
    KafkaCode.GROUP_AUTHORIZATION_FAILED,
)
EACH_IN = {"DescribeGroups": "groups", "DeleteGroups": "results"}
"""Where an answer has an error code for each group; elsewhere it has one for all."""
Refuse = Callable[[str, KafkaCode, int], list[str]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        yield kafka


@pytest.fixture
def groups(kafka: EmbeddedKafka) -> BrokerGroups:
    consumer = Consumer(kafka.client_config(**{"group.id": "billing"}))
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()
    return BrokerGroups(Settings(kafka={"bootstrap.servers": kafka.bootstrap}), timeout_s=10.0)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Have the next answers to an API be an error code, and return the list in which each is noted."""

    def begin(api: str, code: KafkaCode, times: int) -> list[str]:
        answer: Callable[[Any], Any] = handlers.HANDLERS[api]
        refused = list[str]()

        def answered(call: Any) -> Any:
            fields = answer(call)
            if len(refused) < times:
                refused.append(api)
                for each in fields[EACH_IN[api]] if api in EACH_IN else [fields]:
                    each["error_code"] = code
            return fields

        monkeypatch.setitem(handlers.HANDLERS, api, answered)
        return refused

    return begin


def described(groups: BrokerGroups) -> GroupDescription | None:
    found = groups.describe("billing")
    return None if found is None else found[0]


@pytest.mark.parametrize("code", [LOADING, MOVED])
def test_a_coordinator_that_is_not_ready_is_asked_again(
    groups: BrokerGroups, refuse: Refuse, code: KafkaCode
) -> None:
    refused = refuse("DescribeGroups", code, 3)
    found = described(groups)
    assert found is not None
    assert (found.state, len(refused)) == ("Empty", 3)
    refused = refuse("OffsetFetch", code, 3)
    assert (groups.committed("billing"), len(refused)) == ({("orders", 0): 7}, 3)
    refused = refuse("ListGroups", code, 3)
    assert (groups.states()["billing"], len(refused)) == ("Empty", 3)
    refused = refuse("DeleteGroups", code, 3)
    groups.delete("billing")
    assert len(refused) == 3
    assert described(groups) is None


def test_of_many_groups_only_those_without_an_answer_are_asked_again(
    groups: BrokerGroups, refuse: Refuse
) -> None:
    refused = refuse("DescribeGroups", LOADING, 1)
    found = groups.describe_all(["billing", "nobody", "another"])
    assert (sorted(found), len(refused)) == (["billing"], 1)


def test_a_group_that_does_not_exist_has_committed_nothing(groups: BrokerGroups) -> None:
    assert groups.committed("nobody") == {}


def test_one_that_is_never_ready_is_told_at_the_deadline(kafka: EmbeddedKafka, refuse: Refuse) -> None:
    hasty = BrokerGroups(Settings(kafka={"bootstrap.servers": kafka.bootstrap}), timeout_s=0.3)
    for api, question in (
        ("DescribeGroups", partial(hasty.describe, "billing")),
        ("ListGroups", hasty.states),
        ("OffsetFetch", partial(hasty.committed, "billing")),
    ):
        refused = refuse(api, LOADING, 1_000)
        with pytest.raises(BrokerError, match=r"(?i)coordinator.load.in.progress"):
            question()
        assert len(refused) > 1


def test_what_no_patience_mends_is_told_at_once(groups: BrokerGroups, refuse: Refuse) -> None:
    for api, question in (
        ("DescribeGroups", partial(groups.describe, "billing")),
        ("ListGroups", groups.states),
        ("OffsetFetch", partial(groups.committed, "billing")),
    ):
        refused = refuse(api, DENIED, 1_000)
        with pytest.raises(GroupError, match=r"(?i)authorization"):
            question()
        assert len(refused) == 1
