"""`holdfast size`: what an application of a given load needs of machines and brokers. Asks no broker."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Annotated

import typer

from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import Output, OutputRow, note, show, show_json
from holdfast.cli.size.capacity import FOLD_US, FULL_CORE, Figure, Load, Unit, capacity
from holdfast.core.engine.declared.durations import duration_ms

app = typer.Typer(rich_markup_mode=None, add_completion=False)

COLUMNS = ("figure", "a_worker", "all", "of_its_limit")
LIMIT_WORKERS, LIMIT_PARTITIONS = 100_000, 1_000_000
NEAR = 0.5
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@app.command(
    help=(
        "Estimate what an application needs: processor, memory, disk, open files, traffic. Connects to"
        " nothing; standbys, replicas and caches are those of the settings. docs/capacity.md explains the"
        " formulas."
    )
)
def size(
    context: typer.Context,
    partitions: Annotated[
        int, typer.Option(min=1, max=LIMIT_PARTITIONS, help="Partitions of the table's source.")
    ],
    records_per_s: Annotated[
        float, typer.Option(min=0, help="Source records a second, all partitions.")
    ] = 1_000,
    record_bytes: Annotated[int, typer.Option(min=1, help="A source record's key and value.")] = 100,
    keys: Annotated[int, typer.Option(min=0, help="Rows of the table.")] = 100_000,
    row_bytes: Annotated[int, typer.Option(min=1, help="A row with its key, as stored.")] = 100,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=LIMIT_WORKERS, help="Workers. [default: as many as the records need]"),
    ] = None,
    sources: Annotated[int, typer.Option(min=1, max=8, help="Sources that the table is folded from.")] = 1,
    changes: Annotated[float, typer.Option(min=0, help="Rows that a record changes, on average.")] = 1.0,
    emits: Annotated[float, typer.Option(min=0, help="Records that a record emits, on average.")] = 0.0,
    emit_bytes: Annotated[int, typer.Option(min=1, help="An emitted record's key and value.")] = 100,
    retention: Annotated[
        str | None, typer.Option(help="How long sources are kept, 7d for example. [default: for ever]")
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, help="Brokers of the cluster.")] = 3,
    fold_us: Annotated[
        float, typer.Option(min=0.1, help="Processor time that your fold takes for a record, us.")
    ] = FOLD_US,
    claim_members: Annotated[int, typer.Option(min=0, help="Members of a claim group.")] = 0,
    claim_partitions: Annotated[int, typer.Option(min=0, help="Partitions that they share.")] = 0,
    formulas: Annotated[bool, typer.Option("--formulas", help="Show how each figure is computed.")] = False,
) -> None:
    load = Load(
        partitions=partitions,
        workers=workers or 1,
        records_per_s=records_per_s,
        record_bytes=record_bytes,
        keys=keys,
        row_bytes=row_bytes,
        sources=sources,
        changes=changes,
        emits=emits,
        emit_bytes=emit_bytes,
        retention_s=None if retention is None else duration_ms(retention, "--retention") / 1000,
        brokers=brokers,
        fold_us=fold_us,
        claim_members=claim_members,
        claim_partitions=claim_partitions,
    )
    if workers is None:
        load = replace(load, workers=wanted_workers(records_per_s, fold_us, partitions))
    found = capacity(load, settings_of(context))
    if output_of(context) is Output.JSON:
        show_json({"workers": load.workers, "figures": [record_of(each) for each in found]})
        return
    show([line_of(each) for each in found], (*COLUMNS, "how") if formulas else COLUMNS, Output.TABLE)
    note(
        f"for {load.workers} {'worker' if load.workers == 1 else 'workers'}; docs/capacity.md says what is"
        " measured, and where"
    )
    for each in found:
        if each.share is not None and each.share > NEAR:
            note(f"{each.figure}: {each.share:.0%} of {each.limit}")


def wanted_workers(records_per_s: float, fold_us: float, partitions: int) -> int:
    """Return how many workers the records need, at most one a partition.

    >>> wanted_workers(1_000, 2.4, 8), wanted_workers(1_000_000, 2.4, 8), wanted_workers(1e9, 2.4, 8)
    (1, 4, 8)
    """
    return max(1, min(partitions, ceil(records_per_s * fold_us / 1e6 / FULL_CORE)))


def record_of(figure: Figure) -> OutputRow:
    return {
        "figure": figure.figure,
        "unit": figure.unit.value,
        "a_worker": figure.each,
        "all": figure.all,
        "how": figure.how,
        "of_its_limit": figure.share,
        "limit": figure.limit or None,
    }


def line_of(figure: Figure) -> OutputRow:
    return {
        "figure": figure.figure,
        "a_worker": shown(figure.each, figure.unit),
        "all": shown(figure.all, figure.unit),
        "of_its_limit": shown(figure.share, Unit.SHARE),
        "how": figure.how,
    }


def shown(value: float | None, unit: Unit) -> str | None:
    """Return a figure as people read it.

    >>> shown(1_234_567, Unit.BYTES), shown(0.0131, Unit.CORES), shown(12.0, Unit.PER_S), shown(0.034, Unit.SHARE), shown(7, Unit.COUNT)
    ('1.2 MB', '0.013 cores', '12/s', '3 %', '7')
    """  # noqa: E501
    if value is None:
        return None
    match unit:
        case Unit.BYTES:
            return _bytes(value)
        case Unit.BYTES_PER_S:
            return f"{_bytes(value)}/s"
        case Unit.PER_S:
            return f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"
        case Unit.CORES:
            return f"{value:.2g} cores" if value < 10 else f"{value:,.0f} cores"
        case Unit.SHARE:
            return f"{value:.0%}".replace("%", " %")
        case Unit.COUNT:
            return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit, factor in _UNITS:
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:,.0f} B"
