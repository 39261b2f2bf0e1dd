"""The rationalizer: the coordination topic folded into tables of claims. Declared like any user's processors."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.config import Settings
from holdfast.core import claims, frames
from holdfast.core.processor import Processor

CLAIMS, CLAIMS_COMPAT = "claims", "claims-compat"


def processors(settings: Settings) -> list[Processor[Any, Any]]:
    """Return the built-in processors: the guarded view of the claims, and the Go library's view beside it when asked for."""
    fold: Any = claims.fold_guarded
    if settings.claim_stale_after_s != frames.STALE_AFTER_S:
        fold = partial(claims.fold_guarded, stale_after_s=settings.claim_stale_after_s)
    guarded = Processor(
        name=CLAIMS,
        source=settings.coordination_topic,
        decode=frames.decode,
        fold=fold,
        row=claims.GuardedRow,
        route=claims.route,
    )
    if not settings.compat_view:
        return [guarded]
    compat = Processor(
        name=CLAIMS_COMPAT,
        source=settings.coordination_topic,
        decode=frames.decode,
        fold=claims.fold_compat,
        row=claims.CompatClaim,
        route=claims.route,
    )
    return [guarded, compat]
