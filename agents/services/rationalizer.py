"""The rationalizer: the coordination topic folded into tables of claims, and the talk of balanced groups into
a table of theirs.

Declared like any user's processors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.config import Settings
from holdfast.core.claims import frames
from holdfast.core.claims.claim_keys import route
from holdfast.core.claims.claim_rows import GuardedRow
from holdfast.core.claims.compat import CompatClaim, fold_compat
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.groups import membership

CLAIMS, CLAIMS_COMPAT, GROUPS = "claims", "claims-compat", "groups"


class GuardedView(Processor[Any, GuardedRow]):
    """The guarded view of the claims. Its rows are made of decoded frames, whose types were checked."""

    __slots__ = ()

    @property
    def exact(self) -> bool:
        return True


def processors(settings: Settings) -> list[Processor[Any, Any]]:
    """Return the guarded view of the claims and, when asked for, the Go library's view as well and the
    balanced groups.
    """
    fold: Any = fold_guarded
    if settings.claim_stale_after_s != frames.STALE_AFTER_S:
        fold = partial(fold_guarded, stale_after_s=settings.claim_stale_after_s)
    guarded = GuardedView(
        name=CLAIMS,
        source=settings.coordination_topic,
        decode=frames.decode,
        fold=fold,
        row=GuardedRow,
        route=route,
    )
    found: list[Processor[Any, Any]] = [guarded]
    if settings.compat_view:
        compat = Processor(
            name=CLAIMS_COMPAT,
            source=settings.coordination_topic,
            decode=frames.decode,
            fold=fold_compat,
            row=CompatClaim,
            route=route,
        )
        found.append(compat)
    if settings.groups:
        found.append(balanced(settings.groups_topic))
    return found


def balanced(topic: str) -> Processor[membership.NumberedAnnouncement, membership.GroupsRow]:
    """Return the table of balanced groups: members, generation and target of each, as every member
    computes them for itself.
    """
    return Processor(
        name=GROUPS,
        source=topic,
        decode=membership.decode_numbered,
        inputs=("value", "offset"),
        fold=membership.fold_groups,
        row=membership.GroupsRow,
        route=membership.route,
    )
