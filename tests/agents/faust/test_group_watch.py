"""The group's answers decide whether this worker is an owner: from when on, until when, and when the worker
has to end.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import InconsistentGroupProtocolError, KafkaError, UnknownError
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from confluent_kafka import Consumer

from holdfast.agents.faust.transport import group_watch
from holdfast.agents.faust.transport.group_watch import watch_group
from holdfast.agents.partitions.membership import Membership
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import InstanceFencedError
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

SESSION_S, REBALANCE_S = 6.0, 30.0
HEARTBEAT = HeartbeatRequest("app", 3, "me")
JOIN = JoinGroupRequest("app", 6_000, 30_000, "me", None, "consumer", [])
SYNC = SyncGroupRequest("app", 3, "me", None, [])
COMMIT = OffsetCommitRequest("app", 3, "me", -1, [("in", [(0, 7, "")])])


def answer(code: int) -> SimpleNamespace:
    return SimpleNamespace(error_code=code)


class Coordinator:
    """aiokafka's, as far as it is wrapped: its answers are prepared, and take *takes_ms* each."""

    def __init__(self, clock: ManualClock) -> None:
        self.group_id, self.generation, self.member_id = "app", 3, "me"
        self._group_instance_id: str | None = None
        self._clock, self._closing = clock, asyncio.get_running_loop().create_future()
        self.answers: list[Any] = []
        self.takes_ms = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.pushed: list[BaseException] = []
        self.fails = asyncio.Event()
        self._coordination_task = asyncio.ensure_future(self._routine())

    async def _routine(self) -> None:
        await self.fails.wait()
        raise AssertionError("http://old:1 is not http://new:1")

    async def _send_req(self, request: object) -> Any:
        self._clock.advance_ms(self.takes_ms)
        await self.may_answer.wait()
        return self.answers.pop(0)

    def _push_error_to_user(self, error: BaseException) -> str:
        self.pushed.append(error)
        return "told"


class Group:
    """A membership with its coordinator on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.membership = Membership(session_s=SESSION_S, rebalance_s=REBALANCE_S, clock=self.clock)
        self.coordinator = Coordinator(self.clock)
        self.crashes: list[BaseException] = []
        monkeypatch.setattr(group_watch, "system_clock", self.clock)
        watch_group(
            self.coordinator,
            SimpleNamespace(  # type: ignore[arg-type]
                membership=self.membership,
                crash_soon=self.crashes.append,
                settings=Settings(app="app", instance_id="same"),
            ),
        )

    async def ask(self, request: object, reply: Any, takes_ms: int = 0) -> None:
        self.coordinator.answers.append(reply)
        self.coordinator.takes_ms = takes_ms
        assert await self.coordinator._send_req(request) is reply

    async def assigned(self) -> None:
        await self.ask(JOIN, answer(0))
        await self.ask(SYNC, answer(0))
        self.membership.adopt(self.membership.term)
        assert self.membership.owns()


def test_an_assignment_is_counted_from_the_sending_of_the_sync_and_not_from_its_adoption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def frozen() -> None:
        group = Group(monkeypatch)
        await group.ask(JOIN, answer(0))
        await group.ask(SYNC, answer(0), takes_ms=2_000)
        group.clock.advance_ms(3_999)
        group.membership.adopt(group.membership.term)
        assert group.membership.owns()
        group.clock.advance_ms(1)
        assert not group.membership.owns()

    asyncio.run(frozen())


def test_a_heartbeat_counts_from_its_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow() -> None:
        group = Group(monkeypatch)
        await group.assigned()
        await group.ask(HEARTBEAT, answer(0), takes_ms=5_000)
        assert group.membership.owns()
        group.clock.advance_ms(1_000)
        assert not group.membership.owns()
        await group.ask(HEARTBEAT, answer(0))
        assert group.membership.owns()

    asyncio.run(slow())


@pytest.mark.parametrize("code", [22, 25, 82])
@pytest.mark.parametrize("request_", [HEARTBEAT, JOIN, SYNC, COMMIT])
def test_a_member_that_is_refused_owns_nothing_from_then_on(
    monkeypatch: pytest.MonkeyPatch, request_: object, code: int
) -> None:
    async def refused() -> None:
        group = Group(monkeypatch)
        await group.assigned()
        await group.ask(request_, SimpleNamespace(error_code=code, topics=[("in", [(0, code)])]))
        assert not group.membership.owns()
        await group.ask(HEARTBEAT, answer(0))
        assert not group.membership.owns(), "nothing but a new assignment makes it an owner again"
        await group.assigned()

    asyncio.run(refused())


def test_from_the_next_generation_on_nothing_is_owned_before_its_assignment_is_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def next_generation() -> None:
        group = Group(monkeypatch)
        await group.assigned()
        await group.ask(HEARTBEAT, answer(27))
        assert group.membership.owns(), "nobody else does before the next generation begins"
        await group.ask(JOIN, answer(0))
        assert not group.membership.owns()
        await group.ask(SYNC, answer(0))
        assert not group.membership.owns()
        group.membership.adopt(group.membership.term)
        assert group.membership.owns()

    asyncio.run(next_generation())


def test_a_worker_frozen_while_it_joins_owns_nothing_before_it_has_read_what_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def frozen() -> None:
        group = Group(monkeypatch)
        looks = asyncio.Event()
        monkeypatch.setattr(group_watch, "LOOK_S", 0.001)
        plain = group.membership.looked

        def look(membership: Membership) -> None:
            plain()
            looks.set()

        monkeypatch.setattr(Membership, "looked", look)

        async def turn() -> None:
            looks.clear()
            await asyncio.wait_for(looks.wait(), DEADLINE_S)

        await group.assigned()
        group.coordinator.may_answer.clear()
        joining = asyncio.ensure_future(group.ask(JOIN, answer(0)))
        await turn()
        assert group.membership.owns(), "the others may be as slow as they like, within the session"
        group.clock.advance_ms(1_000)
        assert not group.membership.owns()
        await turn()
        assert not group.membership.owns(), "what came while it was frozen is being read in this turn"
        await turn()
        assert group.membership.owns()
        group.coordinator.may_answer.set()
        await joining
        assert not group.membership.owns()

    asyncio.run(frozen())


def test_a_rebalance_keeps_a_member_no_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_joining() -> None:
        group = Group(monkeypatch)
        await group.assigned()
        for _ in range(int(REBALANCE_S) - 1):
            group.clock.advance_ms(1_000)
            await group.ask(HEARTBEAT, answer(27))
            assert group.membership.owns()
        group.clock.advance_ms(1_000)
        await group.ask(HEARTBEAT, answer(27))
        assert not group.membership.owns()

    asyncio.run(without_joining())


def test_a_late_refusal_of_an_earlier_term_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late() -> None:
        group = Group(monkeypatch)
        await group.assigned()
        before = group.membership.term
        await group.assigned()
        group.membership.refused(before)
        assert group.membership.owns()

    asyncio.run(late())


def test_a_coordinator_that_dies_ends_the_worker_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies() -> None:
        group = Group(monkeypatch)
        group.coordinator.fails.set()
        await asyncio.wait([group.coordinator._coordination_task])
        await asyncio.sleep(0)
        assert [str(crash) for crash in group.crashes] == [
            (
                "this worker cannot take part in its group any more, aiokafka's coordinator has failed:"
                " http://old:1 is not http://new:1"
            )
        ]

    asyncio.run(dies())


def test_the_error_of_a_group_that_is_too_large_for_the_broker_has_the_cure() -> None:
    """Kafka answers a Sync with an unknown error where its record of the group exceeds the topic's limit."""
    crashes: list[BaseException] = []
    group_watch._end(SimpleNamespace(crash_soon=crashes.append), KafkaError(repr(UnknownError())))  # type: ignore[arg-type]
    assert "max.message.bytes of __consumer_offsets" in str(crashes[0])


def test_the_error_of_a_group_with_members_of_another_kind_names_them() -> None:
    crashes: list[BaseException] = []
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        member = Consumer(kafka.client_config(**{"group.id": "shop", "client.id": "stranger"}))
        member.subscribe(["orders"])
        wait_for("a member", lambda: bool(member.poll(0.05) or member.assignment()), DEADLINE_S)
        settings = Settings(app="shop", kafka=kafka.client_config())
        manager: Any = SimpleNamespace(crash_soon=crashes.append, settings=settings)
        group_watch._end(manager, InconsistentGroupProtocolError())
        member.close()
    assert "client stranger at" in str(crashes[0])
    assert "group shop has members of another kind than this worker" in str(crashes[0])


def test_an_error_that_aiokafka_keeps_for_its_user_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pushed() -> None:
        group = Group(monkeypatch)
        error = PermissionError("group app")
        assert group.coordinator._push_error_to_user(error) == "told"
        assert group.coordinator.pushed == [error]
        assert "group app" in str(group.crashes[0])
        group.coordinator._coordination_task.cancel()

    asyncio.run(pushed())


def test_a_coordinator_that_is_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed() -> None:
        group = Group(monkeypatch)
        group.coordinator._closing.set_result(None)
        group.coordinator._push_error_to_user(PermissionError("group app"))
        group.coordinator.fails.set()
        await asyncio.wait([group.coordinator._coordination_task])
        await asyncio.sleep(0)
        assert group.coordinator._coordination_task.exception() is not None
        assert not group.crashes

    asyncio.run(closed())


class StaticGroup(Group):
    """A group whose member is a static one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.coordinator._group_instance_id = "same.1"
        monkeypatch.setattr(group_watch, "TAKEN_S", 0.0)

    def forget(self) -> None:
        """Do what aiokafka does when a request was refused."""
        self.coordinator.generation, self.coordinator.member_id = -1, ""

    def ended_for_the_setting(self) -> bool:
        return [type(each) for each in self.crashes] == [InstanceFencedError] and (
            "instance_id, same;" in str(self.crashes[0]) or "instance_id, same, " in str(self.crashes[0])
        )


@pytest.mark.parametrize("request_", [HEARTBEAT, SYNC])
def test_a_static_member_whose_instance_another_process_has_ends_and_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, request_: object
) -> None:
    async def fenced() -> None:
        group = StaticGroup(monkeypatch)
        await group.assigned()
        await group.ask(request_, answer(82))
        assert group.ended_for_the_setting()
        group.coordinator._push_error_to_user(KafkaError("82"))
        group.coordinator.fails.set()
        await asyncio.wait([group.coordinator._coordination_task])
        await asyncio.sleep(0)
        assert group.coordinator._coordination_task.exception() is not None
        assert len(group.crashes) == 1, "what aiokafka makes of that is not worth another line"

    asyncio.run(fenced())


def test_a_static_member_asks_before_it_takes_its_instance_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a heartbeat without the instance's name, and to a commit, the broker says that the member is
    unknown: its session may have run out, or another process may have taken its instance.
    """

    async def unknown() -> None:
        group = StaticGroup(monkeypatch)
        await group.assigned()
        await group.ask(COMMIT, SimpleNamespace(topics=[("in", [(0, 25)])]))
        group.forget()
        group.coordinator.answers += [answer(82), answer(0)]
        with pytest.raises(KafkaError, match="another worker has this member's place"):
            await group.coordinator._send_req(JOIN)
        assert group.ended_for_the_setting()
        assert len(group.coordinator.answers) == 1, "it has not joined"

    asyncio.run(unknown())


def test_a_static_member_whose_session_ran_out_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def over() -> None:
        group = StaticGroup(monkeypatch)
        await group.assigned()
        await group.ask(HEARTBEAT, answer(25))
        group.forget()
        group.coordinator.answers += [answer(25)]
        await group.ask(JOIN, answer(0))
        assert not group.crashes

    asyncio.run(over())


def test_the_heartbeat_of_a_static_member_names_its_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    async def named() -> None:
        group = StaticGroup(monkeypatch)
        sent: list[Any] = []
        plain = group.coordinator.__class__._send_req

        async def send(self: Coordinator, request: object) -> Any:
            sent.append(request)
            return await plain(self, request)

        monkeypatch.setattr(Coordinator, "_send_req", send)
        group = StaticGroup(monkeypatch)
        await group.assigned()
        await group.ask(HEARTBEAT, answer(0))
        struct = sent[-1].prepare({12: (0, 4)})
        assert struct.encode() == b"\x00\x03app\x00\x00\x00\x03\x00\x02me\x00\x06same.1"

    asyncio.run(named())
