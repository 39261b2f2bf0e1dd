"""Checks that a harvester can read its outbox, before it takes part in the election, where it might lead a
shard that another could publish.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from sqlalchemy import inspect

from holdfast.errors import OutboxDatabaseError, OutboxSchemaError
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.session import connected
from holdfast.outbox.schema.tables import NO_FILE, lacks_file, problems
from holdfast.outbox.settings import HarvestSettings

logger = logging.getLogger(__name__)


def refuse_unreadable(rows: OutboxRows, outbox: str) -> None:
    """Return when *rows*, of the outbox of that name, can be read as a leader reads them, or when the
    database does not answer now: leaders wait for that.

    OutboxSchemaError when tables are missing or of another layout, OutboxDatabaseError when the file is.
    """
    database = rows.database
    if lacks_file(database.url):
        raise OutboxDatabaseError(f"cannot connect to {database.place}: {NO_FILE}")
    why: OutboxDatabaseError | None = None
    try:
        rows.look()
    except OutboxDatabaseError as error:
        why = error
    found, is_whole = ([], True) if why is not None and why.is_lost else _problems(rows)
    table, layout = rows.tables.outbox.fullname, rows.layout.name
    said = f"the outbox {table} is not as the layout {layout} must be: {'; '.join(found)}"
    if (why is not None and found) or not is_whole:
        raise OutboxSchemaError(
            f"{said}; `holdfast outbox init --layout {layout} --table {table}` makes what is missing. "
            "Or name the layout that it has (--layout, setting outbox_layout), or the table "
            "(--table, outbox_table)"
        ) from why
    if found:
        logger.warning(
            "outbox %(outbox)s: %(problems)s; rows that cannot be read are set aside. "
            "See `holdfast outbox check`",
            {"outbox": outbox, "problems": said},
        )
    if why is not None:
        logger.warning(
            "outbox %(outbox)s: %(reason)s; it takes part in the election all the same, "
            "and a leader tries again",
            {"outbox": outbox, "reason": str(why)},
        )


def warn_of_lost_progress(rows: OutboxRows, settings: HarvestSettings) -> None:
    """Warn where shards had leaders although their progress topic was made only now: their count of epochs
    and sequences begins again. A database that does not answer now has nothing to say.
    """
    with suppress(OutboxDatabaseError):
        led = [lease for lease in map(rows.lease, range(settings.shards)) if lease is not None]
        if led:
            logger.warning(
                "outbox %(outbox)s: %(topic)s was missing and was made, but %(leader)s led shard %(shard)d "
                "before: epochs and sequences begin again, and readers that drop duplicates drop what comes. "
                "If the topic was deleted, stop all harvesters and start them under another name. Nothing is "
                "wrong where the name or the cluster is new, or the strategy was mark",
                {
                    "outbox": settings.name,
                    "topic": settings.progress_topic,
                    "leader": led[0].leader,
                    "shard": led[0].shard,
                },
            )


def _problems(rows: OutboxRows) -> tuple[list[str], bool]:
    """Return the faults of the tables, and whether all four are there; no faults if they cannot be looked
    at.
    """
    try:
        with connected(rows.database.url) as connection:
            found, has_table = problems(connection, rows.tables), inspect(connection).has_table
            return found, all(has_table(each.name, schema=each.schema) for each in rows.tables.every)
    except OutboxDatabaseError:
        return [], True  # the error that keeps the rows from being read was reported before
