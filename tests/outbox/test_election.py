"""Election on the real broker: scenarios N1, N3 and N4, and what a client library can do to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.core.outbox.election import ElectionSettings, LeaderRecord, Phase
from holdfast.dev import parent_death
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, TopicError
from holdfast.outbox.election import Election
from tests.outbox.electors import CALM_S, TIMEOUT_S, Journal, Noting, election
from tests.support.harness import wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

Join = Callable[..., Election]


class Contest:
    """Elections of this process on one leader topic; those still running are stopped at the end."""

    def __init__(
        self,
        broker: SessionBroker,
        topic: str,
        stack: ExitStack,
        roles: int = 1,
        timeout_s: float = CALM_S,
    ) -> None:
        self.broker, self.topic, self.roles, self.timeout_s = broker, topic, roles, timeout_s
        self._stack = stack
        self.journal = Journal()
        self.members: dict[str, Election] = {}

    def join(
        self,
        name: str,
        *,
        instance_id: str | None = None,
        drain_s: float = 0.0,
        interop: bool = False,
        timeout_s: float | None = None,
    ) -> Election:
        handler = Noting(self.journal, name, drain_s=drain_s)
        member = election(
            dict(self.broker.config),
            self.topic,
            name,
            handler,
            roles=self.roles,
            instance_id=instance_id,
            interop=interop,
            timeout_s=timeout_s or self.timeout_s,
        )
        self._stack.enter_context(member)
        self.members[name] = member
        return member

    def leave(self, name: str) -> None:
        self.members.pop(name).stop(time.monotonic() + DEADLINE_S)

    def leaders(self, role: int = 0) -> list[str]:
        return [name for name, member in self.members.items() if member.leadership(role) is not None]

    def wait_leader(self, role: int = 0) -> str:
        return wait_for(
            "a leader", lambda: self.leaders(role), DEADLINE_S, lambda: str(self.journal.entries)
        )[0]

    def size(self) -> int:
        """Return how many members the group has, as the broker sees it."""
        client = AdminClient(self.broker.client_config())
        return len(client.describe_consumer_groups([self.topic])[self.topic].result(DEADLINE_S).members)

    def spread(self) -> dict[str, int]:
        """Return how many roles each leads, once every role has a leader."""
        leaders = [self.leaders(role) for role in range(self.roles)]
        return (
            {name: sum(each == [name] for each in leaders) for name in self.members} if all(leaders) else {}
        )


def process(on: Contest, name: str) -> subprocess.Popen[str]:
    """Start a member as a process of its own; it prints the calls of its handler."""
    command = [sys.executable, "-P", "-m", "tests.outbox.electors", on.broker.bootstrap, on.topic, name]
    bound = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        bound, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def contest(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[Callable[..., Contest]]:
    with ExitStack() as stack:
        yield lambda roles=1, timeout_s=CALM_S: Contest(
            broker, fresh_topic("neli", partitions=roles), stack, roles, timeout_s
        )


def test_of_four_processes_one_leads_and_each_that_stops_hands_over(contest: Callable[..., Contest]) -> None:
    """N1: at each Acquired exactly one leader, at each Revoked none."""
    on = contest()
    for name in "abcd":
        on.join(name)
        on.wait_leader()
    assert on.leaders() == ["a"]
    for _ in range(3):
        leader = on.wait_leader()
        on.leave(leader)
        assert ("revoked", leader) in [entry[:2] for entry in on.journal.entries]
    assert on.wait_leader()
    kinds = [kind for kind, *_ in on.journal.entries]
    assert kinds == ["acquired", "revoked"] * 3 + ["acquired"]
    epochs = [epoch for _, epoch in on.journal.of("acquired")]
    assert epochs == sorted(set(epochs)), "a later term has a larger epoch"


def test_a_killed_leader_is_succeeded_within_a_session(contest: Callable[..., Contest]) -> None:
    """N1: SIGKILL; the session is three timeouts."""
    on = contest(timeout_s=TIMEOUT_S)
    victim = process(on, "victim")
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline().startswith("acquired 0")
        on.join("heir")
        wait_for("the heir in the group", lambda: on.members["heir"].running, DEADLINE_S)
        if on.leaders():  # only where the machine stopped the victim for a session
            assert victim.stdout.readline().startswith(("fenced", "revoked"))
        victim.kill()
        with at_most(3 * TIMEOUT_S + 3, "the succession"):
            on.wait_leader()
    finally:
        victim.kill()
        victim.communicate(timeout=DEADLINE_S)


@pytest.mark.slow
def test_a_frozen_leader_has_stopped_before_its_successor_begins(contest: Callable[..., Contest]) -> None:
    """E1, E4: SIGSTOP beyond the session, SIGCONT after the takeover."""
    on = contest(timeout_s=TIMEOUT_S)
    frozen = process(on, "frozen")
    try:
        assert frozen.stdout is not None
        assert frozen.stdout.readline().startswith("acquired 0")
        on.join("heir")
        frozen.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        on.wait_leader()
        assert time.monotonic() - stopped_s > TIMEOUT_S, "a lease is over before another leads"
        frozen.send_signal(signal.SIGCONT)
        assert frozen.stdout.readline().startswith(("fenced", "revoked"))
        time.sleep(1.0)  # long enough for a heartbeat of a leader that had not noticed
        assert on.leaders() == ["heir"]
        assert len(on.journal.of("acquired")) == 1
    finally:
        frozen.send_signal(signal.SIGCONT)
        frozen.kill()
        frozen.communicate(timeout=DEADLINE_S)


@pytest.mark.variant
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_standbys_that_come_and_go_do_not_move_the_leader(
    contest: Callable[..., Contest], times: int
) -> None:
    """N3, E5, E10: neither a cooperative nor a static member costs the leader its term."""
    on = contest()
    on.join("m")
    on.wait_leader()
    before = on.members["m"].leadership(0)
    for number in range(times):
        name = "az"[number % 2] + str(number)
        # A session of 6 s: the static one, which leaves without a word, is gone after it.
        on.join(name, instance_id="static" if number % 3 == 1 else None, timeout_s=TIMEOUT_S)
        wait_for("the standby's place in the group", lambda: on.size() >= 2, DEADLINE_S)
        on.leave(name)
        if number % 3 != 1:  # a static member keeps its membership until its session ends
            wait_for("the standby to be gone", lambda: on.size() <= 2, DEADLINE_S)
    assert on.members["m"].leadership(0) == before
    assert len(on.journal.entries) == 1


def test_roles_are_spread_over_the_processes_and_each_has_one_leader(contest: Callable[..., Contest]) -> None:
    """N3: a process that holds other partitions only never leads this one; what does not move keeps its
    term.
    """
    on = contest(roles=4)
    on.join("a")
    wait_for("all roles led", lambda: on.spread() == {"a": 4}, DEADLINE_S)
    on.join("b")
    wait_for(
        "roles shared", lambda: on.spread() == {"a": 2, "b": 2}, DEADLINE_S, lambda: str(on.journal.entries)
    )
    assert sum(len(on.journal.of("acquired", role)) for role in range(4)) == 6
    on.leave("a")
    wait_for("all roles led again", lambda: on.spread() == {"b": 4}, DEADLINE_S)
    assert sum(len(on.journal.of("acquired", role)) for role in range(4)) == 8


@pytest.mark.parametrize("records", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_long_history_neither_delays_nor_elects(contest: Callable[..., Contest], records: int) -> None:
    """N4: old records on the leader topic are not even read."""
    on = contest()
    producer = Producer({**on.broker.config, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    old = LeaderRecord(unix_ns=1, name="a", nonce="old", term=1, number=1, epoch=7).encode()
    for _ in range(records):
        producer.produce(on.topic, old, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    on.join("a")
    assert on.wait_leader() == "a"
    assert on.members["a"].roles[0].foreign == 0
    assert on.journal.of("acquired")[0][1] >= records


def test_a_leader_drains_before_its_successor_begins_but_not_longer_than_allowed(
    contest: Callable[..., Contest],
) -> None:
    """E2: the barrier is bounded."""
    on = contest(timeout_s=TIMEOUT_S)
    on.join("slow", drain_s=600.0)
    on.wait_leader()
    on.join("next")
    with at_most(TIMEOUT_S / 2 + 5, "the barrier"):
        on.leave("slow")
        assert on.wait_leader() == "next"
    assert [entry[:2] for entry in on.journal.entries][-3:] == [  # a slow machine may fence it before
        ("acquired", "slow"),
        ("revoked", "slow"),
        ("acquired", "next"),
    ]


def test_a_leader_topic_that_does_not_fit_is_refused(
    contest: Callable[..., Contest], broker: SessionBroker
) -> None:
    on = contest(roles=2)
    on.roles = 3
    with pytest.raises(TopicError, match="has 2 partition"):
        on.join("a")
    absent = Contest(broker, "neli..absent", ExitStack())
    with pytest.raises(TopicError, match="absent"):
        absent.join("a")


def test_it_joins_a_group_of_gonelis_and_leads_partition_zero(contest: Callable[..., Contest]) -> None:
    on = contest()
    on.join("a", interop=True)
    on.wait_leader()
    on.join("b", interop=True)
    on.leave("a")
    assert on.wait_leader() == "b"


# -- what a client library can do; a scripted one does it at will


class Script:
    """A scripted consumer and producer: `polls` is what poll returns or raises, in turn."""

    def __init__(self, polls: list[Any]) -> None:
        self.polls, self.closed, self.produced = polls, 0, 0
        self.callbacks: dict[str, Any] = {}

    def list_topics(self, topic: str, timeout: float) -> Any:
        partition = type("P", (), {"error": None, "partitions": {0: None}})()
        return type("M", (), {"topics": {topic: partition}})()

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        if "subscribe" in self.polls:
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
        self.callbacks = callbacks

    def poll(self, timeout: float) -> Any:
        time.sleep(0.001)
        found = self.polls.pop(0) if self.polls else None
        if isinstance(found, Exception):
            raise found
        return found() if callable(found) else found

    def consume(self, limit: int, timeout: float) -> list[Any]:
        return []

    def produce(self, *_: Any, **__: Any) -> None:
        self.produced += 1

    def purge(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
        if "close" in self.polls:
            raise RuntimeError("already closed")


def scripted(polls: list[Any]) -> tuple[Election, Script, Noting]:
    script, handler = Script(polls), Noting(Journal(), "a")
    settings = ElectionSettings(group_id="g", leader_topic="t", name="a", heartbeat_timeout_s=TIMEOUT_S)
    return (
        Election(settings, handler, make_consumer=lambda config: script, make_producer=lambda config: script),
        script,
        handler,
    )


class Heard:
    """A message that is an error."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error


def test_a_passing_error_of_the_client_changes_nothing() -> None:
    member, script, handler = scripted([Heard(KafkaError(KafkaError._TRANSPORT))] * 5)
    with member:
        wait_for("the errors read", lambda: not script.polls, DEADLINE_S)
        assert member.running
    assert handler.error is None
    assert script.closed == 1


def test_a_right_that_is_missing_is_reported_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was reported as a broker that is away, and as over when the broker answered the next question."""
    monkeypatch.setattr("holdfast.outbox.election.LOOK_S", 0.0)
    heard: list[Any] = [Heard(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), *[None] * 20]
    member, script, _ = scripted(heard)
    with member:
        wait_for("some looks", lambda: not script.polls, DEADLINE_S)
        (told,) = caplog.messages
        assert "Group authorization failed: `holdfast acls harvester --topic TOPIC` prints the rights" in told
        assert "reachable" not in told
        monkeypatch.setattr(script, "incremental_assign", lambda partitions: None, raising=False)
        script.polls.append(lambda: script.callbacks["on_assign"](script, []))
        wait_for("the end", lambda: "the trouble is over" in caplog.messages[-1], DEADLINE_S)


def test_a_fatal_error_of_the_client_ends_the_election_and_says_so() -> None:
    member, script, handler = scripted(
        [Heard(KafkaError(KafkaError._FATAL, "fenced instance id", fatal=True))]
    )
    member.start()
    wait_for("the end", lambda: handler.error, DEADLINE_S)
    assert isinstance(handler.error, BrokerError)
    assert "leads nothing" in str(handler.error)
    assert member.roles[0].phase is Phase.CLOSED
    member.stop(time.monotonic() + DEADLINE_S)
    assert script.closed == 1


def test_a_failed_subscription_closes_the_consumer() -> None:
    member, script, _ = scripted(["subscribe"])
    with pytest.raises(KafkaException):
        member.start()
    assert script.closed == 1


def test_what_the_group_gives_while_the_consumer_closes_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rebalance that ended within `close` was taken for a bug, and the consumer's thread ended with a
    traceback.
    """
    member, script, handler = scripted([])
    given = [TopicPartition("t", 0)]
    taken = list[object]()

    def close() -> None:
        for what in ("on_assign", "on_revoke"):
            script.callbacks[what](script, given)
        script.closed += 1

    monkeypatch.setattr(script, "close", close)
    monkeypatch.setattr(script, "incremental_assign", taken.append, raising=False)
    monkeypatch.setattr(script, "incremental_unassign", lambda partitions: None, raising=False)
    with member:
        pass
    wait_for("the consumer closed", lambda: script.closed, DEADLINE_S)
    assert (taken, handler.error, handler.journal.entries) == ([], None, [])


def test_a_consumer_that_fails_to_close_does_not_keep_the_process() -> None:
    """H17."""
    member, script, handler = scripted([None, "close", "close", "close"])
    script.poll = lambda timeout: time.sleep(0.001)  # type: ignore[method-assign]
    with member:
        pass
    assert script.closed == 1
    assert not member.running
    assert handler.error is None
