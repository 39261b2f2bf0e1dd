"""`holdfast report`: the derived tables of a lake for a period, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.lake.engines import (
    ConfOption,
    EngineName,
    MasterOption,
    MemoryOption,
    spark_options,
)
from holdfast.cli.lake.lakes import absolute, names_of
from holdfast.cli.lake.sources import time_ms
from holdfast.cli.options.context import settings_of
from holdfast.cli.output import note
from holdfast.clock import system_clock
from holdfast.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False)
DAY_MS = 86_400_000


@app.command(
    help=(
        "Write a page about a period: who held which claim, takeovers, producers' anomalies, quarantined"
        " records, from the tables of `pipeline derive`."
    )
)
def report(
    context: typer.Context,
    lake: Annotated[str, typer.Option(help="Folder or address of the lake.")],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start of the period, with its zone or in ms. Default: a day before its end."
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the period. Default: now.")] = None,
    topics: Annotated[
        str | None,
        typer.Option("--topics", help="Topics whose lag to show, with commas between them; see lag.ends."),
    ] = None,
    html: Annotated[Path, typer.Option("--html", help="The file to write.")] = Path("report.html"),
    engine: Annotated[
        EngineName,
        typer.Option(
            "--engine",
            help=(
                "What reads the tables. local: this process, no JVM. spark: Spark. auto: Spark with --master."
            ),
        ),
    ] = EngineName.AUTO,
    master: MasterOption = None,
    memory: MemoryOption = None,
    conf: ConfOption = None,
) -> None:
    from holdfast.pipeline.reporting.report import ReportOptions
    from holdfast.pipeline.reporting.report import report as gather
    from holdfast.pipeline.reporting.report_page import report_page
    from holdfast.pipeline.reporting.slices import LIMIT_ROWS

    settings, where = settings_of(context), absolute(lake)
    to_ms = system_clock.now_ms() if end is None else time_ms("--to", end)
    from_ms = to_ms - DAY_MS if begin is None else time_ms("--from", begin)
    on_spark = engine is EngineName.SPARK or (engine is EngineName.AUTO and master is not None)
    options = ReportOptions(
        lake=where,
        from_ms=from_ms,
        to_ms=to_ms,
        topics=tuple(names_of(topics or "")),
        engine="spark" if on_spark else "local",
        spark=spark_options(settings, master, memory, conf),
    )
    found = gather(settings, options)
    _write(html, report_page(found))
    rows = ", ".join(f"{len(rows)} rows of {name}" for name, rows in found.tables.items())
    note(f"{html}: {rows or 'no rows'}, read by {options.engine}")
    for name, count in found.left_out.items():
        note(
            f"{name} is left out: this time has {count} rows of it, and a page is made of {LIMIT_ROWS} at"
            " most; name a shorter time (--from, --to)"
        )


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written: {error}") from error
