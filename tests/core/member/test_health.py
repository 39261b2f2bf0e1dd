"""Velocity and verdict, by the Go library's own cases (testdata/velocity.json, testdata/health.json)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.member.claim import velocity as health
from holdfast.core.member.claim.velocity import ClaimVerdict, Health, Sample, velocity
from tests.support.places import TESTDATA

VELOCITIES = json.loads((TESTDATA / "velocity.json").read_text())["vectors"]
CASES: list[dict[str, Any]] = json.loads((TESTDATA / "health.json").read_text())["cases"]


@pytest.mark.parametrize("vector", VELOCITIES, ids=lambda vector: str(vector["ring"]))
def test_velocity_is_the_go_librarys(vector: dict[str, Any]) -> None:
    """M8"""
    assert velocity(vector["ring"]) == vector["velocity"]


def check(case: dict[str, Any]) -> tuple[str, int]:
    """Return verdict (as the file words it) and cycles of one case."""
    state = Health()
    state.current_ring, state.latest_ring = list(case["current_ring"]), list(case["latest_ring"])
    state.cycles_behind = case["cycles_behind"]
    sample = Sample(
        terminated=case["terminated"],
        heartbeat_age_s=case["heartbeat_age_s"],
        group_paused=case["group_paused"],
        idle_s=case["idle_s"],
        release_if_behind=case["release_claims_if_behind"],
        whole_topic=case["claim_entire_topic"],
        current=case["current"],
        latest=case["latest"],
    )
    verdict = state.check(sample, expired_after_s=60, idle_after_s=60)
    worded = verdict.value if verdict in (ClaimVerdict.NONE, ClaimVerdict.KEEP) else "release"
    return worded, state.cycles_behind


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_verdict_is_the_go_librarys(case: dict[str, Any]) -> None:
    """M8, M9"""
    assert check(case) == (case["verdict"], case["cycles_after"])


def test_three_checks_with_a_lag_release_and_two_do_not() -> None:
    """M8: Current 22, Latest 32, the consumer at a velocity of 0.1, the partition at 10: ok, ok, release."""
    state = Health()
    state.current_ring, state.latest_ring = [21] * 9 + [22], [1, 11, 21, 32] + [0] * 6
    sample = Sample(
        terminated=False,
        heartbeat_age_s=0,
        group_paused=False,
        idle_s=0,
        release_if_behind=True,
        whole_topic=False,
        current=22,
        latest=32,
    )
    verdicts = [state.check(sample, expired_after_s=60, idle_after_s=60) for _ in range(3)]
    assert verdicts == [ClaimVerdict.KEEP, ClaimVerdict.KEEP, ClaimVerdict.BEHIND]


def test_the_ring_keeps_the_last_ten_samples() -> None:
    state = Health()
    for sample in range(1, 13):
        state.note(sample, 10 * sample)
    assert sorted(state.current_ring) == list(range(3, 13))
    assert sorted(state.latest_ring) == list(range(30, 130, 10))


def _always_slow(ring: list[int]) -> float:
    return 0.0


def _per_sample(ring: list[int]) -> float:
    filled = [sample for sample in ring if sample > 0]
    return (max(filled) - min(filled)) / len(filled) if filled else 0.0


@pytest.mark.parametrize("fault", [_always_slow, _per_sample])
def test_another_velocity_is_found_out(
    fault: Callable[[list[int]], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "velocity", fault)
    assert any(check(case) != (case["verdict"], case["cycles_after"]) for case in CASES)


@pytest.mark.parametrize(
    ("name", "value"), [("LIMIT_CYCLES_BEHIND", 2), ("LIMIT_CYCLES_BEHIND", 4), ("PREDICTED_CYCLES", 3)]
)
def test_another_constant_is_found_out(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, name, value)
    assert any(check(case) != (case["verdict"], case["cycles_after"]) for case in CASES)
