"""`holdfast outbox`: its tables, its waiting rows, and its quarantine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.options.executing import ExecuteOption
from holdfast.cli.outbox import harvest
from holdfast.cli.output import Output, OutputRow, note, show, utc_ms
from holdfast.clock import system_clock
from holdfast.errors import ConfigError, OutboxDatabaseError, OutboxError, OutboxSchemaError
from holdfast.outbox.harvest.table.row_types import QuarantinedRow
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import LAYOUTS
from holdfast.outbox.schema.server_checks import server_findings
from holdfast.outbox.schema.session import connected
from holdfast.outbox.schema.tables import (
    DIALECTS,
    database_url,
    outbox_tables,
    problems,
)

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
quarantine = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="List, retry and discard rows that Kafka rejected.",
)
app.add_typer(quarantine, name="quarantine")
harvest.register(app)

LIMIT_SHOWN = 200
LIMIT_LISTED = 10_000


class LayoutName(StrEnum):
    """The choices of `--layout`."""

    HOLDFAST = "holdfast"
    GOHARVEST = "goharvest"
    DEBEZIUM = "debezium"


assert {each.value for each in LayoutName} == set(LAYOUTS)

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=(
            "postgresql://user:password@host/name, mysql://…, sqlite:///file; default: setting"
            " outbox_database (HOLDFAST_OUTBOX_DATABASE)."
        ),
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table", help="The outbox table, schema.table to name its schema; default: setting outbox_table."
    ),
]
Chosen = Annotated[
    LayoutName | None,
    typer.Option("--layout", help="The layout of the table's columns; default: setting outbox_layout."),
]


@dataclass(frozen=True, slots=True)
class _Outbox:
    """The outbox that a command is about: what its options say, else the settings."""

    database: str | None
    table: str
    layout: str

    @property
    def url(self) -> str:
        if not self.database:
            raise ConfigError(
                "name the database with --database URL or in HOLDFAST_OUTBOX_DATABASE (setting"
                " outbox_database), like postgresql://user:password@host/name"
            )
        return self.database


def _outbox(
    context: typer.Context, database: str | None, table: str | None, layout: LayoutName | None
) -> _Outbox:
    settings = settings_of(context)
    return _Outbox(
        database=settings.outbox_database if database is None else database,
        table=settings.outbox_table if table is None else table,
        layout=settings.outbox_layout if layout is None else layout.value,
    )


@contextlib.contextmanager
def _rows(outbox: _Outbox) -> Iterator[OutboxRows]:
    with OutboxRows(outbox.url, table=outbox.table, layout=outbox.layout) as rows:
        try:
            yield rows
        except OutboxDatabaseError as error:
            if found := _problems(outbox):
                raise OutboxSchemaError(_advice(found, outbox)) from error
            raise


def _problems(outbox: _Outbox) -> list[str]:
    read = database_url(outbox.url)
    tables = outbox_tables(outbox.layout, outbox.table, dialect=read.get_backend_name())
    with connected(read) as connection:
        return problems(connection, tables)


def _findings(outbox: _Outbox) -> tuple[list[str], list[str]]:
    """Return the problems and notes of an outbox whose tables are as they must be: its server's settings,
    other objects on its tables, and the result of a trial.
    """
    read = database_url(outbox.url)
    with connected(read) as connection:
        found, notes = server_findings(
            connection, outbox_tables(outbox.layout, outbox.table, dialect=read.get_backend_name())
        )
    if not found:
        from holdfast.outbox.trial import trial_findings  # the writer's packages, which no harvester needs

        with OutboxRows(outbox.url, table=outbox.table, layout=outbox.layout) as rows:
            problems, more = trial_findings(rows)
        found, notes = found + problems, notes + more
    return found, notes


def _advice(found: Sequence[str], outbox: _Outbox) -> str:
    return (
        f"{'; '.join(found)}. `holdfast outbox init --layout {outbox.layout} --table {outbox.table}` makes"
        " what is missing"
    )


@app.command(
    help=(
        "Create the missing tables of the outbox: its own, unless goharvest or Debezium made it, and those"
        " beside it. --sql only prints the statements; --remove drops what this command created."
    )
)
def init(
    context: typer.Context,
    database: DatabaseOption = None,
    table: TableName = None,
    layout: Chosen = None,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the statements; change nothing.")] = False,
    dialect: Annotated[
        str | None, typer.Option(help=f"For --sql without a database: {', '.join(DIALECTS)}.")
    ] = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove the tables; refused while rows wait or are in quarantine."),
    ] = False,
) -> None:
    if dialect is not None and not sql:
        raise ConfigError("--dialect goes with --sql; otherwise the database says what it is")
    from holdfast.outbox.schema import migrate

    outbox = _outbox(context, database, table, layout)
    if sql:
        kind = dialect or database_url(outbox.url).get_backend_name()
        print(migrate.sql(kind, layout=outbox.layout, table=outbox.table, down=remove), end="")
        return
    (migrate.downgrade if remove else migrate.upgrade)(outbox.url, layout=outbox.layout, table=outbox.table)
    note(f"the outbox {outbox.table} is {'removed' if remove else 'ready'} (layout {outbox.layout})")


@app.command(
    help=(
        "Check the outbox against its layout, its server's settings, and by a trial: a row is written, read"
        " and deleted in a transaction that is rolled back. Exit code 1 when it would not work."
    )
)
def check(
    context: typer.Context, database: DatabaseOption = None, table: TableName = None, layout: Chosen = None
) -> None:
    outbox = _outbox(context, database, table, layout)
    found, notes, lacks = _problems(outbox), list[str](), True
    if not found:
        found, notes = _findings(outbox)
        lacks = False
    for each in notes:
        note(each)
    (
        show([{"problem": each} for each in found], ("problem",), output_of(context))
        if found or output_of(context) is Output.JSON
        else None
    )
    if found:
        cure = (
            f"; `holdfast outbox init --layout {outbox.layout} --table {outbox.table}` makes what is missing"
        )
        raise OutboxSchemaError(
            f"the outbox {outbox.table} has {len(found)} problem(s){cure if lacks else ''}"
        )
    note(f"the outbox {outbox.table} is as the layout {outbox.layout} must be")


@app.command(
    help=(
        "Show how many rows wait, the age of the first, how many fail or are in quarantine, and the leader of"
        " each shard."
    )
)
def status(
    context: typer.Context, database: DatabaseOption = None, table: TableName = None, layout: Chosen = None
) -> None:
    outbox = _outbox(context, database, table, layout)
    with _rows(outbox) as rows:
        found = rows.status()
    now_ms = system_clock.now_ms()
    age_ms = None if found.oldest_created_ms is None else max(0, now_ms - found.oldest_created_ms)
    record: OutputRow = {
        "table": outbox.table,
        "layout": outbox.layout,
        "waiting": found.waiting,
        "oldest_id": found.oldest_id,
        "oldest_age_ms": age_ms,
        "failing": found.failing,
        "quarantined": found.quarantined,
        "leaders": {
            str(each.shard): {"leader": each.leader, "epoch": each.epoch, "updated_at_ms": each.updated_ms}
            for each in found.leases
        },
        "stopped": {str(each.shard): each.why for each in found.stops},
    }
    for stop in found.stops:
        note(f"shard {stop.shard} is stopped since {utc_ms(stop.at_ms)}: {stop.why}")
    if found.numbers:
        note(f"the numbers of the rows of {outbox.table} {found.numbers}")
    if output_of(context) is Output.JSON:
        if found.numbers:
            record = {**record, "numbers": found.numbers}
        show([record], tuple(record), Output.JSON)
        return
    leaders = ", ".join(f"{each.shard}: {each.leader} (epoch {each.epoch})" for each in found.leases)
    stopped = ", ".join(str(each.shard) for each in found.stops)
    show([{**record, "leaders": leaders or None, "stopped": stopped or None}], tuple(record), Output.TABLE)


@quarantine.command("list", help="List the rows in quarantine, oldest first, with the reason.")
def list_rows(
    context: typer.Context,
    database: DatabaseOption = None,
    table: TableName = None,
    layout: Chosen = None,
    limit: Annotated[int, typer.Option(min=1, max=LIMIT_LISTED, help="At most this many.")] = 1_000,
) -> None:
    outbox = _outbox(context, database, table, layout)
    with _rows(outbox) as rows:
        found = rows.quarantined(limit)
    show(
        [_record(each) for each in found],
        ("id", "topic", "key", "attempts", "size_bytes", "quarantined_at", "reason"),
        output_of(context),
    )
    if not found:
        note(f"no quarantined rows in {outbox.table}")
    elif len(found) == limit:
        note(f"only the first {limit} are shown; see --limit")


@quarantine.command("retry", help="Move rows back to the end of the outbox. Fix the cause first.")
def retry_rows(
    context: typer.Context,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All rows of the quarantine.")] = False,
    database: DatabaseOption = None,
    table: TableName = None,
    layout: Chosen = None,
) -> None:
    outbox = _outbox(context, database, table, layout)
    with _rows(outbox) as rows:
        moved = rows.retry(_named(rows, ids, everything))
    show([{"action": "put back", "rows": moved}], ("action", "rows"), output_of(context))


@quarantine.command(
    "discard", help="Delete rows of the quarantine for good. Without --execute, only print how many."
)
def discard_rows(
    context: typer.Context,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All rows of the quarantine.")] = False,
    execute: ExecuteOption = False,
    database: DatabaseOption = None,
    table: TableName = None,
    layout: Chosen = None,
) -> None:
    outbox = _outbox(context, database, table, layout)
    with _rows(outbox) as rows:
        named = _named(rows, ids, everything)
        count = rows.discard(named) if execute else len(named)
    show(
        [{"action": "discarded" if execute else "would discard", "rows": count}],
        ("action", "rows"),
        output_of(context),
    )
    if not execute:
        note("nothing was deleted; add --execute to delete them")


def _named(rows: OutboxRows, ids: Sequence[int] | None, everything: bool) -> list[int]:
    """Return the ids that are meant; OutboxError when one of them is not set aside."""
    if everything == bool(ids):
        raise ConfigError(
            "name rows by their ids, or all of them with --all; `holdfast outbox quarantine list` shows them"
        )
    found: list[int] = []
    after: int | None = None
    while page := rows.quarantined(LIMIT_LISTED, after_id=after, ids=ids):
        after = page[-1].row.id
        found += [each.row.id for each in page]
    if missing := sorted(set(ids or ()) - set(found)):
        raise OutboxError(
            f"not set aside: {', '.join(map(str, missing))}; `holdfast outbox quarantine list` shows what is"
        )
    return found


def _record(each: QuarantinedRow) -> OutputRow:
    row = each.row
    return {
        "id": row.id,
        "topic": row.topic,
        "key": _text(row.key),
        "attempts": row.attempts,
        "size_bytes": len(row.value or b""),
        "quarantined_at_ms": each.quarantined_ms,
        "quarantined_at": utc_ms(each.quarantined_ms),
        "reason": each.reason,
    }


def _text(value: bytes | None) -> str | None:
    """Return a key as people can read it.

    >>> _text(b"order-1"), _text(b"\\xff\\x00"), _text(None)
    ('order-1', '0xff00', None)
    """
    if value is None:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        shown = value[:LIMIT_SHOWN].decode()
        if shown.isprintable():
            return shown
    return f"0x{value[:LIMIT_SHOWN].hex()}"
