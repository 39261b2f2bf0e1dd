"""Resets, purely: the acts on a partition that the fold refuses while a reset holds it, and which decision
counts.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.claims.claim_keys import RESET_INSTANCE, ClaimKey
from holdfast.core.claims.claim_rows import AnomalyKind, Claim
from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.resets import (
    LIMIT_DECISION_BYTES,
    Aim,
    Decision,
    Decisions,
    ResetAbort,
    ResetCommit,
    Spot,
    Where,
    decode_decision,
    encode_decision,
    final_offset,
    held_by_reset,
    parse_datetime_ms,
    parse_duration_ms,
    parse_scope,
    release,
)
from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError, DecodeError

KEY = ClaimKey("g", "orders", 0)
RESET = RESET_INSTANCE + "5e"
COMMIT = ResetCommit(
    reset_id="5e", group="g", client="admin", at_s=100, offsets={"orders": ((0, 40, 0), (1, 7, 9))}
)
ABORT = ResetAbort(reset_id="5e", group="g", client="worker-8", at_s=101, reason="silent")


class World:
    """One claim's row after a log, frame by frame."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def fold(self, at_s: int, *frames: Frame) -> Claim:
        for frame in frames:
            fold_guarded(cast(Rows[Any], self.rows), frame, at_s * 1000)
        claim = self.rows["g/orders/0"]
        assert isinstance(claim, Claim)
        return claim


@pytest.fixture
def held() -> World:
    """A partition at offset 40 that reset 5e has held since second 100."""
    world = World()
    world.fold(
        10, Heartbeat(10, "i7", "worker-7", *KEY, 40), ReleasingPartition(11, "i7", "worker-7", *KEY, 40)
    )
    world.fold(100, ClaimingPartition(100, RESET, "admin", *KEY), Heartbeat(100, RESET, "admin", *KEY, 40))
    return world


@pytest.mark.parametrize("at_s", [101, 219, 220, 1_000_000])
@pytest.mark.parametrize(
    "frame",
    [
        ClaimingPartition(1, "i8", "worker-8", *KEY),
        Heartbeat(1, "i8", "worker-8", *KEY, 9),
        ReleasingPartition(1, "i8", "worker-8", *KEY, 9),
        ClaimingMessages(1, "i8", "worker-8", *KEY, 99),
        Heartbeat(1, "i9", "admin", *KEY, 9),
        ClaimingPartition(1, RESET_INSTANCE + "other", "admin", *KEY),
        Heartbeat(1, RESET_INSTANCE + "other", "admin", *KEY, 9),
    ],
)
def test_a_partition_that_a_reset_holds_cannot_be_claimed_however_old_it_is(
    held: World, frame: Frame, at_s: int
) -> None:
    before = held.rows["g/orders/0"]
    after = held.fold(at_s, frame)
    assert (after.client_id, after.instance_id, after.epoch) == (
        before.client_id,
        before.instance_id,
        before.epoch,
    )
    assert (after.current_offset, after.heartbeat_at_s, after.proposed_offset) == (40, 100, None)
    assert is_reserved(after)


def test_anybody_who_knows_the_decision_frees_it_in_the_name_of_the_reset(held: World) -> None:
    claim = held.rows["g/orders/0"]
    for at_s in (150, 1_000_000):
        world = World()
        world.rows = dict(held.rows)
        after = world.fold(at_s, release(KEY, claim, 0, at_s, None))
        assert (after.heartbeat_at_s, after.released_at_s, after.current_offset) == (None, at_s, 0)
        assert held_by_reset(after) is None
        assert world.fold(at_s + 1, ClaimingPartition(1, "i8", "worker-8", *KEY)).client_id == "worker-8"


def test_a_late_heartbeat_of_a_reset_takes_nothing(held: World) -> None:
    """It was under way while another freed the partition: with a new offset, or with a new owner."""
    claim = held.rows["g/orders/0"]
    freed = held.fold(150, release(KEY, claim, 0, 150, None), Heartbeat(100, RESET, "admin", *KEY, 40))
    assert (freed.current_offset, freed.heartbeat_at_s) == (0, None)
    assert freed.anomaly is not None
    assert freed.anomaly.kind is AnomalyKind.FOREIGN_HEARTBEAT
    held.fold(151, ClaimingPartition(151, "i8", "worker-8", *KEY), Heartbeat(151, "i8", "worker-8", *KEY, 3))
    stale = held.fold(100_000, Heartbeat(100, RESET, "admin", *KEY, 40))
    assert (stale.client_id, stale.current_offset) == ("worker-8", 3)
    assert not is_live(stale, 100_000)


# -- decisions

ids = st.text("abcdef0123456789", min_size=1, max_size=12)
commits = st.builds(
    ResetCommit,
    reset_id=ids,
    group=ids,
    client=ids,
    at_s=st.integers(0, 2**40),
    offsets=st.dictionaries(
        ids, st.lists(st.tuples(*[st.integers(0, 2**62)] * 3), max_size=4).map(tuple), max_size=3
    ),
)
aborts = st.builds(
    ResetAbort, reset_id=ids, group=ids, client=ids, at_s=st.integers(0, 2**40), reason=st.text(max_size=20)
)


@given(st.one_of(commits, aborts))
def test_a_decision_survives_its_log(decision: Decision) -> None:
    assert decode_decision(encode_decision(decision)) == decision


@pytest.mark.long
@given(st.lists(st.one_of(commits, aborts), max_size=20))
def test_of_several_decisions_about_one_reset_the_first_counts(log: list[Decision]) -> None:
    seen = Decisions()
    for decision in log:
        seen.add(decision)
    for decision in log:
        assert seen[decision.reset_id] is next(each for each in log if each.reset_id == decision.reset_id)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{}",
        b'{"decision":"maybe"}',
        b'{"decision":"commit","reset_id":"5e"}',
        b'{"decision":"abort","reset_id":"5e","group":"g","client":"c","at_s":"x","reason":""}',
        b"\xff",
        b"[" * 10_000,
        b" " * (LIMIT_DECISION_BYTES + 1),
    ],
)
def test_a_value_that_is_no_decision_is_refused_with_a_typed_error(value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        decode_decision(value)


def test_a_decision_that_no_record_can_hold_is_refused_before_anything_is_written() -> None:
    many = tuple((partition, 2**60, 2**60) for partition in range(30_000))
    with pytest.raises(ConfigError, match="reset fewer topics"):
        encode_decision(
            ResetCommit(reset_id="5e", group="g", client="admin", at_s=1, offsets={"orders": many})
        )


def test_the_offset_a_partition_is_freed_with_follows_from_the_decision_alone(held: World) -> None:
    claim = held.rows["g/orders/0"]
    assert final_offset(COMMIT, KEY, claim) == 0
    assert final_offset(ABORT, KEY, claim) == 40
    # Not part of the decision, or of another group: unchanged.
    assert final_offset(COMMIT, ClaimKey("g", "orders", 2), claim) == 40
    assert final_offset(COMMIT, ClaimKey("h", "orders", 0), claim) == 40


# -- what people write


@given(
    st.sampled_from(list(Where)),
    st.integers(-(2**62), 2**62),
    st.none() | st.integers(0, 2**62),
    st.integers(0, 2**61),
    st.integers(0, 2**61),
    st.booleans(),
)
def test_no_new_offset_lies_outside_the_log(
    where: Where, value: int, current: int | None, earliest: int, length: int, found: bool
) -> None:
    spot = Spot(current, earliest, earliest + length, earliest + length // 2 if found else None)
    assert earliest <= Aim(where, value).offset(spot) <= earliest + length


@pytest.mark.parametrize("text", ["", "10", "m", "10x", "-5m", "P", "PT", "1h 5m", "P5"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "1969-12-31T23:59:59Z"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_datetime_ms(text)


@pytest.mark.parametrize(
    "text", ["", ":1", "orders:", "orders:x", "orders:1,", "orders:-1", "orders:1:2", "orders:²"]
)
def test_what_names_no_partitions_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write TOPIC or TOPIC:PARTITION"):
        parse_scope([text])


def test_a_lane_is_meant_by_its_own_name_and_by_that_of_its_topic() -> None:
    scope = parse_scope(["orders:0"])
    assert scope.has("orders~lane-3-of-8", 0)
    assert not scope.has("orders~lane-3-of-8", 1)
    assert not parse_scope(["orders~lane-3-of-8"]).has("orders~lane-4-of-8", 0)
    assert parse_scope(["orders:0", "orders"]).has("orders", 5)
    assert parse_scope([]).has("anything", 5)
