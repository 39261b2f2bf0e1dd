"""A table is served while its workers are replaced by those of its next version."""

from __future__ import annotations

from tests.agents.test_upgrades import (
    fleet,
    test_a_table_is_served_while_its_workers_are_rolled_to_the_next_version,
)

__all__ = ["fleet", "test_a_table_is_served_while_its_workers_are_rolled_to_the_next_version"]
