"""Random schedules of members on one log: processes end, freeze and thaw, stop receiving or reaching others,
restart, pause. The large simulation is tests/simulation; this one is small enough to run with every change of
the member."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.core.claims.frames import Heartbeat
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import Action
from holdfast.core.member.claim.stages import Active, work_of
from holdfast.core.member.claim.velocity import ClaimVerdict
from holdfast.core.member.conduct.health import HealthCheck
from holdfast.core.member.logs import log_view
from holdfast.core.member.member import Member
from holdfast.core.member.settings import Delivery, MemberSettings
from tests.core.member.world import Node, World

STEPS = 150


class Schedule:
    """One seed's life.

    *restarts*: a new process under a client id means that the old one has ended; else both may run.
    """

    def __init__(self, seed: int, *, restarts: bool) -> None:
        self.draws, self.restarts = Random(seed), restarts
        self.interval_s = self.draws.choice([3.0, 60.0])
        topics = {"orders": self.draws.choice([1, 3, 6]), "clicks": 2}
        self.world = World(
            topics, logs=2, delay_s=self.draws.choice([0.001, 0.01, 0.3]), interval_s=self.interval_s
        )
        self.places = [
            TopicPartition(topic, partition) for topic, count in topics.items() for partition in range(count)
        ]
        self.at_most_once = self.draws.random() < 0.5
        self.settings: dict[str, Any] = {
            "release_if_behind": False,
            "fast_reclaim": restarts,
            "delivery": Delivery.AT_MOST_ONCE if self.at_most_once else Delivery.AT_LEAST_ONCE,
        }
        self.ended: set[int] = set()
        self.handed: set[tuple[TopicPartition, int]] = set()
        self.offsets: dict[TopicPartition, int] = {}
        for number in range(self.draws.randint(2, 5)):
            self.add(f"c{number}")

    def add(self, client: str) -> None:
        self.world.add(
            client, seed=self.draws.randint(0, 1 << 30), greedy=self.draws.random() < 0.5, **self.settings
        )

    def end(self, node: Node) -> None:
        node.alive = False
        self.ended.add(id(node))

    def check(self) -> None:
        """At most one process hands out, it is the row's owner, and no offset goes back, but for what its
        owner was not handed out (at most once): that it was not is what `consume_once` checks.
        """
        now_s = self.world.now_s
        for place in self.places:
            row = self.world.row(*place)
            handing = [
                node
                for node in self.world.nodes
                if id(node) not in self.ended and node.member.may_deliver(*place, now_s)
            ]
            assert len(handing) <= 1, f"{place} at {now_s}: two hand out"
            for node in handing:
                settings: MemberSettings = node.member.settings
                assert row is not None
                assert (row.client_id, row.instance_id) == (settings.client_id, settings.instance_id), (
                    f"{place} at {now_s}: not the owner"
                )
            if row is not None and row.current_offset is not None:
                handed = max((offset for at, offset in self.handed if at == place), default=-1)
                limit = (
                    min(self.offsets.get(place, 0), handed + 1)
                    if self.at_most_once
                    else self.offsets.get(place, 0)
                )
                assert row.current_offset >= limit, f"{place} at {now_s}: the offset went back"
                self.offsets[place] = row.current_offset

    def step(self) -> None:
        world, draws = self.world, self.draws
        world.run(draws.uniform(0, 0.1) * self.interval_s)
        self.check()
        node = draws.choice(world.nodes)
        chance = draws.random()
        if chance < 0.03:
            self.end(node)
        elif chance < 0.12:
            fault = draws.choice(["deaf", "mute", "blind"])
            setattr(node, fault, not getattr(node, fault))
        elif chance < 0.17:
            node.alive = not node.alive and id(node) not in self.ended
        elif chance < 0.19:
            world.do(node, node.member.terminate(draws.random() < 0.5, world.now_s))
        elif chance < 0.21:
            if self.restarts:
                for other in world.nodes:
                    if other.member.settings.client_id == node.member.settings.client_id:
                        self.end(other)
            self.add(node.member.settings.client_id)
        elif chance < 0.22:
            world.pause(draws.uniform(-0.5, 2) * self.interval_s)
        elif chance < 0.3:
            world.do(node, node.member.messages.flush(world.now_s))
        elif node.alive and node.started:
            place = draws.choice(sorted(node.started))
            self.consume_once(node, place) if self.at_most_once else self.consume(node, place)

    def consume(self, node: Node, place: TopicPartition) -> None:
        if node.member.may_deliver(*place, self.world.now_s):
            work = work_of(node.member._claims[place].stage)
            assert work is not None
            begin = work.tracker.position
            tokens = self.world.deliver(node, *place, range(begin, begin + self.draws.randint(1, 9)))
            self.draws.shuffle(tokens)
            self.world.commit(node, *tokens[: self.draws.randint(0, len(tokens))])

    def consume_once(self, node: Node, place: TopicPartition) -> None:
        work, now_s = work_of(node.member._claims[place].stage), self.world.now_s
        for batch in [each for each in node.batches if (each.topic, each.partition) == place]:
            node.batches.remove(batch)
            if node.member.may_deliver(*place, now_s) and work is not None and batch.offset_end > work.handed:
                offsets = range(work.handed, batch.offset_end)
                for offset in offsets:
                    assert (place, offset) not in self.handed, f"{place} {offset} handed out twice"
                    self.handed.add((place, offset))
                self.world.do(node, node.member.messages.delivered(*place, offsets, now_s))
        after = node.member._claims.get(place)
        if after is None or not isinstance(after.stage, Active) or after.stage.batch is not None:
            return
        work = after.stage.work
        if work.handed >= work.tracker.current:
            self.world.do(
                node,
                node.member.messages.fetched(*place, work.tracker.current + self.draws.randint(1, 9), now_s),
            )

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        for node in self.world.nodes:
            node.deaf = node.mute = node.blind = False
        self.world.pause(-1)
        self.add("healthy")
        self.world.run(5 * self.interval_s)
        self.check()
        for place in self.places:
            assert any(
                node.alive and node.member.may_deliver(*place, self.world.now_s) for node in self.world.nodes
            ), f"{place} is idle"


@pytest.mark.long
@pytest.mark.parametrize("restarts", [True, False])
def test_whatever_happens_one_process_hands_out_offsets_only_grow_and_in_the_end_everything_is_consumed(
    restarts: bool,
) -> None:
    for seed in range(20):
        try:
            Schedule(seed, restarts=restarts).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def _found(restarts: bool = True) -> bool:
    for seed in range(60):
        try:
            Schedule(seed, restarts=restarts).run()
        except AssertionError:
            return True
    return False


def test_a_lease_that_is_too_long_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberSettings, "lease_s", property(lambda settings: 1.5 * settings.stale_after_s))
    assert _found()


@pytest.mark.long
def test_a_lease_that_counts_acknowledgements_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker acknowledges the heartbeat of a process that thaws after a takeover too."""
    honest = Member.sent

    def credulous(self: Member, send_id: int, ok: bool, now_s: float) -> list[Action]:
        sent = self._state.shell.sends.get(send_id)
        if (
            ok
            and sent is not None
            and isinstance(sent.claim.stage, Active)
            and isinstance(sent.frame, Heartbeat)
        ):
            sent.claim.lease_until_s = sent.claim.gate.deliver_until_s = now_s + self.settings.lease_s
        return honest(self, send_id, ok, now_s)

    monkeypatch.setattr(Member, "sent", credulous)
    monkeypatch.setattr(HealthCheck, "check", lambda self, claim, stage, now_s: ClaimVerdict.KEEP)
    assert _found()


def test_a_member_that_thinks_every_claim_is_taken_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_view.LogView, "busy_for_s", lambda self, place, now_s, unix_s: 1e9)
    assert _found()


@pytest.mark.long
def test_two_processes_under_one_client_id_overlap_only_with_fast_reclaim() -> None:
    """PROTOCOL.md#two-processes-under-one-client-id: all that is said there to be possible is."""
    found: list[str] = []
    for seed in range(60):
        schedule = Schedule(seed, restarts=False)
        schedule.settings["fast_reclaim"] = True
        try:
            schedule.run()
        except AssertionError as error:
            found.append(str(error))
    assert found
    assert not [text for text in found if "handed out twice" in text or "went back" in text]
