"""`holdfast explain PROCESSOR KEY [--at]`: a row as it is, or was, and the records that made it so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import typer

from holdfast.cli.lake.engines import EngineName, spark_options
from holdfast.cli.lake.lakes import absolute
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Cell, Output, note, show, show_json

if TYPE_CHECKING:
    from holdfast.pipeline.bronze.extent import Until
    from holdfast.pipeline.histories.as_of import FoundRecord, MadeChange, RowsAsOf
    from holdfast.pipeline.run import Source

COLUMNS = ("partition", "offset", "time", "before", "after", "record", "explain")
OFFSET_DIGITS = 9
"""A number of more digits is a time in ms."""


class AskedRow(NamedTuple):
    """The options that identify a row."""

    table: str
    key: str
    at: str | None
    changes: int
    engine: EngineName
    source: Source
    lake: str | None
    allow_holes: bool


def explain_row(context: typer.Context, asked: AskedRow) -> None:
    from holdfast.pipeline.histories.as_of import AsOfOptions, row_as_of
    from holdfast.pipeline.replay import ReplayOptions

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    name, _, table = asked.table.partition(".")
    options = ReplayOptions(
        engine=asked.engine.value,
        source=asked.source,
        lake=None if asked.lake is None else absolute(asked.lake),
        allow_holes=asked.allow_holes,
        spark=spark_options(chosen.settings(), None, None, None),
    )
    with shown_progress():
        found = row_as_of(
            application.processor(name),
            application.settings,
            asked.key,
            None if asked.at is None else until_of(asked.at),
            AsOfOptions(replay=options, limit=asked.changes),
            table=table,
        )
    _show(found, output_of(context), past=asked.at is not None)


def until_of(text: str) -> Until | int:
    """Return the position that `--at` asks for: a short number is an offset of the one partition."""
    from holdfast.pipeline.bronze.extent import parse_until

    return int(text) if text.isdecimal() and len(text) <= OFFSET_DIGITS else parse_until(text, "--at")


def _show(found: RowsAsOf, output: Output, *, past: bool) -> None:
    told = [_cells(row.partition, each) for row in found.rows for each in row.changes]
    if output is Output.JSON:
        rows: list[Cell] = [
            {"partition": row.partition, "row": row.row, "changes": row.total} for row in found.rows
        ]
        show_json(
            {
                "processor": found.processor,
                "version": found.version,
                "table": found.table or None,
                "key": found.key,
                "engine": found.engine,
                "applied": {str(at): offset for at, offset in found.applied.items()},
                "rows": rows,
                "changes": told,
            }
        )
        return
    show(told, COLUMNS, Output.TABLE)
    for row in found.rows:
        earlier = row.total - len(row.changes)
        note(
            f"partition {row.partition}, after {row.at}: {row.row or 'no row'}"
            + ("" if row.total else "; its version began with it")
            + (f"; {earlier} earlier changes are not shown (--changes)" if earlier else "")
        )
    if not found.rows:
        note(f"there was never a row of {found.key!r}{' by then' if past else ''}")


def _cells(partition: int, each: MadeChange) -> dict[str, Cell]:
    record = each.record
    return {
        "partition": partition,
        "topic": each.topic,
        "offset": each.offset,
        "time": _time(each.at_ms),
        "before": each.before,
        "after": each.after,
        "record": "a tick" if each.topic is None else None if record is None else _text(record),
        "lies_in": None if record is None else record.lies_in,
        "explain": each.command,
    }


def _time(at_ms: int) -> str:
    """Return a time in UTC; as it is, where it is no date.

    >>> _time(1_700_000_000_123), _time(1 << 62)
    ('2023-11-14T22:13:20.123Z', '4611686018427387904')
    """
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def _text(record: FoundRecord) -> str:
    return "no value" if record.value is None else record.value.decode(errors="backslashreplace")
