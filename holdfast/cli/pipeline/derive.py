"""`holdfast pipeline derive`: tables about claims, groups, outboxes and producers, from their landed logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption, takes_spark
from holdfast.cli.lake.lakes import absolute, names_of
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import Cell, Output, note, show, show_json

if TYPE_CHECKING:
    from holdfast.pipeline.spark.session import SparkOptions

COLUMNS = ("table", "records", "refused", "rows", "commits", "engine", "path")


@takes_spark()
def derive(
    context: typer.Context,
    spark: SparkOptions,
    lake: Annotated[str, typer.Option(help="Folder or address of the lake.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="The tables, such as claims.intervals. Default: all whose topic was landed.",
        ),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option("--topics", help="Topics for lag.ends and lag.by_minute, with commas between them."),
    ] = None,
    engine: EngineOption = EngineName.AUTO,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Fold the lake although records are missing in it.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Replace the tables: fold from the beginning.")
    ] = False,
    max_records: Annotated[int, typer.Option(min=1, help="Most offsets in a commit.")] = 10_000_000,
) -> None:
    from holdfast.pipeline.derived.derive import derive as run
    from holdfast.pipeline.derived.derive import tables_to_derive
    from holdfast.pipeline.histories.fold import FoldOptions

    settings = settings_of(context)
    options = FoldOptions(
        lake=absolute(lake),
        engine=engine.value,
        allow_holes=allow_holes,
        rebuild=rebuild,
        max_records=max_records,
        spark=spark,
    )
    with shown_progress():
        wanted = tables_to_derive(names or (), options.lake, settings, names_of(topics or ""))
        reports = {table.path: run(table, settings, options) for table in wanted}
    if output_of(context) is Output.JSON:
        show_json([{"table": name, **report.document()} for name, report in reports.items()])
        return
    rows: list[dict[str, Cell]] = [
        {
            "table": name,
            "records": report.records,
            "refused": sum(each.refused for each in report.partitions.values()),
            "rows": report.changes,
            "commits": report.commits,
            "engine": report.engine,
            "path": report.output,
        }
        for name, report in reports.items()
    ]
    show(rows, COLUMNS, output_of(context))
    if not any(report.commits for report in reports.values()):
        note("nothing was landed since the last time")
