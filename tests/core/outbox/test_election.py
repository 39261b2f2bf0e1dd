"""The rules of election: who leads a role, from when, until when.

Scenarios N2-N5 of the election, defects E1-E7 of goNELI.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.outbox.election import (
    LEGAL,
    Acquired,
    ElectionSettings,
    Fenced,
    FenceReason,
    LeaderRecord,
    LeadershipEvent,
    Phase,
    Revoked,
    RoleElection,
    sanitise,
)
from holdfast.errors import ConfigError
from tests.support.scale import scaled

T = 5.0


class Log:
    """A partition of the leader topic: its records reach all listeners, in order."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def append(self, value: bytes) -> int:
        self.values.append(value)
        return len(self.values) - 1


class Process:
    """One process, its clock, and how far it has read."""

    def __init__(self, log: Log, name: str, nonce: str = "") -> None:
        self.log, self.read = log, 0
        self.role = RoleElection(
            0, name=name, nonce=nonce or name, heartbeat_timeout_s=T, heartbeat_interval_s=T / 5
        )
        self.events: list[LeadershipEvent] = []

    def assigned(self, now_s: float) -> None:
        self.read = len(self.log.values)
        self.events += self.role.assigned(self.read, now_s)

    def send(self, now_s: float) -> None:
        events, beat = self.role.tick(now_s, int(now_s * 1e9))
        self.events += events
        if beat is not None:
            self.log.append(beat.encode())

    def hear(self, now_s: float) -> None:
        while self.read < len(self.log.values):
            self.events += self.role.received(self.log.values[self.read], self.read, now_s)
            self.read += 1

    def pulse(self, now_s: float) -> None:
        self.send(now_s)
        self.hear(now_s)

    def leads(self, now_s: float) -> bool:
        return self.role.leadership(now_s) is not None

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def leader(log: Log, name: str = "a", at_s: float = 0.0) -> Process:
    process = Process(log, name)
    process.assigned(at_s)
    process.pulse(at_s)
    assert process.kinds() == ["Acquired"]
    return process


def test_an_assignment_alone_does_not_make_a_leader_its_own_claim_read_back_does() -> None:
    process = Process(Log(), "a")
    process.assigned(0.0)
    assert not process.leads(0.0)
    process.send(0.0)
    assert not process.leads(0.0)
    process.hear(0.1)
    assert process.leads(0.1)
    assert isinstance(process.events[0], Acquired)
    assert process.events[0].leadership.epoch == 0


def test_a_leader_without_its_own_heartbeat_is_fenced_once_and_leads_again_under_a_new_id_when_it_comes_back() -> (  # noqa: E501
    None
):
    """N2: 5.001 s of silence; the assignment is intact."""
    log = Log()
    process = leader(log)
    first = process.role.leadership(0.0)
    process.send(4.9)
    assert process.leads(4.999)
    process.send(5.001)
    process.send(6.0)
    assert process.kinds() == ["Acquired", "Fenced"]
    assert process.events[1].reason is FenceReason.SILENCE  # type: ignore[union-attr]
    process.hear(6.1)
    assert process.kinds() == ["Acquired", "Fenced", "Acquired"]
    second = process.role.leadership(6.1)
    assert first is not None
    assert second is not None
    assert second.leader_id != first.leader_id
    assert second.epoch > first.epoch


def test_a_lease_is_over_for_every_reader_without_a_pulse() -> None:
    """E4: a process that was frozen asks before it acts."""
    process = leader(Log())
    assert process.leads(4.999)
    assert not process.leads(5.0)
    assert process.role.phase is Phase.LEADER, "nothing ran in between"


def test_a_lease_runs_from_when_the_heartbeat_was_sent_not_from_when_it_was_read() -> None:
    process = Process(Log(), "a")
    process.assigned(0.0)
    process.send(0.0)
    process.hear(4.0)
    assert process.leads(4.9)
    assert not process.leads(5.0)


def test_a_claim_that_took_longer_than_a_lease_is_worth_nothing() -> None:
    process = Process(Log(), "a")
    process.assigned(0.0)
    process.send(0.0)
    process.hear(5.0)
    assert process.kinds() == []


@pytest.mark.parametrize(
    "stranger",
    [
        b"",
        None,
        b"junk",
        b"1476147600000000000%gopher",
        b"1%a%other%1%1%0",
        b"\xff\xfe",
        b"1%a%a%1%99%0",
        b"1%a%a%1%-1%",
    ],
)
def test_what_others_write_never_proves_that_a_leader_lives(stranger: bytes | None) -> None:
    """E1: a partitioned leader that can still read must fence itself, whatever it reads."""
    process = leader(Log())
    for step in range(60):
        process.events += process.role.received(stranger, 1 + step, step / 10)
    process.send(5.0)
    assert process.kinds() == ["Acquired", "Fenced"]


def test_old_records_of_ones_own_prove_nothing_to_a_new_assignment() -> None:
    """N4, E2: the same process was leader before."""
    log = Log()
    process = leader(log)
    process.events += process.role.revoked(1.0)
    process.role.assigned(len(log.values), 1.0)
    process.role.received(log.values[0], 0, 1.0)
    process.role.received(log.values[0], 7, 1.0)
    assert not process.leads(1.0)


def test_a_late_heartbeat_of_a_term_that_is_over_does_not_revive_it() -> None:
    log = Log()
    process = leader(log)
    process.send(1.0)  # on its way while the leader fences itself
    process.role.tick(5.0, 0)
    assert process.role.phase is Phase.FENCED
    process.hear(5.1)
    assert not process.leads(5.1)


def test_a_newer_claim_fences_at_once_and_the_older_stays_aside_as_long_as_the_newer_speaks() -> None:
    """E1, E3: two processes believe that the partition is theirs."""
    log = Log()
    old = leader(log, "old")
    new = Process(log, "new")
    new.assigned(1.0)
    new.pulse(1.0)
    assert new.leads(1.0)
    old.hear(1.1)
    assert not old.leads(1.1)
    assert old.events[-1] == Fenced(leadership=old.events[0].leadership, reason=FenceReason.NEWER)
    for tenth in range(12, 300):
        new.pulse(tenth / 10)
        old.pulse(tenth / 10)
        assert not old.leads(tenth / 10)
        assert new.leads(tenth / 10)
    assert new.kinds() == ["Acquired"]


def test_the_older_heartbeats_of_a_zombie_do_not_disturb_its_successor() -> None:
    log = Log()
    zombie = leader(log, "zombie")
    successor = Process(log, "successor")
    successor.assigned(1.0)
    successor.pulse(1.0)
    zombie.send(1.1)  # written before it has read who succeeded it
    successor.hear(1.2)
    assert successor.kinds() == ["Acquired"]
    assert successor.leads(1.2)


def test_a_zombies_late_claim_costs_the_true_leader_a_timeout_and_no_more() -> None:
    log = Log()
    true = leader(log, "true")
    log.append(LeaderRecord(unix_ns=0, name="zombie", nonce="z", term=1, number=1, epoch=None).encode())
    true.hear(1.0)
    assert not true.leads(1.0)
    true.pulse(5.9)
    assert not true.leads(5.9)
    true.pulse(6.0)
    assert true.leads(6.0)
    assert true.kinds() == ["Acquired", "Fenced", "Acquired"]


def test_a_revocation_reaches_a_leader_once_and_never_one_that_was_fenced() -> None:
    """E7: Fenced, then Revoked both fired upstream."""
    process = leader(Log())
    process.events += process.role.revoked(1.0)
    process.events += process.role.revoked(1.0)
    assert process.kinds() == ["Acquired", "Revoked"]
    fenced = leader(Log())
    fenced.send(5.0)
    fenced.events += fenced.role.revoked(5.1)
    assert fenced.kinds() == ["Acquired", "Fenced"]


def test_closing_gives_back_and_nothing_moves_afterwards() -> None:
    process = leader(Log())
    process.events += process.role.close(1.0)
    process.events += process.role.close(1.0)
    assert process.kinds() == ["Acquired", "Revoked"]
    assert process.role.tick(9.0, 0) == ([], None)
    assert process.role.revoked(9.0) == []
    with pytest.raises(AssertionError, match="assigned while closed"):
        process.role.assigned(0, 9.0)


def test_an_illegal_transition_is_a_bug_that_says_so() -> None:
    role = Process(Log(), "a").role
    with pytest.raises(AssertionError, match="may not go from standby to leader"):
        role._move(Phase.LEADER)


def test_a_claim_that_could_not_be_written_is_made_again_after_an_interval() -> None:
    process = Process(Log(), "a")
    process.assigned(0.0)
    _, beat = process.role.tick(0.0, 0)
    assert beat is not None
    process.role.unsent(beat.number, 0.1)
    assert process.role.wake_at_s() == pytest.approx(0.1 + T / 5)


def test_heartbeats_on_their_way_are_bounded() -> None:
    process = leader(Log())
    for number in range(1000):
        process.role.unsent(10_000 + number, 0.0)
        process.role._due_s = 0.0
        process.role.tick(1.0, 0)
    assert len(process.role._sent) <= 64


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"heartbeat_timeout_s": 1.9}, "use 2 to 600"),
        ({"heartbeat_timeout_s": 601}, "use 2 to 600"),
        ({"name": "a%b"}, "none of them '%'"),
        ({"name": ""}, "1 to 200 characters"),
        ({"instance_id": "a%b"}, "instance_id"),
        ({"leader_topic": "__consumer_offsets"}, "internal topics"),
        ({"leader_topic": "a/b"}, "letters, digits"),
        ({"leader_topic": ".."}, "letters, digits"),
        ({"group_id": ""}, "letters, digits"),
        ({"roles": 0}, "1 to 1000"),
        ({"roles": 2, "interop": True}, "there is one"),
        ({"drain_s": 2.6}, "at most half"),
        ({"consumer": {"group.id": "x"}}, "cannot override configuration 'group.id'"),
        ({"consumer": {"session.timeout.ms": 6000}}, "cannot override configuration 'session.timeout.ms'"),
        ({"consumer": {"partition.assignment.strategy": "range"}}, "cannot override configuration"),
        ({"producer": {"delivery.timeout.ms": 1}}, "cannot override configuration 'delivery.timeout.ms'"),
        ({"producer": {"linger.ms": 5}}, "cannot override configuration 'linger.ms'"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_contacted(given: dict[str, Any], why: str) -> None:
    """N5, E6."""
    with pytest.raises(ConfigError, match=why):
        ElectionSettings(**{"group_id": "g", "leader_topic": "g.neli", "name": "n", **given})


def test_the_shortest_timeout_gives_the_shortest_session_a_broker_accepts() -> None:
    settings = ElectionSettings(group_id="g", leader_topic="t", name="n", heartbeat_timeout_s=2)
    assert (settings.session_timeout_s, settings.drain_limit_s) == (6, 1)


def test_names_are_made_fit_for_a_group() -> None:
    assert sanitise("a b/c%d") == "a_b_c_d"
    assert sanitise("") == "_"


class Elections(RuleBasedStateMachine):
    """Three processes on one partition; a group that may give it to several at once, as brokers never do but
    zombies believe.

    Whatever happens, no two lead in the same epoch, events follow each other legally, and once every process
    has read the whole partition at most one of them leads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.log = Log()
        self.all = [Process(self.log, name) for name in "abc"]

    which = st.integers(0, 2)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.6, 5.1]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(who=which)
    def assign(self, who: int) -> None:
        if self.all[who].role.phase is Phase.STANDBY:
            self.all[who].assigned(self.now_s)

    @rule(who=which)
    def revoke(self, who: int) -> None:
        self.all[who].events += self.all[who].role.revoked(self.now_s)

    @rule(who=which)
    def send(self, who: int) -> None:
        self.all[who].send(self.now_s)

    @rule(who=which)
    def hear(self, who: int) -> None:
        self.all[who].hear(self.now_s)

    @rule()
    def everyone_hears(self) -> None:
        for process in self.all:
            if process.role.phase is not Phase.STANDBY:
                process.hear(self.now_s)
        assert sum(process.leads(self.now_s) for process in self.all) <= 1

    @invariant()
    def no_two_lead_in_one_epoch(self) -> None:
        epochs = [
            event.leadership.epoch
            for process in self.all
            for event in process.events
            if isinstance(event, Acquired)
        ]
        assert len(epochs) == len(set(epochs))

    @invariant()
    def events_alternate(self) -> None:
        for process in self.all:
            for before, after in zip([None, *process.events], process.events, strict=False):
                assert isinstance(after, Acquired) == (before is None or isinstance(before, Fenced | Revoked))


TestElections = Elections.TestCase
TestElections.settings = hypothesis_settings(max_examples=scaled(60), stateful_step_count=40)


def test_every_phase_can_be_reached_and_left() -> None:
    assert {before for before, _ in LEGAL} == set(Phase) - {Phase.CLOSED}
    assert {after for _, after in LEGAL} == set(Phase)
