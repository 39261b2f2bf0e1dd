"""The output of commands: one table or stable JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from holdfast.cli.status_line import erase
from holdfast.terminal import printable, shown_on

Cell = str | int | float | bool | None | Sequence["Cell"] | Mapping[str, "Cell"]
OutputRow = Mapping[str, Cell]


class Output(StrEnum):
    """The choices of `--output`."""

    TABLE = "table"
    JSON = "json"


def show(records: Sequence[OutputRow], columns: Sequence[str], output: Output) -> None:
    """Print *records*: as JSON whole, as a table only *columns*, headed as Kafka's tools do and with '-' for
    the unknown.
    """
    if output is Output.JSON:
        show_json(list(records))
        return
    heads = [column.upper().replace("_", "-") for column in columns]
    lines = [[shown_on(sys.stdout, text(record.get(column))) for column in columns] for record in records]
    numeric = [all(_is_number(record.get(column)) for record in records) for column in columns]
    if sys.stdout.isatty():
        _show_rich(heads, lines, numeric)
    else:
        for line in align([heads, *lines], numeric):
            print(line)


def show_json(value: Cell) -> None:
    """Print one JSON document; keys keep their order, so that the text is stable too."""
    print(json_text(value, indent=2))


def note(message: str) -> None:
    """Print a message for the person at the terminal that is not part of the result."""
    erase()
    print(*map(printable, message.split("\n")), sep="\n", file=sys.stderr)


def number_of(count: int, noun: str) -> str:
    """Return a count of what *noun* names.

    >>> number_of(1, "record"), number_of(2, "record")
    ('1 record', '2 records')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def left_out(skipped: int) -> str:
    """Return the remark on a count of records when offsets of their source are skipped.

    >>> left_out(0), left_out(3)
    ('', ' (3 offsets are skipped, see `holdfast quarantine skips`)')
    """
    are = f"{number_of(skipped, 'offset')} {'is' if skipped == 1 else 'are'}"
    return f" ({are} skipped, see `holdfast quarantine skips`)" if skipped else ""


def json_text(value: Cell, *, indent: int | None = None) -> str:
    r"""Return *value* as JSON that shows letters of all languages, and escapes invisible characters as JSON
    does.

    >>> json_text(["é", "\x9b2J", "\ud800"]) == r'["é", "\u009b2J", "\ud800"]'
    True
    """
    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))


def escaped_json(written: str) -> str:
    """Return a JSON document with invisible characters escaped; outside of its texts all are visible, or the
    end of a line.
    """
    if written.replace("\n", "").isprintable():
        return written
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in written)


def text(cell: Cell) -> str:
    """Return *cell* as a table shows it.

    >>> [text(cell) for cell in (None, "", 0, True, (1, 2), (), {"a": 1, "b": "x"})]
    ['-', '-', '0', 'true', '1,2', '-', 'a=1,b=x']
    """
    match cell:
        case None:
            return "-"
        case bool():
            return "true" if cell else "false"
        case str():
            return printable(cell) or "-"
        case Mapping():
            return ",".join(f"{printable(name)}={text(value)}" for name, value in cell.items()) or "-"
        case Sequence():
            return ",".join(text(part) for part in cell) or "-"
        case _:
            return str(cell)


def utc(at_s: Cell) -> str | None:
    """Return a time in UTC as people read it.

    >>> utc(1_700_000_000), utc(None)
    ('2023-11-14T22:13:20Z', None)
    """
    if not isinstance(at_s, int):
        return None
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (
        ValueError,
        OverflowError,
        OSError,
    ):  # an administrator may pause a group for longer than calendars reach
        return f"@{at_s}"


def utc_ms(at_ms: Cell) -> str | None:
    """Return a time in ms as `utc` does; None for other values: -1 in Kafka's records, a text in a row that a
    person wrote by hand.

    >>> utc_ms(1_700_000_000_250), utc_ms(2**62), utc_ms(-1), utc_ms("noon")
    ('2023-11-14T22:13:20Z', '@4611686018427387', None, None)
    """
    return utc(at_ms // 1000) if isinstance(at_ms, int) and at_ms >= 0 else None


def align(lines: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    """Return *lines* in columns as wide as their widest cell, numbers to the right, nothing cut off.

    >>> align([["TOPIC", "LAG"], ["a", "10"]], [False, True])
    ['TOPIC  LAG', 'a       10']
    """
    widths = [max(len(line[index]) for line in lines) for index in range(len(numeric))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _show_rich(heads: Sequence[str], lines: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, right in zip(heads, numeric, strict=True):
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))  # Text, since a cell in brackets is not markup
    Console().print(table)
