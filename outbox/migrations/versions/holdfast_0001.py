"""Layout holdfast: the outbox, and its additional tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Identity, Integer, SmallInteger, String

from holdfast.outbox.schema.columns import big_id, blob, now_ms
from holdfast.outbox.schema.steps import (
    create_own,
    create_table,
    drop_own,
    drop_table,
    refuse_loss,
    table_name,
    tune,
)

revision = "holdfast_0001"
down_revision = None
branch_labels = ("holdfast",)
depends_on = None


def upgrade() -> None:
    """Make those of the four tables that lack."""
    fields: list[Column[Any]] = [
        Column("bucket", SmallInteger(), nullable=False),
        Column("created_ms", BigInteger(), nullable=False, server_default=now_ms()),
        Column("topic", String(249), nullable=False),
        Column("key", blob),
        Column("value", blob),
        Column("headers", blob),
        Column("partition", Integer()),
        Column("timestamp_ms", BigInteger()),
    ]
    create_table(
        table_name(), [Column("id", big_id, Identity(always=False), primary_key=True), *fields], numbered=True
    )
    tune(table_name())
    create_own("id", fields, topic="topic", key="key")


def downgrade() -> None:
    """Drop them all; rows that wait are not dropped."""
    refuse_loss()
    drop_own()
    drop_table(table_name())
