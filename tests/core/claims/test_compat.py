"""The compat view against the Go library's own tests; then the keys and rows of both views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec
import pytest

from holdfast.core.claims import claim_rows
from holdfast.core.claims.claim_keys import PAUSE_PREFIX, claim_key, parse_claim_key, pause_key, route
from holdfast.core.claims.claim_rows import AnomalyKind, Claim, GuardedRow, Pause
from holdfast.core.claims.compat import (
    UNCLAIMED,
    CompatClaim,
    fold_compat,
)
from holdfast.core.claims.frames import coordination_partition, decode
from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.engine.state.rows import Rows
from tests.support.go_claims import last_partition_claim, partition_claim


def go(values: Iterable[bytes], *, at_s: int | None = None) -> dict[str, CompatClaim]:
    """Return the rows after *values*, all appended at *at_s*, or without append times."""
    rows: dict[str, CompatClaim] = {}
    for value in values:
        fold_compat(cast(Rows[CompatClaim], rows), decode(value), -1 if at_s is None else at_s * 1000)
    return rows


# -- the Go library's own tests, in the compat view


def test_go_handoff_a_heartbeat_takes_over_and_the_old_owners_release_is_ignored() -> None:
    log = [
        b"Heartbeat/1/1/i1/cl/g/t/0/10",
        b"Heartbeat/1/2/i2/cl2/g/t/0/20",
        b"ReleasingPartition/1/25/i1/cl/g/t/0/30",
    ]
    assert go(log) == {"g/t/0": CompatClaim("i2", "cl2", "g", 0, 2, 20)}
    log.append(b"ReleasingPartition/1/27/i2/cl2/g/t/0/30")
    assert go(log) == {"g/t/0": CompatClaim("i2", "cl2", "g", 27, 0, 30)}
    log.append(b"ClaimingPartition/1/28/i1/cl/g/t/0")
    assert go(log) == {"g/t/0": CompatClaim("i1", "cl", "g", 0, 28, 30)}


def test_go_a_release_with_empty_ids_matches_the_empty_claim() -> None:
    assert go([b"ReleasingPartition/1/10////t/0/5"]) == {"/t/0": CompatClaim("", "", "", 10, 0, 5)}
    assert go([b"ReleasingPartition/1/10///g/t/0/5"]) == {}


def test_go_groups_do_not_see_each_other() -> None:
    rows = go([b"Heartbeat/1/10/i1/a/g/t/0/5", b"ClaimingPartition/1/11/j1/b/g2/t/0"])
    assert rows == {
        "g/t/0": CompatClaim("i1", "a", "g", 0, 10, 5),
        "g2/t/0": CompatClaim("j1", "b", "g2", 0, 11, 0),
    }


def test_go_partitions_do_not_see_each_other() -> None:
    rows = go([b"Heartbeat/1/10/i1/a/g/t/4/5", b"ClaimingPartition/1/11/j1/b/g/t/0"])
    assert [(key, row.client_id) for key, row in rows.items()] == [("g/t/4", "a"), ("g/t/0", "b")]


@pytest.mark.parametrize("wall_s", [10, 129, 130])
def test_go_the_readers_clock_decides_a_claim_and_the_append_time_stands_for_it(wall_s: int) -> None:
    log = [b"Heartbeat/1/10/i1/a/g/t/0/5", b"ClaimingPartition/1/11/j1/b/g/t/0"]
    assert go(log, at_s=wall_s)["g/t/0"].client_id == ("b" if wall_s == 130 else "a")
    assert go(log)["g/t/0"].client_id == "a", "without append times, the frame's own time"


@pytest.mark.parametrize("kind", ["ClaimingMessages/1/12/j1/b/g/t/0/9", "ReleaseGroup/0/12/j1/b/g//0/9000"])
def test_go_announcements_and_pauses_change_nothing(kind: str) -> None:
    assert go([kind.encode()]) == {}
    before = [b"Heartbeat/1/10/i1/a/g/t/0/5"]
    assert go([*before, kind.encode()]) == go(before)


def test_go_the_empty_claim_answers_for_one_that_is_not_live() -> None:
    row = go([b"Heartbeat/1/10/i1/a/g/t/0/5"])["g/t/0"]
    assert partition_claim(row, 129) == last_partition_claim(row) == row
    assert partition_claim(row, 130) == UNCLAIMED == last_partition_claim(None) == partition_claim(None, 10)


# -- keys and rows


def test_keys_of_claims_and_pauses_cannot_be_confused_whatever_the_ids() -> None:
    ids = ["", "g", "pause", "0", "7"]
    claim_keys = {
        claim_key(group, topic, partition): (group, topic, partition)
        for group in ids
        for topic in ids
        for partition in (0, 7)
    }
    assert all(parse_claim_key(key) == named for key, named in claim_keys.items())
    assert not claim_keys.keys() & {pause_key(group) for group in ids}
    assert not any(key.startswith(PAUSE_PREFIX) for key in claim_keys)


def test_a_claim_lives_where_its_topic_is_coordinated_and_a_pause_anywhere() -> None:
    assert route("g/orders/3", 4) == coordination_partition("orders", 4)
    assert route(pause_key("g"), 4) is None


@pytest.mark.parametrize(
    "row",
    [
        Claim("c", "i", 1, 100, None, None, None, 100),
        Claim(
            "c",
            "i",
            9,
            None,
            100,
            0,
            None,
            -(2**63),
            ("a", "b"),
            claim_rows.Anomaly(3, AnomalyKind.LATE_RELEASE, 99, "z", "y"),
        ),
        Claim("", "", 2**62, 2**53, None, 2**63 - 1, 2**63 - 1, 2**63 - 1),
        Pause(2**63 - 1, 0, "admin", "x"),
    ],
    ids=str,
)
def test_rows_survive_the_store_and_take_few_bytes(row: GuardedRow) -> None:
    codec = RowCodec[GuardedRow](GuardedRow)
    assert codec.decode(codec.encode(row)) == row
    with pytest.raises(AttributeError):
        row.client_id = "other"  # type: ignore[misc]
    assert len(codec.encode(row)) < 100
    compat = CompatClaim("i", "c", "g", -(2**63), 2**63 - 1, -1)
    assert (
        RowCodec[CompatClaim](CompatClaim).decode(RowCodec[CompatClaim](CompatClaim).encode(compat)) == compat
    )
    assert msgspec.structs.asdict(UNCLAIMED).keys() == msgspec.structs.asdict(compat).keys()
