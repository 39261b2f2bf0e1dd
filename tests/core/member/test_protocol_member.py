"""docs/PROTOCOL.md, "The member", against the code: each row of its tables is executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import pytest

from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat, ReleasingPartition
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member import settings as member_settings
from holdfast.core.member.actions import Action, FetchOffsets, Send, Start, Stop
from holdfast.core.member.claim import velocity
from holdfast.core.member.claim.local_claims import LocalClaim
from holdfast.core.member.claim.stages import ClaimStage, Declining, Draining, Releasing, Won
from holdfast.core.member.claim.velocity import Health, Sample
from holdfast.core.member.settings import HANDLER_TIMEOUT_S, MemberSettings
from tests.core.claims.test_protocol_page import PAGE, Row, plain, table
from tests.core.member.world import BEGAN_S, Node, World

ORDERS = TopicPartition("orders", 0)


# -- constants


def test_every_constant_of_the_member_is_that_of_the_code_and_the_page_has_all_of_them() -> None:
    rows = table("Constant", "Value", "At 60 s", "At 3 s", "What it is")
    factors = {name: value for name, value in vars(member_settings).items() if name.endswith("_INTERVALS")}
    assert {plain(row["Constant"]): float(row["Value"]) for row in rows} == factors
    for row in rows:
        for at_s in (60, 3):
            assert float(row[f"At {at_s} s"]) == pytest.approx(float(row["Value"]) * at_s)
    for interval_s, lease_s in ((60.0, 116.0), (3.0, 4.85)):
        settings = MemberSettings(
            group_id="g", client_id="c", instance_id="i", topics=("t",), heartbeat_interval_s=interval_s
        )
        assert settings.lease_s == pytest.approx(lease_s)
        assert f"{lease_s:g} s at {interval_s:g} s" in PAGE
    assert f"`LEASE_ROUNDING_S` ({member_settings.LEASE_ROUNDING_S})" in PAGE
    for name in ("RING_SLOTS", "PREDICTED_CYCLES", "LIMIT_CYCLES_BEHIND"):
        assert f"`{name}` ({getattr(velocity, name)})" in PAGE
    assert f"`handler_timeout_s` ({HANDLER_TIMEOUT_S:g} s)" in PAGE


# -- health


def verdict(row: Row) -> tuple[str, int]:
    state = Health()
    state.cycles_behind = int(row["Cycles"])
    for sample in (100, 100 + int(row["CV"])):
        state.note(sample, 0)
    state.latest_ring[:2] = [100, 100 + int(row["PV"])]
    sample_ = Sample(
        terminated=False,
        heartbeat_age_s=float(row["Heartbeat age, s"]),
        group_paused=row["Paused"] == "yes",
        idle_s=float(row["Idle, s"]),
        release_if_behind=True,
        whole_topic=False,
        current=int(row["Current"]),
        latest=int(row["Latest"]),
        at_work_s=float(row["At work, s"]) if row["At work, s"] else None,
    )
    return state.check(
        sample_, expired_after_s=60, idle_after_s=60, overdue_after_s=HANDLER_TIMEOUT_S
    ).value, state.cycles_behind


HEALTH = (
    "Heartbeat age, s",
    "Paused",
    "Idle, s",
    "At work, s",
    "CV",
    "PV",
    "Current",
    "Latest",
    "Cycles",
    "Verdict",
    "Cycles after",
)


def test_the_verdicts_of_the_page_are_those_of_the_code_and_complete() -> None:
    rows = table(*HEALTH)
    for row in rows:
        assert verdict(row) == (row["Verdict"], int(row["Cycles after"])), row
    assert {row["Verdict"] for row in rows} == set(velocity.ClaimVerdict) - {"none"}


# -- the race


def may_claim(world: World, **settings: object) -> str:
    node = world.add("a", greedy=True, **settings)  # type: ignore[arg-type]
    world.run(3.5)
    return told(node)


def told(node: Node) -> str:
    if not node.held:
        assert not [frame for frame in node.frames() if frame.partition == 0]
        return "not"
    return "at once" if node.frames(ClaimingPartition) else "at once, by a heartbeat"


def never_held() -> str:
    return may_claim(World())


def released() -> str:
    world = World()
    world.heartbeat("x", "orders", 0, 5)
    world.releasing("x", "orders", 0, 5)
    return may_claim(world)


def live_other() -> str:
    world = World()
    world.heartbeat("x", "orders", 0, 5)
    return may_claim(world)


def live_own() -> str:
    world = World()
    world.heartbeat("a", "orders", 0, 5)
    return may_claim(world)


def reserved(age_s: float) -> str:
    world = World()
    world.claiming("admin", "orders", 0)
    world.run(age_s)
    return may_claim(world)


def stale() -> str:
    world = World()
    world.heartbeat("x", "orders", 0, 5)
    world.run(121)
    return may_claim(world)


def cooling() -> str:
    world = World()
    node = world.add("a")
    world.run(5)
    world.do(node, node.member.fetch_failed("orders", 0, "gone", world.now_s))
    before = len(node.frames(ClaimingPartition))
    world.run(59)
    held, claimed = bool(node.held), len(node.frames(ClaimingPartition)) - before
    world.run(5)
    assert node.held
    assert held == bool(claimed)
    return "at once" if held else "not"


def paused() -> str:
    world = World()
    world.pause(600)
    return may_claim(world)


def limited() -> str:
    world = World({"orders": 2})
    world.heartbeat("x", "orders", 0, 5)
    node = world.add("a", maximum_claims=1)
    world.run(5)
    assert node.held == {("orders", 1)}
    world.releasing("x", "orders", 0, 5)
    world.run(10)
    return "not" if node.held == {("orders", 1)} else "at once"


def aimed_elsewhere() -> str:
    world = World({"orders": 2})
    node = world.add("a")
    world.do(node, node.member.aim([("orders", 1)], world.now_s))
    world.run(5)
    assert ("orders", 1) in node.held
    return "not" if len(node.held) == 1 else "at once"


RACES: dict[tuple[str, str], Callable[[], str]] = {
    ("never held", "anybody"): never_held,
    ("released", "anybody"): released,
    ("live", "another client"): live_other,
    ("live", "new instance of its client"): live_own,
    ("live, held by a reset", "anybody"): lambda: reserved(1),
    ("stale", "anybody"): stale,
    ("stale, held by a reset", "anybody"): lambda: reserved(1000),
    ("released", "after an unhealthy release of its own"): cooling,
    ("released", "during a pause"): paused,
    ("released", "at its limit of claims"): limited,
    ("released", "with a target that does not name it"): aimed_elsewhere,
}


def test_every_line_of_the_race_is_what_a_member_does() -> None:
    rows = table("Claim", "Asked by", "May be claimed")
    assert {(row["Claim"], row["Asked by"]) for row in rows} == set(RACES)
    for row in rows:
        assert RACES[row["Claim"], row["Asked by"]]() == row["May be claimed"], row


# -- the life of a claim


def claim_of(node: Node) -> LocalClaim | None:
    return node.member._claims.get(ORDERS)


def at_stage(stage: str, *, outstanding: bool = False) -> tuple[World, Node]:
    """Return a world whose node "a" has one claim in *stage*, alone: frames neither arrive nor are
    answered by themselves any more.
    """
    world = World(delay_s=0.01)
    client = "a" if stage == "reclaiming" else "x"
    world.heartbeat(client, "orders", 0, 7)
    if stage != "reclaiming":
        world.releasing(client, "orders", 0, 7)
    node = world.add("a", release_if_behind=True, drain_s=50.0)
    node.deaf = stage in ("claiming", "reclaiming")
    node.blind = stage == "won"
    while (claim := claim_of(node)) is None or claim.stage.name not in (stage, "active"):
        world.run(0.01)
    if stage in ("draining", "releasing") or outstanding:
        world.deliver(node, "orders", 0, [7])
    if stage in ("draining", "releasing"):
        world.run(1)
        node.deaf = True
        world.do(node, node.member.terminate(True, world.now_s))
    if stage == "releasing":
        world.do(node, node.member.messages.withdrawn("orders", 0, 7, world.now_s))
    elif stage in ("active", "draining"):
        world.run(1)
    claim = claim_of(node)
    assert claim is not None
    assert claim.stage.name == stage
    node.done.clear()
    return world, node


def taken_by(world: World, node: Node) -> None:
    """Another process of the client takes the claim: the one way in which a live claim changes hands."""
    node.deaf = False
    world.append(Heartbeat(int(BEGAN_S + world.now_s), "new", "a", "g", "orders", 0, 7))
    while node.cursors[0] < len(world.log[0]):
        world.run(0.01)


def own_frame(world: World, node: Node) -> None:
    node.deaf, node.blind = False, True
    while node.cursors[0] < len(world.log[0]):
        world.run(0.01)


def lost_race(world: World, node: Node) -> None:
    before = world.log[0].pop()
    assert before[1].client_id == "a"
    fresh = World(delay_s=0.01)
    fresh.heartbeat("a" if isinstance(before[1], Heartbeat) else "x", "orders", 0, 7)
    world.rows = fresh.rows
    # The same log, but for a rival's frame in front of ours.
    frame: Frame = ClaimingPartition(int(BEGAN_S + world.now_s), "r", "r", "g", "orders", 0)
    if isinstance(before[1], Heartbeat):
        node.member._state.topics.logs[0]._rows["g/orders/0"] = Claim(
            "r", "r", 9, int(BEGAN_S + world.now_s), None, 7, None, 1
        )
    else:
        world.append(frame)
    world.log[0].append((world.now_s, before[1]))
    own_frame(world, node)


def due(world: World, node: Node) -> None:
    claim = claim_of(node)
    assert claim is not None
    node.deaf = True
    world.run(claim.beat_at_s - world.now_s)


def patience(world: World, node: Node) -> None:
    claim = claim_of(node)
    assert claim is not None
    node.deaf = True
    node.mute = not isinstance(claim.stage, Draining)
    if isinstance(claim.stage, Won | Draining | Releasing | Declining):
        world.run(claim.stage.until_s - world.now_s - 0.1)
        node.done.clear()
        world.run(0.2)
    else:
        world.run(claim.stage.until_s - world.now_s)


def unhealthy(world: World, node: Node) -> None:
    claim = claim_of(node)
    assert claim is not None
    claim.heartbeat_s = world.now_s - 100
    due(world, node)


def pause(world: World, node: Node) -> None:
    world.pause(100)
    while node.cursors[0] < len(world.log[0]):
        world.run(0.01)


def released_by_itself(world: World, node: Node) -> None:
    world.append(ReleasingPartition(int(BEGAN_S + world.now_s), "a0", "a", "g", "orders", 0, 7))
    own_frame(world, node)


def watermarks(world: World, node: Node) -> None:
    node.blind = False
    world.look(node, ORDERS)


def last_commit(world: World, node: Node) -> None:
    claim = claim_of(node)
    assert claim is not None
    world.do(node, node.member.messages.commit_many("orders", 0, claim.epoch, [7], world.now_s))


def own_release(world: World, node: Node) -> None:
    world.run(0.02)
    own_frame(world, node)


EVENTS: dict[str, Callable[[World, Node], None]] = {
    "own frame, row is ours": own_frame,
    "own frame, row is another's": lost_race,
    "row is another's": taken_by,
    "row shows it released": released_by_itself,
    "patience ends": patience,
    "watermarks": watermarks,
    "heartbeat due, healthy": due,
    "heartbeat due": due,
    "heartbeat due, not healthy, nothing in flight": unhealthy,
    "pause, nothing in flight": pause,
    "pause, messages in flight": pause,
    "last commit": last_commit,
    "own release in the log": own_release,
    "not in the log yet, lease not over": due,
}


def worded(actions: list[Action]) -> str:
    """Return the acts in the words of the page."""
    words = []
    for action in actions:
        match action:
            case FetchOffsets():
                words.append("ask for watermarks")
            case Start():
                words.append("start")
            case Stop():
                words.append("stop")
            case Send(frame=Heartbeat()):
                words.append("heartbeat")
            case Send(frame=ReleasingPartition()):
                words.append("release")
            case Send(frame=ClaimingPartition()):
                words.append("claim")
    return ", ".join(words)


def live(stage: str, event: str) -> tuple[str, str]:
    world, node = at_stage(stage, outstanding="messages in flight" in event)
    if stage in ("claiming", "reclaiming"):
        world.run(0.02)  # the frame is appended and not seen yet
        node.done.clear()
    before = claim_of(node)
    EVENTS[event](world, node)
    claim = claim_of(node)
    return "gone" if claim is None or claim is not before else claim.stage.name, worded(
        [action for _, action in node.done]
    )


def test_every_step_in_the_life_of_a_claim_is_the_codes_and_no_stage_is_missing() -> None:
    rows = table("Stage", "What happens", "Next", "What is done")
    for row in rows:
        assert live(row["Stage"], row["What happens"]) == (row["Next"], row["What is done"]), row
    stages = {stage.name for stage in get_args(ClaimStage)}
    assert {row["Stage"] for row in rows} == stages
    assert {row["Next"] for row in rows} >= stages - {"claiming", "reclaiming"}


# -- the checks check


@pytest.mark.parametrize(
    ("row", "column", "wrong"),
    [
        ("| won | watermarks | active | heartbeat, start |", 3, "start"),
        ("| active | pause, messages in flight | draining | stop |", 2, "releasing"),
    ],
)
def test_a_changed_line_of_life_is_noticed(row: str, column: int, wrong: str) -> None:
    assert row in PAGE
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert live(cells[0], cells[1]) == (cells[2], cells[3])
    cells[column] = wrong
    assert live(cells[0], cells[1]) != (cells[2], cells[3])


def test_changed_constants_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(velocity, "LIMIT_CYCLES_BEHIND", 2)
    with pytest.raises(AssertionError):
        test_the_verdicts_of_the_page_are_those_of_the_code_and_complete()
    monkeypatch.setattr(member_settings, "DRAIN_INTERVALS", 0.3)
    with pytest.raises(AssertionError):
        test_every_constant_of_the_member_is_that_of_the_code_and_the_page_has_all_of_them()
    assert re.search(r"^## The member$", PAGE, re.MULTILINE)
