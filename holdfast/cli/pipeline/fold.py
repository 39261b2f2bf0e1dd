"""`holdfast pipeline fold`: a processor's state and the history of its rows as tables of the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption, StateMemoryOption, takes_spark
from holdfast.cli.lake.lakes import absolute
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Output, note, show, show_json

if TYPE_CHECKING:
    from holdfast.pipeline.spark.session import SparkOptions

COLUMNS = ("partition", "applied", "records", "refused", "rows", "timers", "digest")


@takes_spark()
def fold(
    context: typer.Context,
    spark: SparkOptions,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor.")],
    lake: Annotated[str, typer.Option(help="Folder or address of the lake.")],
    engine: EngineOption = EngineName.AUTO,
    into: Annotated[
        str | None,
        typer.Option(help="Folder or address of the tables. Default: LAKE/folds/NAME."),
    ] = None,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Fold the lake although records are missing in it.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Replace the tables: fold from the beginning.")
    ] = False,
    max_records: Annotated[int, typer.Option(min=1, help="Most offsets in a commit.")] = 10_000_000,
    state_memory_mb: StateMemoryOption = 256,
) -> None:
    from holdfast.pipeline.histories.fold import FoldOptions
    from holdfast.pipeline.histories.fold import fold as run

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    options = FoldOptions(
        lake=absolute(lake),
        engine=engine.value,
        into=None if into is None else absolute(into),
        allow_holes=allow_holes,
        rebuild=rebuild,
        max_records=max_records,
        memory_bytes=state_memory_mb << 20,
        spark=spark,
    )
    with shown_progress():
        report = run(application.processor(name), application.settings, options)
    document = report.document()
    if output_of(context) is Output.JSON:
        show_json(document)
        return
    show(document["partitions"], COLUMNS, Output.TABLE)
    what = f"{report.records} records and {report.changes} changes that are over"
    note(
        f"{what} in {report.commits} commits on {report.engine}"
        if report.commits
        else "nothing was landed since the last fold"
    )
    note(f"state in {report.state}, history in {report.output}; digest of the state {report.digest}")
