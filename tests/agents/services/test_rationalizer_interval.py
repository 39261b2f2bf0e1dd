"""A fleet with another heartbeat interval: the rationalizer's fold and the queries of it use that fleet's
threshold.
"""

from __future__ import annotations

import pickle

import pytest

from holdfast.agents.services.rationalizer import processors
from holdfast.config import Settings
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import ClaimingPartition
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import status
from holdfast.errors import ConfigError


def owner_after(settings: Settings, gap_s: int) -> str:
    """Return the owner of a claim that a made, and b asked for *gap_s* later."""
    (guarded,) = processors(settings)
    rows: dict[str, Claim] = {}
    for client, at_s in (("a", 100), ("b", 100 + gap_s)):
        guarded.fold(rows, ClaimingPartition(at_s, client, client, "g", "t", 0), at_s * 1000)  # type: ignore[arg-type]
    return rows["g/t/0"].client_id


def test_the_rationalizer_frees_a_claim_after_twice_the_interval_set() -> None:
    three = Settings(claim_interval_s=3.0)
    assert [owner_after(three, gap_s) for gap_s in (5, 6)] == ["a", "b"]
    assert [owner_after(Settings(), gap_s) for gap_s in (119, 120)] == ["a", "b"]
    assert processors(Settings())[0].fold is fold_guarded


def test_the_fold_of_another_interval_can_be_sent_to_other_processes() -> None:
    (guarded,) = processors(Settings(claim_interval_s=3.0))
    assert pickle.loads(pickle.dumps(guarded.fold)).keywords == {"stale_after_s": 6}


def test_status_depends_on_the_interval_set() -> None:
    claim = Claim("c", "i", 1, 100, None, 0, None, 100)
    assert [status(claim, 100 + age_s, 6).value for age_s in (2, 3, 5, 6)] == [
        "fresh",
        "unknown",
        "unknown",
        "stale",
    ]


def test_an_interval_that_whole_seconds_cannot_express_is_refused() -> None:
    assert Settings(claim_interval_s=1.5).claim_stale_after_s == 3
    with pytest.raises(ConfigError, match="claim_interval_s"):
        Settings(claim_interval_s=1.3)
