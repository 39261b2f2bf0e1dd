"""The script that alembic runs: the outbox's migrations, on the connection of
`holdfast.outbox.schema.migrate` or the database named on the command line.
"""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy.engine import Connection

from holdfast.outbox.schema.migrate import alone, version_table
from holdfast.outbox.schema.session import COMMAND_LIMITS, connected
from holdfast.outbox.schema.tables import database_url

attributes = context.config.attributes
given = context.get_x_argument(as_dictionary=True)
attributes.setdefault("table", given.get("table", "outbox"))


def run(**where: Any) -> None:
    """Run the requested migrations, with a version table of this outbox alone, so that one database may hold
    several.
    """
    name, schema = version_table(attributes["table"])
    context.configure(
        version_table=name, version_table_schema=schema, transaction_per_migration=True, **where
    )
    with context.begin_transaction():
        context.run_migrations()


def online(connection: Connection) -> None:
    """Run on *connection*."""
    run(connection=connection)


if context.is_offline_mode():
    run(
        dialect_name=attributes.get("dialect") or database_url(given["database"]).get_backend_name(),
        literal_binds=True,
    )
elif "connection" in attributes:
    online(attributes["connection"])
else:
    with (
        connected(given["database"], may_make_file=True) as opened,
        alone(opened, attributes["table"], COMMAND_LIMITS.statement_s),
    ):
        online(opened)
