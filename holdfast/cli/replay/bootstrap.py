"""`holdfast bootstrap`: begins a table's version with the state that its fold makes of history."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption, StateMemoryOption, takes_spark
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.lake.sources import LakeOption, SourceName, UntilOption, history_options
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Output, note, show, show_json
from holdfast.core.engine.declared.chains import require_chains
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.bootstrap.sink import BootstrapStep
    from holdfast.pipeline.spark.session import SparkOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

COLUMNS = ("partition", "outcome", "applied", "records", "refused", "rows", "timers", "emits", "digest")


class EmitsName(StrEnum):
    """The choices of `--emits`."""

    SUPPRESS = "suppress"
    SEND = "send"


class BeginName(StrEnum):
    """The choices of `--from`."""

    TOPIC = "topic"
    BRONZE = "bronze"
    HISTORY = "history"
    VERSION = "version"


@app.command(
    help=(
        "Fold a processor over history and write the state of each partition as the changelog of its version,"
        " in one transaction: workers restore it and continue with the next record. It skips partitions that"
        " have a state."
    )
)
@takes_spark()
def bootstrap(
    context: typer.Context,
    spark: SparkOptions,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor.")],
    version: Annotated[
        int | None,
        typer.Option("--version", help="The expected version: refused if another one is declared."),
    ] = None,
    engine: EngineOption = EngineName.AUTO,
    source: Annotated[
        BeginName | None,
        typer.Option(
            "--from",
            help=(
                "Read the topic, the bronze table that `pipeline land` keeps, one history (the table up to"
                " its end and the topic from there), or "
                "the rows of an earlier version. Default: version for a processor with migrate=, else as for"
                " replay."
            ),
        ),
    ] = None,
    lake: LakeOption = None,
    until: UntilOption = None,
    emits: Annotated[
        EmitsName,
        typer.Option(
            "--emits",
            help="Emits up to the position: suppress sends nothing to topics that earlier versions write to, "
            "send sends everything.",
        ),
    ] = EmitsName.SUPPRESS,
    state_memory_mb: StateMemoryOption = 256,
) -> None:
    from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions
    from holdfast.pipeline.bootstrap.bootstrap import bootstrap as run

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    require_chains(application.processors)
    processor = application.processor(name)
    if version is not None and version != processor.version:
        raise ConfigError(
            f"--version {version}: processor {name} is declared as version {processor.version}; name the"
            " application that declares the other"
        )
    migrates = source is BeginName.VERSION or (source is None and bool(processor.migrate))
    if source is None and migrates:
        note("begins with the rows of an earlier version (--from version), as migrate= declares")
    if migrates and (until is not None or emits is EmitsName.SEND):
        raise ConfigError(
            "--from version takes no --until or --emits send: it begins where the earlier version stands"
        )
    begin = SourceName.TOPIC if migrates else None if source is None else SourceName(source.value)
    options = history_options(engine, begin, lake, until, state_memory_mb=state_memory_mb, spark=spark)
    with shown_progress():
        done = run(
            processor,
            application.settings,
            BootstrapOptions(replay=options, emits=emits.value, migrate=migrates),
            told=_tell,
        )
    if output_of(context) is Output.JSON:
        show_json(done.document())
        return
    show(done.document()["partitions"], COLUMNS, Output.TABLE)
    if not done.engine:
        note(
            f"every partition of {processor.table} has a state: raise the version to build another, or empty"
            f" this one with `holdfast tables repair {name} --rebuild`"
        )
        return
    note(f"folded on {done.engine}; workers of {processor.table} go on behind these positions")


def _tell(partition: int, step: BootstrapStep) -> None:
    """Print the step of a partition, but for the one that comes with every part of a transaction."""
    if step.value != "appending":
        print(f"partition {partition}: {step.value}", file=sys.stderr, flush=True)
