"""`holdfast replay`: a processor's fold over its source's history, in this process or on Spark."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption, StateMemoryOption, takes_spark
from holdfast.cli.lake.lakes import absolute
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.lake.sources import LakeOption, SourceOption, UntilOption, history_options
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Output, left_out, note, number_of, show, show_json
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.spark.session import SparkOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class FormatName(StrEnum):
    """The choices of `--format`."""

    PARQUET = "parquet"
    DELTA = "delta"
    NDJSON = "ndjson"


@app.command(
    help="Fold a processor over its source's history: final rows, digests, refused records, transitions."
)
@takes_spark()
def replay(
    context: typer.Context,
    spark: SparkOptions,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor.")],
    engine: EngineOption = EngineName.AUTO,
    source: SourceOption = None,
    lake: LakeOption = None,
    until: UntilOption = None,
    out: Annotated[
        str | None,
        typer.Option(help="New folder for the tables rows, timers, refused, transitions and summary."),
    ] = None,
    form: Annotated[
        FormatName, typer.Option("--format", help="Format of those tables.")
    ] = FormatName.PARQUET,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Also write each change of each row (slower); needs --out.")
    ] = False,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Fold the rest of a log whose oldest records were deleted.")
    ] = False,
    state_memory_mb: StateMemoryOption = 256,
) -> None:
    from holdfast.pipeline.replay import replay as run

    if transitions and out is None:
        raise ConfigError("--transitions needs --out: there is one for each change of each row")
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    options = replace(
        history_options(engine, source, lake, until, state_memory_mb=state_memory_mb, spark=spark),
        rows=out is not None,
        transitions=transitions,
        out=None if out is None else absolute(out),
        format=form.value,
        allow_holes=allow_holes,
    )
    with shown_progress():
        replayed = run(application.processor(name), application.settings, options)
    document = replayed.document()
    if output_of(context) is Output.JSON:
        show_json(document)
    else:
        show(
            document["partitions"],
            ("partition", "applied", "records", "refused", "rows", "timers", "digest"),
            Output.TABLE,
        )
        for base in document["bases"]:
            note(base)
        note(
            f"{number_of(replayed.records, 'record')}{left_out(replayed.skipped)} on {replayed.engine};"
            f" digest of the table {replayed.digest}"
        )
    if out is not None:
        note(f"tables are in {options.out}")
