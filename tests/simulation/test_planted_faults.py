"""A check that cannot fail is a defect: each fault planted in the code is found, and by the check that is
named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import msgspec
import pytest

from holdfast.core.claims import guarded
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import Frame, Heartbeat
from holdfast.core.claims.resets import Decision
from holdfast.core.engine.state.rows import Rows
from holdfast.core.groups.balancer import Balancer
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.claim.local_claims import LocalClaim
from holdfast.core.member.claim.stages import Active, ClaimWork, Releasing
from holdfast.core.member.conduct import renewal
from holdfast.core.member.conduct.acquisition import Acquisition
from holdfast.core.member.conduct.health import HealthCheck
from holdfast.core.member.conduct.renewal import Renewal
from holdfast.core.member.logs import log_view
from holdfast.core.member.logs.log_view import LogView
from holdfast.core.member.member import Member
from holdfast.core.member.settings import MemberSettings
from holdfast.core.member.state import ClaimState
from tests.simulation import broker, resetting, units
from tests.simulation.checks import (
    BALANCE,
    FREE,
    LOST,
    OFFSET,
    ORDER,
    OWNER,
    PAUSED,
    REDELIVERED,
    RESET,
    STALLED,
    START,
    STOLEN,
    TWICE,
    TWINS,
    WORKING,
)
from tests.simulation.plan import Kind
from tests.simulation.test_simulation import seeds_of
from tests.simulation.trace import Violation
from tests.simulation.world import run_schedule

Plant = Callable[[pytest.MonkeyPatch], None]
LIMIT_SCHEDULES = 60

fold_guarded = guarded.fold_guarded


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong on purpose, in which kind of schedule it shows, and which check finds it."""

    plant: Plant
    kind: Kind
    found: str


def with_fold(monkeypatch: pytest.MonkeyPatch, fold: Callable[..., None]) -> None:
    monkeypatch.setattr(broker, "fold_guarded", fold)
    monkeypatch.setattr(log_view, "fold_guarded", fold)


def a_lease_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberSettings, "lease_s", property(lambda settings: 1e6))


def a_gate_that_is_always_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "may_deliver", lambda self, topic, partition, now_s: True)


def heartbeats_of_anybody_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the Go library does (D2)."""

    def heartbeat(claim: Claim | None, frame: Heartbeat, now_s: int, stale_after_s: int | None) -> Claim:
        after = guarded._taken(claim, frame, now_s)
        return msgspec.structs.replace(after, current_offset=frame.current_offset)

    monkeypatch.setattr(guarded, "_heartbeat", heartbeat)


def offsets_go_back_with_any_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(rows: Rows[Any], frame: Frame, at_ms: int, stale_after_s: int | None = None) -> None:
        fold_guarded(rows, frame, at_ms, stale_after_s)
        if isinstance(frame, Heartbeat):
            key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
            row = rows.get(key)
            if isinstance(row, Claim) and row.instance_id == frame.instance_id:
                rows[key] = msgspec.structs.replace(row, current_offset=frame.current_offset)

    with_fold(monkeypatch, fold)


def heartbeats_tell_what_was_delivered_instead_of_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renewal, "offset", lambda self, stage: stage.work.tracker.position)


def heartbeats_tell_the_offset_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renewal, "offset", lambda self, stage: stage.work.tracker.start)


def a_batch_is_delivered_before_the_log_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Renewal.propose

    def propose(self: Any, claim: LocalClaim, work: ClaimWork, offset_end: int, now_s: float) -> None:
        original(self, claim, work, offset_end, now_s)
        claim.stage = Active(work)
        self._state.shell.deliver(claim, offset_end)

    monkeypatch.setattr(Renewal, "propose", propose)


def lanes_that_share_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "key_of", lambda place, offset: offset)


def an_owner_that_starts_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    original, row_of = Renewal.start, ClaimState.row

    def start(
        self: Any,
        claim: LocalClaim,
        earliest: int,
        latest: int,
        committed: int | None,
        topic_mark: int | None,
        now_s: float,
    ) -> None:
        state = self._state
        state.row = lambda each: msgspec.structs.replace(
            cast(Claim, row_of(state, each)), current_offset=None
        )
        try:
            original(self, claim, earliest, latest, None, topic_mark, now_s)
        finally:
            del state.row

    monkeypatch.setattr(Renewal, "start", start)


def claims_of_the_dead_are_never_free(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LogView.busy_for_s

    def busy_for_s(self: LogView, place: TopicPartition, now_s: float, unix_s: float) -> float:
        row = self.row(place)
        return (
            inf
            if row is not None and row.heartbeat_at_s is not None
            else original(self, place, now_s, unix_s)
        )

    monkeypatch.setattr(LogView, "busy_for_s", busy_for_s)


def pauses_are_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acquisition, "pauses", lambda self, now_s: None)


def paused_groups_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Acquisition.pauses

    def pauses(self: Any, now_s: float) -> None:
        original(self, now_s)
        self._state.paused = False

    monkeypatch.setattr(Acquisition, "pauses", pauses)


def rivals_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acquisition, "own_client_seen", lambda self, frame, log, at_ms, now_s: None)


def the_dead_are_rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acquisition, "_newer", lambda self, rival: True)


def nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Balancer.aim

    def aim(self: Balancer, now_s: float) -> frozenset[Any]:
        before = self._aimed
        self._aimed = original(self, now_s) | before
        return self._aimed

    monkeypatch.setattr(Balancer, "aim", aim)


def decided_resets_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def final_offset(decision: Decision, key: ClaimKey, claim: Claim) -> int | None:
        return claim.current_offset

    monkeypatch.setattr(resetting, "final_offset", final_offset)


def the_view_of_go_members_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LogView.__init__

    def init(self: LogView, settings: MemberSettings) -> None:
        original(self, settings)
        self._interop = False

    monkeypatch.setattr(LogView, "__init__", init)


def a_lease_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Renewal._accepted

    def accepted(self: Any, claim: LocalClaim, frame: Frame, row: Claim, now_s: float) -> None:
        lease_until_s, deliver_until_s = claim.lease_until_s, claim.gate.deliver_until_s
        original(self, claim, frame, row, now_s)
        claim.lease_until_s, claim.gate.deliver_until_s = lease_until_s, deliver_until_s

    monkeypatch.setattr(Renewal, "_accepted", accepted)


def claims_that_have_lapsed_are_held_on_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat is written, and no check says that it should have been."""
    monkeypatch.setattr(
        Renewal, "_beat", lambda self, claim, now_s: self._plan_beat(claim, now_s + self._state.jitter_s())
    )


def what_is_not_handed_out_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Releasing, "offset", property(lambda stage: stage.work.tracker.current))


def topics_that_are_made_again_are_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "is_of_another", lambda claim, mark: False)
    monkeypatch.setattr(Renewal, "identified", lambda self, claim, mark, asked_s, now_s: None)


def what_was_fetched_is_taken_for_the_claims_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Renewal.propose

    def propose(self: Any, claim: LocalClaim, work: ClaimWork, offset_end: int, now_s: float) -> None:
        claim.identified_s = inf
        original(self, claim, work, offset_end, now_s)

    monkeypatch.setattr(Renewal, "propose", propose)


def who_is_at_work_is_wedged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HealthCheck, "_at_work_s", lambda self, stage, now_s: None)


def a_handler_has_no_more_time_than_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MemberSettings, "overdue_after_s", property(lambda settings: settings.heartbeat_interval_s)
    )


FAULTS = [
    Fault(a_lease_that_never_ends, Kind.RACE, OWNER),
    Fault(a_gate_that_is_always_open, Kind.RACE, OWNER),
    Fault(heartbeats_of_anybody_are_accepted, Kind.RACE, OFFSET),
    Fault(offsets_go_back_with_any_heartbeat, Kind.RACE, OFFSET),
    Fault(heartbeats_tell_what_was_delivered_instead_of_done, Kind.RACE, LOST),
    Fault(heartbeats_tell_the_offset_of_the_start, Kind.RACE, REDELIVERED),
    Fault(a_batch_is_delivered_before_the_log_has_it, Kind.AT_MOST_ONCE, TWICE),
    Fault(what_is_not_handed_out_is_not_given_back, Kind.AT_MOST_ONCE, LOST),
    Fault(topics_that_are_made_again_are_not_noticed, Kind.RACE, LOST),
    Fault(what_was_fetched_is_taken_for_the_claims_topic, Kind.AT_MOST_ONCE, TWICE),
    Fault(lanes_that_share_keys, Kind.LANES, ORDER),
    Fault(an_owner_that_starts_at_the_beginning, Kind.RACE, START),
    Fault(claims_of_the_dead_are_never_free, Kind.RACE, FREE),
    Fault(pauses_are_not_heard, Kind.RESETS, PAUSED),
    Fault(paused_groups_claim, Kind.RESETS, PAUSED),
    Fault(rivals_are_not_seen, Kind.TWINS, TWINS),
    Fault(the_dead_are_rivals, Kind.TWINS, TWINS),
    Fault(nothing_is_handed_over, Kind.BALANCED, BALANCE),
    Fault(decided_resets_are_given_up, Kind.RESETS, RESET),
    Fault(the_view_of_go_members_is_ignored, Kind.GO, STOLEN),
    Fault(a_lease_is_not_renewed, Kind.RACE, STALLED),
    Fault(claims_that_have_lapsed_are_held_on_to, Kind.RACE, STALLED),
    Fault(who_is_at_work_is_wedged, Kind.RACE, WORKING),
    Fault(a_handler_has_no_more_time_than_a_heartbeat, Kind.RACE, WORKING),
]


def broken(kind: Kind) -> Iterator[str]:
    """Yield the names of the checks that schedules of *kind* set off."""
    for seed in seeds_of(kind, LIMIT_SCHEDULES):
        try:
            run_schedule(seed)
        except Violation as violation:
            yield violation.name


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.plant.__name__)
def test_a_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    assert fault.found in broken(fault.kind)  # stops at the first
