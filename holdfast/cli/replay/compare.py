"""`holdfast compare`: two versions of a fold over one history."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption, StateMemoryOption, takes_spark
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.lake.sources import LakeOption, SourceOption, UntilOption, history_options
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Output, note, number_of, show, show_json
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.comparing.compare import Comparison
    from holdfast.pipeline.spark.session import SparkOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    help=(
        "Fold two versions of a processor over one history, in one pass, and show the keys whose rows differ."
        " Exit code 1 if there are any."
    )
)
@takes_spark()
def compare(
    context: typer.Context,
    spark: SparkOptions,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor.")],
    other: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="MODULE:PROCESSOR",
            help=(
                "The other version: a module, a colon, and the name of a processor in the application there."
            ),
        ),
    ],
    engine: EngineOption = EngineName.AUTO,
    source: SourceOption = None,
    lake: LakeOption = None,
    until: UntilOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a page with plots and keys to this file.")
    ] = None,
    keys: Annotated[int, typer.Option("--keys", min=0, help="How many keys the table shows.")] = 20,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Fold the rest of a log whose oldest records were deleted.")
    ] = False,
    state_memory_mb: StateMemoryOption = 256,
) -> None:
    from holdfast.pipeline.comparing.compare import compare as run
    from holdfast.pipeline.comparing.page import comparison_page

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    module, sign, processor = other.rpartition(":")
    if not sign or not module or not processor:
        raise ConfigError(f"--with {other}: write MODULE:PROCESSOR, for example shop_next:totals")
    options = replace(
        history_options(engine, source, lake, until, state_memory_mb=state_memory_mb, spark=spark),
        allow_holes=allow_holes,
    )
    theirs = load_application(module, chosen.settings()).processor(processor)
    with shown_progress():
        found = run(
            application.processor(name),
            theirs,
            application.settings,
            options,
            memory_bytes=options.memory_bytes,
        )
    if html is not None:
        try:
            html.write_text(comparison_page(found))
        except OSError as error:
            raise ConfigError(f"--html {html} cannot be written: {error}") from error
    _show(found, output_of(context), keys, f"{name} and {other}")
    if html is not None:
        note(f"the page is {html}")
    if not found.equal:
        raise typer.Exit(1)


def _show(found: Comparison, output: Output, keys: int, between: str) -> None:
    """Show the differences *between* two versions, with *keys* of the keys that differ."""
    if output is Output.JSON:
        show_json(found.document())
        return
    columns = (
        "partition",
        "records",
        "rows",
        "other_rows",
        "apart",
        "met_again",
        "first_offset",
        "equal",
    )
    show([asdict(each) for each in found.partitions], columns, Output.TABLE)
    if found.keys and keys:
        listed = sorted(found.keys, key=lambda each: (not each.apart, each.at_ms, each.offset))[:keys]
        shown = ("partition", "key", "topic", "offset", "apart", "fields", "mine", "theirs")
        show([{**asdict(each), "fields": [*each.fields]} for each in listed], shown, Output.TABLE)
    for field, count in found.fields.items():
        note(f"{number_of(count, 'key')} differ{'s' * (count == 1)} in {field}")
    if found.left_out:
        note(f"keys that differ, or did, beside those told: {found.left_out}; all are counted")
    same = "equal" if found.equal else f"DIFFERENT, {number_of(found.apart, 'key')} at the end"
    note(f"{between}: {same}, after {number_of(found.records, 'record')} on {found.engine}")
