"""A trial of an outbox's tables in a transaction that is rolled back: a row is written as services write it,
read, set aside and deleted as harvesters do it.

So whatever drops or changes a statement shows: triggers, rules, row security, character sets, a user without
a right. Nothing stays but a gap in the numbers; what triggers do outside the database stays too.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator
from typing import Any, Final

from holdfast.clock import Clock, system_clock
from holdfast.errors import OutboxDatabaseError, OutboxDroppedError, OutboxError
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow, identity_of
from holdfast.outbox.writer.outbox_writer import OutboxWriter
from holdfast.outbox.writer.records import OutboxRecord

FAR_MS: Final = 15 * 60 * 1000
TEXT: Final = 'it\'s \\ \\\\n "quoted" %s é € 😀'
ATTEMPTS: Final = 7
TRIAL_TOPIC: Final = "holdfast-check-"
LOOKED_ABOVE: Final = 1_000
"""The number of rows searched for the one that a DELETE wrote again: services write at the same time."""


class _Undone(Exception):
    """Ends the transaction of a trial."""


def trial_findings(rows: OutboxRows, clock: Clock = system_clock) -> tuple[list[str], list[str]]:
    """Return the problems that a trial shows, and what could not be tried."""
    problems: list[str] = []
    notes: list[str] = []
    try:
        with rows.database.transaction():
            row = _written(rows, problems, notes)
            if row is not None:
                problems += _differences(rows, row, clock)
            else:
                row = next(iter(rows.take(1, hold_keys=False)), None)
            if row is None:
                notes.append("no row waits and none could be written, so deleting was not tried")
            else:
                problems += _deleted(rows, row)
            raise _Undone
    except _Undone:
        pass
    except OutboxDatabaseError as error:
        problems.append(f"a row that is written and deleted as harvesters do it is refused: {error}")
    if not problems:  # the other tables of the outbox cannot be tried without it
        problems += _set_aside(rows)
    return problems, notes


def _record(rows: OutboxRows, topic: str) -> OutboxRecord:
    prefix = getattr(rows.layout, "topic_prefix", "")
    match rows.layout.name:
        case "holdfast":
            return OutboxRecord(
                topic=topic,
                key=TEXT.encode(),
                value=bytes(range(256)),
                headers=[("h", TEXT.encode()), ("h", None)],
                partition=3,
                timestamp_ms=1_700_000_000_000,
            )
        case "goharvest":
            return OutboxRecord(topic=topic, key=TEXT, value=TEXT, headers=[("h", TEXT), ("h", "")])
        case _:
            return OutboxRecord(topic=f"{prefix}{topic}", key=TEXT, value=json.dumps({"text": TEXT}))


def _written(rows: OutboxRows, problems: list[str], notes: list[str]) -> OutboxRow | None:
    """Write a row and return it as it is read; None where that cannot be."""
    topic = f"{TRIAL_TOPIC}{secrets.token_hex(8)}"
    database, table = rows.database, rows.tables.outbox
    record = _record(rows, topic)
    database.run("SAVEPOINT holdfast_written").close()
    try:
        writer = OutboxWriter(table=table.fullname, layout=rows.layout, notify=False)
        writer.write_many(database.connection(), [record])
    except OutboxDroppedError:
        has_arrived = bool(_numbers(rows, topic))
        database.run("ROLLBACK TO SAVEPOINT holdfast_written").close()
        problems.append(_rerouted(table.fullname) if has_arrived else _dropped(table.fullname))
        return None
    except (OutboxError, database.dialect.loaded_dbapi.Error) as error:
        database.run("ROLLBACK TO SAVEPOINT holdfast_written").close()
        words = " ".join(str(error).split())
        notes.append(f"this user may not, or cannot, write to {table.fullname}: {words}")
        return None
    found = _numbers(rows, topic)
    if len(found) != 1:
        problems.append(
            f"of a row written to {table.fullname} {len(found)} can be read again: a trigger, a rule or row"
            " security changes or hides it"
        )
        return None
    return next(iter(rows.find(found)), None)


def _numbers(rows: OutboxRows, topic: str) -> list[int]:
    """Return the numbers of the rows of *topic* that can be read."""
    database = rows.database
    order = database.dialect.identifier_preparer.quote(rows.layout.order)
    column = database.dialect.identifier_preparer.quote(rows.layout.topic)
    mark = ":topic" if database.name == "sqlite" else "%(topic)s"
    found = database.rows(
        f"SELECT {order} FROM {database.quoted(rows.tables.outbox)} WHERE {column} = {mark}", {"topic": topic}
    )
    return [int(each[0]) for each in found]


def _dropped(table: str) -> str:
    return f"a row written to {table} is dropped without an error: by a trigger, a rule or row security"


def _rerouted(table: str) -> str:
    return (
        f"a row written to {table} arrives, but the statement reports that it stored none: a trigger or rule"
        " puts it into another table (partitions by inheritance). OutboxWriter cannot tell that from a row"
        " that is lost, and refuses it. Declare the partitions (PARTITION BY), then Postgres itself puts rows"
        " where they belong"
    )


def _differences(rows: OutboxRows, row: OutboxRow, clock: Clock) -> Iterator[str]:
    """Yield the differences from the row as it was written."""
    record = _record(rows, row.topic.removeprefix(getattr(rows.layout, "topic_prefix", "")))
    wanted_key = record.key.encode() if isinstance(record.key, str) else record.key
    wanted_value = record.value.encode() if isinstance(record.value, str) else record.value
    table = rows.tables.outbox.fullname
    if row.flaw is not None:
        yield f"a row written to {table} cannot be published: {row.flaw}"
        return
    changed = [
        name
        for name, same in (
            ("key", row.key == wanted_key),
            ("value", row.value == wanted_value or _same_json(rows, row.value, wanted_value)),
            ("headers", rows.layout.name == "debezium" or row.headers == _headers(record)),
            ("partition", row.partition == record.partition),
            ("time stamp", row.timestamp_ms == record.timestamp_ms),
        )
        if not same
    ]
    if changed:
        yield (
            f"a row written to {table} is stored with another {' and '.join(changed)}: a trigger, or the"
            " character set of the column or of the connection, changes it"
        )
    if row.created_ms is not None and abs(row.created_ms - clock.now_ms()) > FAR_MS:
        yield (
            f"the time at which a row was written to {table} is"
            f" {abs(row.created_ms - clock.now_ms()) // 1000} s off this machine's: a time zone, or a clock"
        )


def _headers(record: OutboxRecord) -> list[tuple[str, bytes | None]]:
    given: Any = record.headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in given]


def _same_json(rows: OutboxRows, found: bytes | None, wanted: bytes | None) -> bool:
    if rows.layout.name != "debezium" or found is None or wanted is None:
        return False
    try:
        return bool(json.loads(found) == json.loads(wanted))
    except ValueError:
        return False


def _deleted(rows: OutboxRows, row: OutboxRow) -> Iterator[str]:
    """Delete *row* as a harvester does; yield the faults of that."""
    table = rows.tables.outbox.fullname
    if "leader_id" in rows.tables.outbox.c:
        yield from _marked(rows, row)
    highest = rows.highest()
    count = rows.delete([row])
    if rows.find([row.id]):
        yield (
            f"a row deleted from {table} is still there, and the database reported {count} row(s) deleted and"
            " no error: a trigger, a rule or row security undoes it, and harvesters stop at the first row"
        )
    elif again := [each.id for each in rows.above(highest, LOOKED_ABOVE) if _is_again(each, row)]:
        yield (
            f"a row deleted from {table} comes back as row {again[0]}: a trigger writes what is deleted to"
            " the table again, and it would be published again and again"
        )


def _is_again(found: OutboxRow, row: OutboxRow) -> bool:
    """Return whether *found* is *row*, written once more; the topic of a trial's own row has no other."""
    own = TRIAL_TOPIC in row.topic and found.topic == row.topic
    return own or identity_of(found) == identity_of(row)


def _marked(rows: OutboxRows, row: OutboxRow) -> Iterator[str]:
    """Mark *row* as strategy mark does; yield the faults of that."""
    database, mine = rows.database, str(uuid.uuid4())
    names = {"name": database.quoted(rows.tables.outbox), "id": row.id, "mine": mine}
    database.count("UPDATE {name} SET leader_id = '{mine}' WHERE id = {id}".format(**names))
    if [mark.lower() for _, mark in rows.marks([row.id])] != [mine]:
        yield (
            f"a mark written to {rows.tables.outbox.fullname}.leader_id is not stored, and the database"
            " reported no error: a trigger, a rule or row security drops it; strategy mark cannot work"
        )


def _set_aside(rows: OutboxRows) -> list[str]:
    """Try the other tables of the outbox, each change undone."""
    try:
        with rows.database.transaction():
            row = _written(rows, [], []) or next(iter(rows.take(1, hold_keys=False)), None)
            if row is not None:
                rows.try_beside(row)
            raise _Undone
    except _Undone:
        return []
    except (OutboxDroppedError, OutboxDatabaseError) as error:
        return [str(error)]
