"""The Go library's answers about a claim, from the compat view, for tests that compare the two."""

from __future__ import annotations

from holdfast.core.claims.compat import UNCLAIMED, CompatClaim, _compat_live


def partition_claim(claim: CompatClaim | None, now_s: int) -> CompatClaim:
    """Return the result of `GetPartitionClaim` at *now_s*: the claim, or an empty one when it is not live."""
    return claim if claim is not None and _compat_live(claim, now_s) else UNCLAIMED


def last_partition_claim(claim: CompatClaim | None) -> CompatClaim:
    """Return the result of `GetLastPartitionClaim`: the present or latest claim, live or not."""
    return UNCLAIMED if claim is None else claim


def compat_claimed(claim: CompatClaim | None, now_s: int) -> bool:
    """Return the result of `Claimed` at *now_s*."""
    return partition_claim(claim, now_s).last_heartbeat_s > 0
