"""`holdfast explain`: record batches as they lie in a log, with producers, sequences, transactions and
control records; a row of a table, and a late record.

A batch that cannot be read is shown by what its header claims, and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption
from holdfast.cli.lake.sources import LakeOption, SourceName, chosen_source
from holdfast.cli.logs.explain_late import AskedLate, explain_late
from holdfast.cli.logs.explain_row import AskedRow, explain_row
from holdfast.cli.options.context import LAST_OFFSET, LAST_PARTITION, output_of, settings_of
from holdfast.cli.output import Cell, Output, note, show, show_json
from holdfast.clients.logs.cells import (
    COLUMNS,
    FIELDS,
    LocatedBatch,
    Transactions,
    batch_cells,
    record_cells,
)
from holdfast.clients.logs.explaining import bare_error, batch_seen, fetch_explanation
from holdfast.core.kafka.record_batch import HEADER_BYTES, decode_header
from holdfast.errors import ConfigError, DecodeError, WireError

__all__ = ["FIELDS", "Transactions", "app", "read_segment"]

LIMIT_BATCHES = 1_000

app = typer.Typer(rich_markup_mode=None, add_completion=False)


# -- a segment file


def read_segment(data: bytes | memoryview, *, first: int = 0, records: bool = True) -> Iterator[LocatedBatch]:
    """Yield the batches of a segment that hold offsets from *first* on. A segment may end in zeros, as
    brokers allocate them ahead.

    Without *records* only control batches bring theirs; the others are read, to see whether they can be, and
    let go.
    """
    at, size = 0, len(data)
    while size - at >= HEADER_BYTES:
        if not any(data[at : at + 17]):
            return  # allocated, not written
        header = decode_header(data, at)
        if header.size_bytes > size - at:
            break
        if header.last_offset >= first or header.is_control:
            yield batch_seen(data, at, header, records=records)
        at += header.size_bytes
    if at < size and any(data[at:]):
        raise WireError(f"a batch is cut short: {size - at} bytes at the end of the file", offset=at)


def _explain_segment(path: Path, first: int, limit: int, records: bool, output: Output) -> None:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                show([], COLUMNS, output)
                note(f"{path} is empty")
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                view = memoryview(mapped)
                try:
                    _show_segment(view, first, limit, records, output)
                finally:
                    view.release()
    except OSError as error:
        raise ConfigError(
            f"--segment {path}: {error.strerror}; name a .log file of a broker's data folder"
        ) from error


def _show_segment(view: memoryview, first: int, limit: int, records: bool, output: Output) -> None:
    """Show a segment in two passes: a transaction's end follows it in the log. Batches before a broken head
    are shown all the same.
    """
    transactions = Transactions()
    found: list[LocatedBatch] = []
    more, broken = False, _markers(view, transactions)
    try:
        for seen in read_segment(view, first=first, records=records):
            if seen.header.last_offset < first:
                continue
            if len(found) == limit:
                more = True
                break
            found.append(seen)
    except WireError:
        pass  # the same error as in the first pass, which is reported below
    _show(found, transactions, records, output)
    if more:
        note(
            f"there are more than {limit} batches: go on with --from {found[-1].header.last_offset + 1}, or"
            " set --limit"
        )
    unreadable = next((seen.error for seen in found if seen.error is not None), None if more else broken)
    if unreadable is not None:
        raise unreadable


def _markers(view: memoryview, transactions: Transactions) -> WireError | None:
    """Take in the markers of a segment; return what ends it before its end."""
    at = 0
    try:
        while len(view) - at >= HEADER_BYTES and any(view[at : at + 17]):
            header = decode_header(view, at)
            if header.is_control and (seen := batch_seen(view, at, header, records=False)).batch is not None:
                transactions.add(seen.batch)
            at += header.size_bytes
    except WireError as error:
        return bare_error(error)
    if at < len(view) and any(view[at:]):
        return WireError(f"a batch is cut short: {len(view) - at} bytes at the end of the file", offset=at)
    return None


def _show(found: Sequence[LocatedBatch], transactions: Transactions, records: bool, output: Output) -> None:
    lines = [batch_cells(seen, transactions) for seen in found]
    if output is Output.JSON:
        if records:
            lines = [{**line, "content": _content(seen)} for line, seen in zip(lines, found, strict=True)]
        show_json(lines)
        return
    show(lines, COLUMNS, output)
    if records:
        print()
        content = [line for seen in found if not seen.header.is_control for line in _content(seen)]
        show(content, ("offset", "time", "sequence", "key", "value", "headers"), output)


def _content(seen: LocatedBatch) -> list[dict[str, Cell]]:
    return [] if seen.batch is None else [record_cells(seen.header, each) for each in seen.batch.records]


# -- an offset of a topic


def _show_explanation(found: dict[str, Cell], output: Output) -> None:
    if output is Output.JSON:
        show_json(found)
        return
    lines: list[dict[str, Cell]] = []
    for name, cell in found.items():
        if isinstance(cell, dict):
            lines += [
                {"name": f"{name}.{inner}".replace("_", "-"), "value": value}
                for inner, value in cell.items()
                if value is not None
            ]
        else:
            lines.append({"name": name.replace("_", "-"), "value": cell})
    show(
        [{"name": line["name"], "value": _one_line(line["value"])} for line in lines],
        ("name", "value"),
        output,
    )


def _one_line(cell: Cell) -> Cell:
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else cell


# -- the command


def _partition(text: str) -> int:
    if not text.isdecimal() or int(text) > LAST_PARTITION:
        raise typer.BadParameter(
            f"{text!r} is not a partition, 0 to {LAST_PARTITION}; for a row of a table write PROCESSOR KEY"
            " alone, with --at for another time",
            param_hint="PARTITION",
        )
    return int(text)


def _late_place(topic: str | None, partition: str | None, offset: int | None) -> tuple[str, int, int]:
    if topic is None or partition is None or offset is None:
        raise ConfigError("with --for, name a record as TOPIC PARTITION OFFSET")
    return topic, _partition(partition), offset


@app.command(
    help=(
        "Show the batches of a segment file (--segment FILE), everything known about one offset (TOPIC"
        " PARTITION OFFSET), or a row of a table and the records that led to it (PROCESSOR KEY, with --at"
        " TIME as it was then). Show which records windows or an interval join took as late, and why"
        " (PROCESSOR --late), or why they took one so or did not (TOPIC PARTITION OFFSET --for PROCESSOR). Of"
        " a batch that cannot be read it shows what the header claims, and why; the"
        " exit code is then 1."
    )
)
def explain(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC|PROCESSOR")] = None,
    place: Annotated[str | None, typer.Argument(metavar="PARTITION|KEY")] = None,
    offset: Annotated[int | None, typer.Argument(metavar="OFFSET", min=0, max=LAST_OFFSET)] = None,
    segment: Annotated[
        Path | None, typer.Option("--segment", metavar="FILE", help="A .log file of a broker's data folder.")
    ] = None,
    first: Annotated[
        int,
        typer.Option(
            "--from", min=0, max=LAST_OFFSET, metavar="OFFSET", help="Of a segment, begin at this offset."
        ),
    ] = 0,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Of a segment, show at most this many batches.")
    ] = LIMIT_BATCHES,
    records: Annotated[bool, typer.Option("--records", help="Of a segment, show the records too.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for a reply, in seconds.")
    ] = 10.0,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME|OFFSET",
            help=(
                "Of a row: as it was at a time (2026-11-25T12:00:00Z), or after an offset of its partition"
                " (17, 0:17; of several sources 0:orders:17). "
                "Default: as it is at the end of the log. A key that is a number needs --at."
            ),
        ),
    ] = None,
    changes: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Of a row, show at most so many changes, the latest; of --late so many records.",
        ),
    ] = 20,
    late: Annotated[
        bool,
        typer.Option("--late", help="Of windows or an interval join, show the records that were late."),
    ] = False,
    processor: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="PROCESSOR",
            help="Of an offset, show whether this processor took the record as late, and why.",
        ),
    ] = None,
    engine: EngineOption = EngineName.AUTO,
    source: Annotated[
        SourceName | None,
        typer.Option(
            "--source",
            help="Of a row, where to read: as --from of replay. Default: history with --lake, else topic.",
        ),
    ] = None,
    lake: LakeOption = None,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Of a row, fold a log although records are missing in it.")
    ] = False,
) -> None:
    output = output_of(context)
    if late or processor is not None:
        record = _late_place(topic, place, offset) if processor is not None else None
        if segment is not None or topic is None or (late and (place is not None or processor is not None)):
            raise ConfigError("write PROCESSOR --late, or TOPIC PARTITION OFFSET --for PROCESSOR")
        explain_late(
            context,
            AskedLate(
                processor or topic,
                record,
                at,
                changes,
                engine,
                chosen_source(source, lake),
                lake,
                allow_holes,
            ),
        )
        return
    of_row = segment is None and offset is None and place is not None and not place.isdecimal()
    if at is not None or of_row:
        if topic is None or place is None or offset is not None or segment is not None:
            raise ConfigError("with --at, name a row as PROCESSOR KEY, or PROCESSOR.TABLE KEY")
        asked = AskedRow(topic, place, at, changes, engine, chosen_source(source, lake), lake, allow_holes)
        explain_row(context, asked)
        return
    if segment is not None:
        if topic is not None:
            raise ConfigError("give either --segment FILE or TOPIC PARTITION OFFSET, not both")
        _explain_segment(segment, first, limit, records, output)
        return
    partition = None if place is None else _partition(place)
    if topic is None or partition is None or offset is None:
        raise ConfigError(
            "name an offset as TOPIC PARTITION OFFSET, a row as PROCESSOR KEY (--at TIME, if its key is a"
            " number), or a file with --segment FILE"
        )
    found, unreadable = asyncio.run(
        fetch_explanation(settings_of(context), topic, partition, offset, timeout)
    )
    _show_explanation(found, output)
    if unreadable is not None:
        raise DecodeError(
            f"{topic} partition {partition}: offset {offset} cannot be read: {unreadable.reason}"
        )
