"""A reset whose administrator dies: at whatever write it was, every partition has its new offset or every
one its old (M13).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import groupby

import pytest

from holdfast.clients.claims.logs.reset_log import ResetLog
from holdfast.clients.groups.records import Move, ResetProgress, ResetStep
from holdfast.clients.groups.view import GroupView
from holdfast.core.claims.frames import Heartbeat
from holdfast.core.claims.resets import (
    Aim,
    Decision,
    ResetAbort,
    ResetCommit,
    Where,
    decode_decision,
    held_by_reset,
)
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, GroupError
from tests.core.claims.test_protocol_page import plain, table
from tests.support.group_desk import RESET_S, GroupDesk, Killed, kill_at, killed_administrator
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

Places = dict[tuple[str, int], int | None]


@pytest.fixture
def desk(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[GroupDesk]:
    made = GroupDesk(broker, fresh_topic)
    yield made
    made.close()


class Reset:
    """One reset of a group of its own, of partitions in different coordination partitions, from offsets 40
    and 3 to 0.
    """

    def __init__(self, desk: GroupDesk, group: str, orders: str, clicks: str) -> None:
        self.desk, self.group, self.deadline_s = desk, group, RESET_S
        self.old: Places = {(orders, 0): 40, (orders, 1): 41, (clicks, 0): 3}
        self.new: Places = dict.fromkeys(self.old, 0)
        for (topic, partition), offset in self.old.items():
            assert offset is not None
            desk.hold("worker-7/i7", topic, {partition: offset}, group=group)
            desk.give_back("worker-7/i7", topic, {partition: offset}, group=group)

    def run(self, **more: object) -> tuple[Move, ...]:
        with self.desk.admin() as admin:
            return admin.reset_offsets(
                admin.plan_reset(self.group, Aim(Where.EARLIEST)),
                deadline_s=self.deadline_s,
                **more,  # type: ignore[arg-type]
            )

    def settle(self) -> int:
        """Do what the next member would that finds a partition in the hands of the dead."""
        return self.desk.next_member.settle(self.group)

    def check(self) -> Places:
        """Return the offsets, all old or all new; nothing is held any more."""
        claims = self.desk.claims(self.group)
        assert not any(held_by_reset(claim) for claim in claims.values())
        found = {(key.topic, key.partition): claim.current_offset for key, claim in claims.items()}
        assert found in (self.old, self.new), f"a mixture: {found}"
        return found


def resets_of(desk: GroupDesk) -> Iterator[Reset]:
    orders, clicks = desk.topic("orders"), desk.topic("clicks", partitions=1, records=5)
    number = 0
    while True:
        number += 1
        yield Reset(desk, f"shop-{number}", orders, clicks)


def test_killed_after_any_write_a_reset_has_moved_everything_or_nothing(desk: GroupDesk) -> None:
    """M13: the administrator is gone after its n-th record, for every n. What it held is settled by the next
    who finds it, a pause it left ends by itself, and another reset does the rest."""
    story: list[str] = []
    for number, reset in enumerate(resets_of(desk), start=1):
        with pytest.MonkeyPatch.context() as patch:
            written = kill_at(patch, number)
            try:
                reset.run()
            except Killed:
                pass
            else:
                break
        committed = any(
            isinstance(decision, ResetCommit) and decision.group == reset.group
            for decision in desk.decisions()
        )
        assert committed == ("ResetCommit" in written)
        reset.settle()
        assert reset.check() == (reset.new if committed else reset.old), written
        assert reset.settle() == 0
        if number % 3 == 0:
            reset.run()
            assert reset.check() == reset.new
        story = written
    assert reset.check() == reset.new
    claims, moves = ["ClaimingPartition"] * 3, ["ReleasingPartition"] * 3
    assert story[-1:] == ["ReleaseGroup"]
    assert [what for what in story if what != "ReleaseGroup"] == [*claims, "ResetCommit", *moves]
    # The page lists the same steps, and for each the state that a kill after it leaves.
    steps = [row for row in table("Step", "Written", "Killed after it") if row["Written"]]
    assert [plain(row["Written"]) for row in steps] == [what for what, _ in groupby(story)]
    told = [row["Killed after it"].partition(":")[0] for row in steps]
    assert told == [
        "the pause ends by itself; nothing has moved",
        "given up",
        "carried out",
        "carried out",
        "done",
    ]


@pytest.mark.parametrize("step", [step for step in ResetStep if step is not ResetStep.RESUMED])
def test_asked_to_stop_it_is_given_up_until_it_is_decided_and_carried_out_afterwards(
    desk: GroupDesk, step: ResetStep
) -> None:
    reset, asked = next(resets_of(desk)), list[ResetStep]()
    member, topic = "worker-7/i7", next(iter(reset.old))[0]
    desk.hold(member, topic, {0: 40}, group=reset.group)

    def tell(progress: ResetProgress) -> None:
        if progress.step is ResetStep.WAITING:
            desk.give_back(member, topic, {0: 40}, group=reset.group)
        if progress.step is step:
            asked.append(step)

    def run() -> None:
        reset.run(tell=tell, is_stopping=lambda: bool(asked))

    if step in (ResetStep.DECIDED, ResetStep.MOVING):
        run()
        assert reset.check() == reset.new
    else:
        with pytest.raises(GroupError, match="stopped before it was decided: every partition keeps"):
            run()
        assert reset.check() == reset.old
    with desk.admin() as admin:
        assert admin.state(reset.group).state not in ("Paused", "Resetting"), "the group goes on"


def test_the_check_notices_a_reset_that_decides_nowhere(
    desk: GroupDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the one record that decides, a kill between two releases leaves a mixture."""
    reset = next(resets_of(desk))
    monkeypatch.setattr(ResetLog, "decide", lambda self, decision: decision)
    with pytest.MonkeyPatch.context() as patch:
        sent: list[str] = []
        send = GroupView.send

        def sending(self: GroupView, frames: list[object], to: object = None) -> None:
            for frame in frames:
                send(self, [frame], to)  # type: ignore[list-item, arg-type]
                sent.append(type(frame).__name__)
                if sent.count("ReleasingPartition") == 2:
                    raise Killed

        patch.setattr(GroupView, "send", sending)
        with pytest.raises(Killed):
            reset.run()
    reset.settle()
    with pytest.raises(AssertionError, match="a mixture"):
        reset.check()


@pytest.mark.variants("claimed", "moving")
@pytest.mark.parametrize("step", [ResetStep.CLAIMED, ResetStep.DECIDED, ResetStep.MOVING])
def test_killed_by_the_system_and_found_by_a_second_reset(desk: GroupDesk, step: ResetStep) -> None:
    """A process of its own, SIGKILL: the same, with nothing of this process left to help it."""
    reset = next(resets_of(desk))
    child = subprocess.run(
        killed_administrator(desk.coordination, desk.resets, desk.broker.bootstrap, reset.group, step),
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    with desk.admin() as admin:
        assert admin.state(reset.group).state == "Resetting"
        plan = admin.plan_reset(reset.group, Aim(Where.LATEST))
        if step is ResetStep.CLAIMED:
            # It may still be alive: the next reset waits, or its error says how to end it.
            with pytest.raises(GroupError, match="wait for it, or end it by `holdfast groups resume"):
                admin.reset_offsets(plan, deadline_s=1)
            assert reset.settle() == 3
            assert reset.check() == reset.old
        else:
            assert admin.resume(reset.group) > 0
            assert reset.check() == reset.new
        admin.reset_offsets(plan)
        assert {move.new_offset for move in admin.plan_reset(reset.group, Aim(Where.SHIFT, 0)).moves} == {
            50,
            5,
        }


def test_an_administrator_that_was_frozen_past_its_time_learns_that_it_was_given_up(desk: GroupDesk) -> None:
    """Its commit comes after the abort, so it counts for nothing, and nothing it still sends moves an
    offset.
    """
    reset = next(resets_of(desk))

    def freeze(progress: ResetProgress) -> None:
        if progress.step is ResetStep.CLAIMED:
            assert reset.settle() == 3

    with pytest.raises(GroupError, match="worker-8 gave it up because its administrator fell silent"):
        reset.run(tell=freeze)
    assert reset.check() == reset.old
    first, second = (decision for decision in desk_log(desk) if decision.group == reset.group)
    assert (type(first), type(second)) == (ResetAbort, ResetCommit)


@pytest.mark.variant
def test_a_late_heartbeat_of_a_reset_that_others_finished_takes_nothing_back(desk: GroupDesk) -> None:
    reset = next(resets_of(desk))

    def finish_for_it(progress: ResetProgress) -> None:
        if progress.step is not ResetStep.DECIDED:
            return
        held = desk.claims(reset.group)
        assert reset.settle() == 3
        for key, claim in held.items():
            desk.put(
                Heartbeat(desk.now_s, claim.instance_id, claim.client_id, *key, claim.current_offset or 0)
            )

    reset.run(tell=finish_for_it)
    assert reset.check() == reset.new


@pytest.mark.variant
def test_a_commit_whose_acknowledgement_was_lost_counts_and_one_that_was_never_written_does_not(
    desk: GroupDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, resets = ResetLog._append, resets_of(desk)
    arrives = True

    def losing(self: ResetLog, decision: Decision) -> int:
        if isinstance(decision, ResetAbort):
            return append(self, decision)
        if arrives:
            append(self, decision)
        raise BrokerError("no acknowledgement")

    monkeypatch.setattr(ResetLog, "_append", losing)
    reset = next(resets)
    reset.run()
    assert reset.check() == reset.new
    arrives = False
    reset = next(resets)
    with pytest.raises(GroupError, match="the commit was not acknowledged"):
        reset.run()
    assert reset.check() == reset.old


def desk_log(desk: GroupDesk) -> list[Decision]:
    """Return every decision in the log, those too that came too late."""
    seen: list[Decision] = []

    class Noting(ResetLog):
        def _note(self, message: object, found: object) -> None:
            seen.append(decode_decision(message.value()))  # type: ignore[attr-defined]

    Noting(desk.settings, topic=desk.resets, timeout_s=DEADLINE_S).decisions()
    return seen
