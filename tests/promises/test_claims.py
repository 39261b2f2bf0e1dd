"""A claimed partition has one owner, although owners freeze, and at most once delivers nothing twice."""

from __future__ import annotations

from tests.clients.claims.test_consumer_faults import (
    children,
    ground,
    test_a_frozen_owner_hands_out_nothing_after_its_thaw,
    test_kills_at_any_moment_deliver_nothing_twice_at_most_once,
)

__all__ = [
    "children",
    "ground",
    "test_a_frozen_owner_hands_out_nothing_after_its_thaw",
    "test_kills_at_any_moment_deliver_nothing_twice_at_most_once",
]
