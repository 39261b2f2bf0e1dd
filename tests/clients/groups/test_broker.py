"""Questions to coordinators that are not ready yet: a broker that has just started loads its log first."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from holdfast.cli.__main__ import main
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.groups.records import GroupDescription, ShownState
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.clock import ManualClock, SystemClock
from holdfast.config import Settings
from holdfast.embedded.apis import handlers
from holdfast.embedded.internal_log import OFFSETS, home_of
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.errors import BrokerError, GroupError
from holdfast.kafka import coordinator_admin
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

LOADING, MOVED, DENIED = (
    KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaCode.NOT_COORDINATOR,
    KafkaCode.GROUP_AUTHORIZATION_FAILED,
)
EACH_IN = {
    "DescribeGroups": ("groups",),
    "DeleteGroups": ("results",),
    "OffsetCommit": ("topics", "partitions"),
}
"""Paths to the error codes in an answer that has one for each group or partition; others have one for all."""
MORE_THAN_CLIENTS_TRY = 8
"""librdkafka sends a commit again by itself, twice."""
Refuse = Callable[[str, KafkaCode, int], list[str]]


class ClockOverWhen(SystemClock):
    """The machine's clock, on which every deadline is over once *over* says so: however slow the machine is,
    that has happened.
    """

    def __init__(self) -> None:
        self.over: Callable[[], bool] = lambda: False

    def monotonic_s(self) -> float:
        return super().monotonic_s() + (1e6 if self.over() else 0.0)


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
    return BrokerGroups(Settings(kafka={"bootstrap.servers": kafka.bootstrap}), timeout_s=DEADLINE_S)


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
                found = [fields]
                for name in EACH_IN.get(api, ()):
                    found = [each for outer in found for each in outer[name]]
                for each in found:
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
    assert (groups.states().states["billing"], len(refused)) == ("Empty", 3)
    refused = refuse("DeleteGroups", code, 3)
    groups.delete("billing")
    assert len(refused) == 3
    assert described(groups) is None


@pytest.mark.long
@pytest.mark.parametrize("code", [LOADING, MOVED])
def test_offsets_are_written_once_their_coordinator_is_ready(
    groups: BrokerGroups, kafka: EmbeddedKafka, refuse: Refuse, code: KafkaCode
) -> None:
    refused = refuse("OffsetCommit", code, MORE_THAN_CLIENTS_TRY)
    settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap})
    CommittedOffsets(settings, "billing", timeout_s=DEADLINE_S).commit({("orders", 0): 9})
    assert len(refused) == MORE_THAN_CLIENTS_TRY
    assert groups.committed("billing") == {("orders", 0): 9}


def test_of_many_groups_only_those_without_an_answer_are_asked_again(
    groups: BrokerGroups, refuse: Refuse
) -> None:
    refused = refuse("DescribeGroups", LOADING, 1)
    found = groups.describe_all(["billing", "nobody", "another"])
    assert (sorted(found), len(refused)) == (["billing"], 1)


def test_a_group_that_does_not_exist_has_committed_nothing(groups: BrokerGroups) -> None:
    assert groups.committed("nobody") == {}


def test_a_group_that_is_never_ready_is_reported_at_the_deadline(
    kafka: EmbeddedKafka, refuse: Refuse
) -> None:
    clock = ClockOverWhen()
    settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap})
    hasty = BrokerGroups(settings, timeout_s=DEADLINE_S, clock=clock)
    for api, question in (
        ("DescribeGroups", partial(hasty.describe, "billing")),
        ("ListGroups", hasty.states),
        ("OffsetFetch", partial(hasty.committed, "billing")),
    ):
        refused = refuse(api, LOADING, 1_000)
        clock.over = partial(_have_two, refused)
        with pytest.raises(BrokerError, match=r"(?i)coordinator.load.in.progress"):
            question()
        assert len(refused) > 1


def _have_two(found: list[str]) -> bool:
    return len(found) > 1


def test_an_error_that_no_patience_mends_is_reported_at_once(groups: BrokerGroups, refuse: Refuse) -> None:
    for api, question in (
        ("DescribeGroups", partial(groups.describe, "billing")),
        ("ListGroups", groups.states),
        ("OffsetFetch", partial(groups.committed, "billing")),
    ):
        refused = refuse(api, DENIED, 1_000)
        with pytest.raises(GroupError, match=r"(?i)authorization"):
            question()
        assert len(refused) == 1


class SilentBroker:
    """One of three brokers that gives no answer to *apis* from `fall_silent` on; "loud" lives at another one
    than "silent".
    """

    def __init__(self, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        at = {name: home_of(kafka.cluster.topics, OFFSETS, name).leader for name in ("loud", "silent")}
        assert at["loud"] != at["silent"]
        self._node = kafka.cluster.nodes[at["silent"]]
        self.name = f"127.0.0.1:{self._node.port} ({self._node.node_id})"
        self.other = f"127.0.0.1:{kafka.cluster.nodes[at['loud']].port}"

    def fall_silent(self, api: str) -> None:
        answer: Callable[[Any], Any] = handlers.HANDLERS[api]

        async def never() -> None:
            await asyncio.Event().wait()

        def answered(call: Any) -> Any:
            return never() if call.node_id == self._node.node_id else answer(call)

        self._monkeypatch.setitem(handlers.HANDLERS, api, answered)


@pytest.fixture
def silent_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, SilentBroker]]:
    monkeypatch.setattr(coordinator_admin, "ATTEMPT_S", 0.5)
    monkeypatch.setattr(coordinator_admin, "NAMING_S", DEADLINE_S)
    with EmbeddedKafka(nodes=3, seed=1) as kafka:
        kafka.create_topic("orders")
        for group in ("loud", "silent"):
            consumer = Consumer(kafka.client_config(**{"group.id": group}))
            consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
            consumer.close()
        yield (
            Settings(kafka={"bootstrap.servers": kafka.bootstrap}),
            SilentBroker(kafka, monkeypatch),
        )


def test_a_silent_coordinator_is_named_and_hides_no_other_groups(
    silent_broker: tuple[Settings, SilentBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, broker = silent_broker
    broker.fall_silent("DescribeGroups")
    name = broker.name
    clock = ClockOverWhen()
    groups = BrokerGroups(settings, timeout_s=DEADLINE_S, clock=clock)
    result, received = groups._admin.result, list[Any]()

    def noting(future: Any, timeout_s: float) -> Any:
        received.append(result(future, timeout_s))
        return received[-1]

    monkeypatch.setattr(groups._admin, "result", noting)
    clock.over = lambda: bool(received)
    found = groups.describe_all(["silent", "loud"])
    assert {group: (each.state, each.members) for group, (each, _) in found.items()} == {
        "loud": ("Empty", 0),
        "silent": (ShownState.NO_ANSWER, 0),
    }
    assert found["silent"][0].coordinator == name
    with pytest.raises(BrokerError, match=rf"group silent: no answer .* coordinator {re.escape(name)}"):
        BrokerGroups(settings, timeout_s=0.3).describe("silent")


def listed(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, dict[str, str], str]:
    """Return exit code, states by group, and the line of `groups list` in its second: the first that has
    "loud".

    A machine that stalls may need more than one.
    """

    def found() -> tuple[object, dict[str, str], str] | None:
        with pytest.raises(SystemExit) as ended:
            main(f"--bootstrap {bootstrap} groups list --timeout 1 --output json".split())
        told = capsys.readouterr()
        states = {each["group"]: each["state"] for each in json.loads(told.out or "[]")}
        return (ended.value.code, states, told.err) if states.get("loud") == "Empty" else None

    return wait_for("a list with the groups of those who answer", found, DEADLINE_S)


@pytest.mark.long
def test_a_list_that_lacks_a_coordinator_shows_the_others_and_fails(
    silent_broker: tuple[Settings, SilentBroker], capsys: pytest.CaptureFixture[str]
) -> None:
    settings, broker = silent_broker
    broker.fall_silent("DescribeGroups")
    code, states, told = listed(settings.bootstrap_servers, capsys)
    assert (code, states) == (1, {"loud": "Empty", "silent": "NoAnswer"})
    why = f"no answer within 1 s from the coordinator {broker.name}"
    assert f"of 2 groups 1 are in state NoAnswer: {why}" in told


def test_a_list_waits_for_its_time_once(groups: BrokerGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that load for 6 of 10 s, and are silent then, have 4 s left; their refusal is reported."""
    clock, waits = ManualClock(), list[float]()
    loading = SimpleNamespace(valid=[], errors=[KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)])

    def result(future: object, timeout_s: float) -> object:
        waits.append(timeout_s)
        if len(waits) > 1:
            raise FutureTimeoutError
        clock.advance_ms(6_000)
        return loading

    monkeypatch.setattr(groups, "_clock", clock)
    monkeypatch.setattr(groups, "_timeout_s", 10.0)
    monkeypatch.setattr(groups._admin, "result", result)
    with pytest.raises(BrokerError, match=r"(?i)load"):
        groups.states()
    assert waits == [10.0, 4.0]


@pytest.mark.long
@pytest.mark.parametrize("api", ["ListGroups", "ApiVersions"])
def test_a_broker_that_lists_no_groups_hides_no_group_of_another_broker(
    silent_broker: tuple[Settings, SilentBroker], capsys: pytest.CaptureFixture[str], api: str
) -> None:
    """One that falls silent later, and one that never replied."""
    _, broker = silent_broker
    broker.fall_silent(api)
    code, states, told = listed(broker.other, capsys)
    assert (code, [*states]) == (1, ["loud"])
    assert "1 of the brokers did not list the groups that they coordinate: list of groups: no answer" in told


@pytest.mark.long
def test_a_coordinator_that_cuts_its_answers_is_asked_again(
    kafka: EmbeddedKafka, groups: BrokerGroups
) -> None:
    for api, question in (
        ("ListGroups", groups.states),
        ("OffsetFetch", partial(groups.committed, "billing")),
    ):
        before = len(kafka.faults.hits)
        kafka.fault("cut", api)
        assert question()
        assert len(kafka.faults.hits) == before + 1


@pytest.mark.long
def test_a_coordinator_that_is_slower_than_the_first_attempt_is_waited_for(
    groups: BrokerGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("coordinator_admin", "requests.group_offsets"):
        monkeypatch.setattr(f"holdfast.kafka.{module}.ATTEMPT_S", 0.05)
    for api in ("DescribeGroups", "OffsetFetch"):
        answer: Callable[[Any], Any] = handlers.HANDLERS[api]

        async def slowly(call: Any, answer: Callable[[Any], Any] = answer) -> Any:
            await asyncio.sleep(0.3)
            return answer(call)

        monkeypatch.setitem(handlers.HANDLERS, api, slowly)
    assert described(groups) is not None
    assert groups.committed("billing") == {("orders", 0): 7}


@pytest.mark.parametrize(
    "question",
    [BrokerGroups.states, lambda asked: asked.describe("billing"), lambda asked: asked.committed("billing")],
    ids=["states", "describe", "committed"],
)
def test_a_wrong_password_is_reported_at_once(question: Callable[[BrokerGroups], object]) -> None:
    with EmbeddedKafka(users={"root": "secret"}) as kafka:
        config = {key: str(value) for key, value in kafka.client_config().items()}
        asked = BrokerGroups(Settings(kafka={**config, "sasl.password": "wrong"}), timeout_s=3_600.0)
        with pytest.raises(BrokerError, match=r"cannot log in .*: .*; check the sasl"):
            question(asked)
