"""Layout goharvest: goharvest's own table if it does not exist yet, and holdfast's additional tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, String

from holdfast.outbox.schema.columns import big_id, instant, texts, uuid_text
from holdfast.outbox.schema.steps import create_own, create_table, drop_own, refuse_loss, table_name

revision = "goharvest_0001"
down_revision = None
branch_labels = ("goharvest",)
depends_on = None


def upgrade() -> None:
    """Make the missing tables; a table that goharvest uses already stays as it is."""
    fields: list[Column[Any]] = [
        Column("create_time", instant, nullable=False),
        Column("kafka_topic", String(249), nullable=False),
        Column("kafka_key", String(100), nullable=False),
        Column("kafka_value", String(10_000)),
        Column("kafka_header_keys", texts, nullable=False),
        Column("kafka_header_values", texts, nullable=False),
        Column("leader_id", uuid_text),
    ]
    made = create_table(
        table_name(),
        [Column("id", big_id, primary_key=True, autoincrement=True), *fields],
        numbered=True,
        unless_there=True,
    )
    create_own("id", fields, topic="kafka_topic", key="kafka_key", found=not made)


def downgrade() -> None:
    """Drop holdfast's additional tables; the outbox itself may be goharvest's, and stays."""
    refuse_loss(outbox=False)
    drop_own()
