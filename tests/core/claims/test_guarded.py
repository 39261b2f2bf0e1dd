"""Both views of the claims, scenario by scenario: given a log, when a frame arrives, then the row."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from holdfast.core.claims import compat, guarded
from holdfast.core.claims.claim_keys import pause_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow, Pause
from holdfast.core.claims.compat import UNCLAIMED, CompatClaim, fold_compat
from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    decode,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import claimed, is_paused, skew_s, status
from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import FrameError
from tests.support.go_claims import compat_claimed, partition_claim
from tests.support.places import TESTDATA

AGES: dict[str, Any] = json.loads((TESTDATA / "claim_age.json").read_text())


class World:
    """One coordination partition, folded by both views.

    A sender is "client/instance"; its clock is right by default.
    """

    def __init__(self) -> None:
        self.guarded: dict[str, GuardedRow] = {}
        self.compat: dict[str, CompatClaim] = {}

    def put(self, frame: Frame, at_s: int, *, timestamps: bool = True) -> None:
        at_ms = at_s * 1000 + 7 if timestamps else -1
        assert fold_guarded(cast(Rows[GuardedRow], self.guarded), frame, at_ms) is None
        assert fold_compat(cast(Rows[CompatClaim], self.compat), frame, at_ms) is None

    def heartbeat(
        self, sender: str, at_s: int, offset: int, *, clock_s: int | None = None, **more: Any
    ) -> None:
        client, instance = sender.split("/")
        self.put(
            Heartbeat(at_s if clock_s is None else clock_s, instance, client, "g", "t", 0, offset),
            at_s,
            **more,
        )

    def claiming(self, sender: str, at_s: int, *, clock_s: int | None = None, **more: Any) -> None:
        client, instance = sender.split("/")
        self.put(
            ClaimingPartition(at_s if clock_s is None else clock_s, instance, client, "g", "t", 0),
            at_s,
            **more,
        )

    def release(self, sender: str, at_s: int, offset: int) -> None:
        client, instance = sender.split("/")
        self.put(ReleasingPartition(at_s, instance, client, "g", "t", 0, offset), at_s)

    def announce(self, sender: str, at_s: int, end: int) -> None:
        client, instance = sender.split("/")
        self.put(ClaimingMessages(at_s, instance, client, "g", "t", 0, end), at_s)

    @property
    def claim(self) -> Claim:
        row = self.guarded["g/t/0"]
        assert isinstance(row, Claim)
        return row

    @property
    def go(self) -> CompatClaim:
        return self.compat["g/t/0"]

    @property
    def owner(self) -> str:
        return f"{self.claim.client_id}/{self.claim.instance_id}"

    @property
    def go_owner(self) -> str:
        return f"{self.go.client_id}/{self.go.instance_id}"

    @property
    def anomalies(self) -> tuple[int, str, str] | None:
        odd = self.claim.anomaly
        return None if odd is None else (odd.count, odd.kind.value, f"{odd.client_id}/{odd.instance_id}")

    def offsets(self) -> tuple[int | None, int | None]:
        """Return the current and the announced offset."""
        return self.claim.current_offset, self.claim.proposed_offset


# -- scenarios of the protocol


@pytest.mark.parametrize("vector", AGES["vectors"], ids=lambda each: f"age {each['age_s']}")
def test_m3_a_claim_is_held_below_twice_the_interval_in_both_views(vector: dict[str, Any]) -> None:
    world = World()
    world.heartbeat("a/i1", vector["last_heartbeat_s"], 5)
    assert claimed(world.claim, vector["now_s"]) is vector["claimed"]
    assert status(world.claim, vector["now_s"]) == vector["status"]
    assert compat_claimed(world.go, vector["now_s"]) is vector["claimed"]
    assert (partition_claim(world.go, vector["now_s"]) == world.go) is vector["claimed"]


def test_m3_no_heartbeat_is_no_claim_and_a_heartbeat_ahead_of_the_reader_is_one_only_in_the_guarded_view() -> (  # noqa: E501
    None
):
    none, ahead = AGES["special"]
    assert not claimed(None, none["now_s"])
    assert not compat_claimed(None, none["now_s"])
    assert not compat_claimed(UNCLAIMED, none["now_s"])
    world = World()
    world.heartbeat("a/i1", ahead["last_heartbeat_s"], 5)
    assert claimed(world.claim, ahead["now_s"]) is ahead["guarded_claimed"]
    assert status(world.claim, ahead["now_s"]) == ahead["guarded_status"]
    assert compat_claimed(world.go, ahead["now_s"]) is ahead["compat_claimed"]


def test_m4_a_claim_while_the_owner_is_live_changes_nothing_and_at_twice_the_interval_it_succeeds_keeping_the_offset() -> (  # noqa: E501
    None
):
    world = World()
    world.heartbeat("a/i1", 1, 33)
    before = (world.claim, world.go)
    world.claiming("b/j1", 51)
    world.claiming("c/k1", 51)
    assert (world.claim, world.go) == before
    world.claiming("b/j1", 120)
    assert (world.claim, world.go) == before
    world.claiming("b/j1", 121)
    world.claiming("c/k1", 121)
    assert world.owner == world.go_owner == "b/j1"
    assert world.claim.current_offset == world.go.current_offset == 33
    assert world.claim.epoch == 2


def test_m5_only_the_owning_instance_releases() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 5)
    before = world.go
    world.release("a/i2", 20, 99)
    world.release("b/i1", 20, 99)
    assert world.go == before
    assert (world.owner, world.claim.current_offset, world.claim.heartbeat_at_s) == ("a/i1", 5, 10)
    assert world.anomalies == (2, "foreign-release", "b/i1")
    world.release("a/i1", 30, 10)
    assert (world.go.last_release_s, world.go.last_heartbeat_s, world.go.current_offset) == (30, 0, 10)
    assert (world.claim.released_at_s, world.claim.heartbeat_at_s, world.claim.current_offset) == (
        30,
        None,
        10,
    )
    assert status(world.claim, 30) == "released"
    assert not claimed(world.claim, 30)


def test_m12_a_restart_within_the_interval_resumes_by_heartbeats_alone() -> None:
    world = World()
    world.claiming("a/i1", 10)
    world.heartbeat("a/i1", 11, 40)
    world.heartbeat("a/i2", 60, 40)
    assert world.owner == world.go_owner == "a/i2"
    assert (world.claim.epoch, world.claim.current_offset, world.claim.anomaly) == (2, 40, None)


def test_m13_a_pause_lasts_until_its_expiry_and_the_latest_one_counts() -> None:
    world = World()
    world.put(ReleaseGroup(100, "x1", "admin", "g", 700), 100)
    pause = world.guarded[pause_key("g")]
    assert isinstance(pause, Pause)
    assert [is_paused(pause, now_s) for now_s in (100, 699, 700)] == [True, True, False]
    assert not is_paused(None, 100)
    world.put(ReleaseGroup(100, "x2", "other", "g", 300), 150)
    assert world.guarded[pause_key("g")] == Pause(300, 150, "other", "x2")
    world.claiming("admin/x2", 160)
    assert world.owner == "admin/x2", "the administrator claims within the paused group"
    world.put(ReleaseGroup(100, "x2", "other", "g", 160), 160)
    assert list(world.guarded) == ["g/t/0"]
    assert list(world.compat) == ["g/t/0"], "the Go library does not know the frame"


def test_m14_magic_0_frames_and_frames_with_append_times_fold_to_the_same_owners() -> None:
    stamped, bare = World(), World()
    for world, timestamps in ((stamped, True), (bare, False)):
        world.claiming("a/i1", 10, timestamps=timestamps)
        world.heartbeat("a/i1", 11, 5, timestamps=timestamps)
        world.claiming("b/j1", 130, timestamps=timestamps)
        world.claiming("b/j1", 131, timestamps=timestamps)
        world.heartbeat("a/i1", 140, 6, timestamps=timestamps)
    assert stamped.guarded == bare.guarded
    assert stamped.compat == bare.compat
    assert stamped.owner == "b/j1"


def test_m15_at_most_once_a_batch_is_announced_then_committed_by_a_heartbeat_at_its_end() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 100)
    world.announce("a/i1", 12, 150)
    world.heartbeat("a/i1", 13, 100)
    assert world.offsets() == (100, 150), "a routine heartbeat keeps the announcement open"
    world.announce("a/i1", 14, 130)
    assert world.offsets() == (100, 130), "a smaller batch may be announced instead"
    world.heartbeat("a/i1", 15, 130)
    assert world.offsets() == (130, None)
    world.announce("a/i1", 16, 130)
    assert world.anomalies == (1, "backward-proposal", "a/i1")


def test_m15_at_most_once_an_owner_that_lost_its_claim_cannot_commit() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 100)
    world.announce("a/i1", 12, 150)
    world.announce("a/i1", 130, 200)
    assert world.anomalies == (1, "late-proposal", "a/i1")
    assert world.claim.proposed_offset == 150
    world.claiming("b/j1", 131)
    assert world.offsets() == (100, None), "the new owner reads the batch"
    world.heartbeat("a/i1", 132, 150)
    world.announce("a/i1", 132, 200)
    assert (world.owner, world.offsets()) == ("b/j1", (100, None))
    assert world.anomalies == (3, "foreign-proposal", "a/i1")


def test_an_announcement_renews_nothing() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 100)
    world.announce("a/i1", 129, 150)
    world.claiming("b/j1", 130)
    assert world.owner == "b/j1"


# -- defects of the Go library, and what each view makes of them


def test_d1_a_claim_refused_live_stays_refused_in_every_replay() -> None:
    log: list[tuple[Frame, int]] = [
        (Heartbeat(1000, "i1", "a", "g", "t", 0, 5), 1000),
        (ClaimingPartition(1060, "j1", "b", "g", "t", 0), 1060),
        (Heartbeat(1061, "i1", "a", "g", "t", 0, 6), 1061),
    ]
    live, replayed = World(), World()
    for frame, at_s in log:
        live.put(frame, at_s)
    for frame, at_s in log:  # a year later: only the log enters, so the result cannot differ
        replayed.put(frame, at_s)
    assert live.guarded == replayed.guarded
    assert live.owner == "a/i1"
    assert live.claim.epoch == 1
    assert not compat._compat_live(live.go, 1061 + 365 * 86400), (
        "what the Go library asks when it replays: its own clock"
    )


def test_d2_a_zombie_that_thaws_after_a_takeover_moves_neither_owner_nor_offset() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.claiming("b/j1", 130)
    world.heartbeat("b/j1", 131, 60)
    world.heartbeat("a/i1", 140, 51)
    assert (world.owner, world.claim.current_offset, world.claim.heartbeat_at_s) == ("b/j1", 60, 131)
    assert world.anomalies == (1, "foreign-heartbeat", "a/i1")
    assert (world.go_owner, world.go.current_offset) == (
        "a/i1",
        51,
    ), "the Go library hands the claim back, at an older offset"
    world.heartbeat("b/j1", 150, 61)
    assert world.anomalies == (1, "foreign-heartbeat", "a/i1"), "the owner's next heartbeat keeps the note"


def test_d2_a_stale_or_released_claim_is_handed_over_by_a_heartbeat_as_go_members_do() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.heartbeat("b/j1", 130, 55)
    assert (world.owner, world.claim.epoch, world.claim.current_offset, world.claim.anomaly) == (
        "b/j1",
        2,
        55,
        None,
    )
    world.release("b/j1", 131, 56)
    world.heartbeat("a/i1", 132, 57)
    assert (world.owner, world.claim.epoch, world.claim.released_at_s) == ("a/i1", 3, None)
    assert world.go_owner == world.owner


def test_d3_a_clock_that_runs_ahead_neither_loses_nor_prolongs_a_claim() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50, clock_s=500)
    assert skew_s(world.claim) == 490
    world.claiming("b/j1", 20)
    assert world.owner == "a/i1"
    assert world.go_owner == "b/j1", "the Go library takes a heartbeat from the future for none"
    world.claiming("b/j1", 130)
    assert world.owner == "b/j1", "120 s after it was appended, whatever its own time says"


def test_d3_a_clock_that_lags_keeps_its_claim_as_long_as_its_heartbeats_arrive() -> None:
    world = World()
    world.heartbeat("a/i1", 1000, 50, clock_s=800)
    world.claiming("b/j1", 1001)
    assert (world.owner, skew_s(world.claim)) == ("a/i1", -200)
    assert world.go_owner == "b/j1"
    world.claiming("b/j1", 1010, clock_s=9_999_999)
    assert world.owner == "a/i1", "a claimer's clock decides nothing either"


def test_d4_frames_without_append_times_fold_to_the_same_owners() -> None:
    world = World()
    world.heartbeat("a/i1", 100, 5, timestamps=False)
    world.claiming("b/j1", 90, timestamps=False)
    world.claiming("b/j1", 219, timestamps=False)
    assert world.owner == "a/i1"
    world.heartbeat("a/i1", 60, 6, timestamps=False)
    assert world.claim.heartbeat_at_s == 100, "the claim's time never goes back"
    world.claiming("b/j1", 220, timestamps=False)
    assert (world.owner, world.claim.heartbeat_at_s) == ("b/j1", 220)


def test_d8_far_apart_partitions_cost_a_row_each_and_negative_ones_are_refused() -> None:
    world = World()
    for partition in (0, 5, 2**31 - 1):
        world.put(Heartbeat(10, "i1", "a", "g", "t", partition, 5), 10)
    assert sorted(world.guarded) == sorted(world.compat) == ["g/t/0", "g/t/2147483647", "g/t/5"]
    with pytest.raises(FrameError):
        decode(b"Heartbeat/1/10/i1/a/g/t/-1/5")


def test_d8_frames_about_a_free_claim_leave_no_row_unless_they_take_it() -> None:
    world = World()
    world.release("a/i1", 10, 5)
    world.announce("a/i1", 10, 5)
    world.put(ReleaseGroup(10, "x", "admin", "g", 10), 10)
    assert (world.guarded, world.compat) == ({}, {})


def test_d16_offset_zero_is_an_offset_and_no_offset_is_none() -> None:
    world = World()
    world.claiming("a/i1", 10)
    assert world.claim.current_offset is None
    assert world.go.current_offset == 0
    world.heartbeat("a/i1", 11, 7)
    world.release("a/i1", 12, 7)
    world.claiming("admin/reset-1", 13)
    world.release("admin/reset-1", 14, 0)
    world.claiming("b/j1", 15)
    assert world.claim.current_offset == 0, "a group reset to 0 resumes at 0"


@pytest.mark.parametrize("at_s", [12, 11 + 120], ids=["live", "stale"])
def test_an_offset_goes_back_by_a_reset_only(at_s: int) -> None:
    for sender in ("a/i1", "a/i2") if at_s == 12 else ("a/i1", "a/i2", "b/j1"):
        world = World()
        world.heartbeat("a/i1", 10, 50)
        world.heartbeat("a/i1", 11, 70)
        world.heartbeat(sender, at_s, 50)
        assert (world.owner, world.claim.current_offset, world.claim.heartbeat_at_s) == (sender, 70, at_s)
        assert world.anomalies == (1, "backward-offset", sender)
        world.release(sender, at_s + 1, 50)
        assert (world.claim.released_at_s, world.claim.current_offset) == (at_s + 1, 70)
        assert world.go.current_offset == 50


def test_d17_of_two_processes_under_one_client_id_the_newer_owns_the_claim() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.heartbeat("a/i2", 20, 50)
    for at_s in (25, 35, 45):
        world.heartbeat("a/i1", at_s, 51)
        world.release("a/i1", at_s, 52)
        world.heartbeat("a/i2", at_s + 1, 60 + at_s)
    assert (world.owner, world.claim.epoch, world.claim.current_offset, world.claim.fenced) == (
        "a/i2",
        2,
        105,
        ("i1",),
    )
    assert world.anomalies == (6, "foreign-release", "a/i1")
    world.heartbeat("a/i1", 50, 51)
    assert world.go_owner == "a/i1", "in the Go library they take turns"


def test_d17_an_instance_replaced_long_ago_stays_fenced_while_its_client_owns_the_claim_again() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.claiming("b/j1", 130)
    world.release("b/j1", 131, 55)
    world.claiming("a/i2", 132)
    world.heartbeat("a/i1", 133, 51)
    assert (world.owner, world.claim.fenced) == ("a/i2", ("i1", "j1"))
    assert world.anomalies == (1, "fenced-heartbeat", "a/i1")


def test_d17_a_fenced_instance_that_claims_a_free_claim_is_an_owner_like_any_other() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.heartbeat("a/i2", 20, 50)
    world.release("a/i2", 30, 60)
    world.claiming("a/i1", 31)
    world.heartbeat("a/i1", 32, 61)
    assert (world.owner, world.claim.fenced, world.claim.anomaly) == ("a/i1", ("i2",), None)


def test_d17_a_client_that_restarts_for_ever_remembers_only_the_last_instances() -> None:
    world = World()
    for number in range(100):
        world.heartbeat(f"a/i{number}", 10 + number, 5)
    assert world.claim.fenced == tuple(f"i{number}" for number in range(99 - guarded.LIMIT_FENCED, 99))
    assert world.claim.epoch == 100


def test_d23_a_claim_outlives_the_frames_that_made_it() -> None:
    whole, restored = World(), World()
    for world in (whole, restored):
        world.claiming("a/i1", 10)
        world.heartbeat("a/i1", 11, 500)
        world.release("a/i1", 12, 510)
    kept = {key: RowCodec[GuardedRow](GuardedRow).encode(row) for key, row in restored.guarded.items()}
    restored.guarded = {key: RowCodec[GuardedRow](GuardedRow).decode(row) for key, row in kept.items()}
    for world in (whole, restored):  # long after retention removed the frames above
        world.claiming("b/j1", 10_000_000)
    assert restored.guarded == whole.guarded
    assert restored.claim.current_offset == 510
    headless = World()
    headless.claiming("b/j1", 10_000_000)
    assert headless.claim.current_offset is None, "a fold of what retention left knows no offset, and says so"


def test_an_owner_that_was_stale_for_a_while_continues_in_the_same_epoch() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.heartbeat("a/i1", 400, 51)
    assert (world.claim.epoch, world.claim.heartbeat_at_s, world.claim.current_offset) == (1, 400, 51)
    world.release("a/i1", 900, 60)
    assert (world.claim.released_at_s, world.claim.current_offset) == (900, 60)


def test_a_negative_offset_is_noted_and_keeps_the_known_one() -> None:
    world = World()
    world.heartbeat("a/i1", 10, 50)
    world.heartbeat("a/i1", 20, -1)
    assert (world.claim.current_offset, world.claim.heartbeat_at_s) == (50, 20)
    assert world.anomalies == (1, "negative-offset", "a/i1")
    assert world.go.current_offset == -1
