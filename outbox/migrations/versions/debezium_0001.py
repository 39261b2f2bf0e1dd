"""Layout debezium: the event router's table if it does not exist yet, with a number that orders rows, and the
other tables of the outbox.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import Column, Identity, String

from holdfast.outbox.schema.columns import JsonText, big_id, uuid_text
from holdfast.outbox.schema.steps import (
    add_number,
    create_own,
    create_table,
    drop_number,
    drop_own,
    refuse_loss,
    table_name,
)

revision = "debezium_0001"
down_revision = None
branch_labels = ("debezium",)
depends_on = None


def upgrade() -> None:
    """Make the missing tables and columns; a table that Debezium reads already gets the column holdfast_id,
    which Debezium does not mind.
    """
    by_number = op.get_context().dialect.name != "postgresql"
    number = Column(
        "holdfast_id",
        big_id,
        Identity(always=False),
        nullable=False,
        primary_key=by_number,
        unique=None if by_number else True,
    )
    fields: list[Column[Any]] = [
        Column(
            "id", uuid_text, nullable=False, primary_key=not by_number, unique=True if by_number else None
        ),
        Column("aggregatetype", String(255), nullable=False),
        Column("aggregateid", String(255), nullable=False),
        Column("type", String(255), nullable=False),
        Column("payload", JsonText()),
    ]
    made = create_table(table_name(), [number, *fields], numbered=True, unless_there=True)
    add_number("holdfast_id")  # to one that was there
    create_own("holdfast_id", fields, topic="aggregatetype", key="aggregateid", found=not made)


def downgrade() -> None:
    """Drop the other tables of the outbox and the number; the outbox itself may be Debezium's, and stays."""
    refuse_loss(outbox=False)
    drop_own()
    drop_number("holdfast_id")
