"""The formats of a record in an outbox table: holdfast's own layout, goharvest's, and that of Debezium's
outbox event router.

A layout says which columns a table has, which of them make an `OutboxRow`, and which a written record fills.
Parts common to all of them (quarantine, attempts, leases) are in `tables.py`; the format of a row is no
concern of the harvester.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.errors import ConfigError
from holdfast.outbox.schema.layouts.debezium import DebeziumLayout
from holdfast.outbox.schema.layouts.goharvest import GoharvestLayout
from holdfast.outbox.schema.layouts.holdfast import HoldfastLayout
from holdfast.outbox.schema.layouts.layout import Layout
from holdfast.outbox.schema.layouts.outbox_row import (
    BUCKETS,
    LIMIT_TOPIC,
    Header,
    OutboxRow,
    PreparedRecord,
    bucket_of,
    identity_of,
    marks_of,
)

__all__ = [
    "BUCKETS",
    "LAYOUTS",
    "LIMIT_TOPIC",
    "DebeziumLayout",
    "GoharvestLayout",
    "Header",
    "HoldfastLayout",
    "Layout",
    "OutboxRow",
    "PreparedRecord",
    "bucket_of",
    "identity_of",
    "layout_named",
    "marks_of",
]

LAYOUTS: Final[Mapping[str, Layout]] = {
    each.name: each for each in (HoldfastLayout(), GoharvestLayout(), DebeziumLayout())
}


def layout_named(layout: str | Layout) -> Layout:
    """Return the layout of this name (or the one given); ConfigError when there is none."""
    if isinstance(layout, Layout):
        return layout
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ConfigError(f"there is no outbox layout {layout!r:.200}; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]
