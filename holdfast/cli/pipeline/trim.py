"""`holdfast pipeline trim`: deletes from sources the records that a lake holds and all downstream tables have
in their state.
"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.lake.lakes import absolute, names_of
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.options.executing import ExecuteOrYes
from holdfast.cli.output import Output, note, show

COLUMNS = ("topic", "partition", "first", "before", "offsets", "held_by")


def trim(
    context: typer.Context,
    lake: Annotated[str, typer.Option(help="Folder or address of the lake.")],
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics",
            "--topic",
            help="Sources to trim, with commas between them. Default: all that the processors fold.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="Keep what this consumer group has not committed; may be repeated."),
    ] = None,
    execute: ExecuteOrYes = False,
) -> None:
    from holdfast.pipeline.trimming import LandedTrim

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    trimming = LandedTrim(
        application.settings,
        application.processors,
        absolute(lake),
        topics=None if topics is None else names_of(topics),
        groups=group or (),
        agents_read=application.faust.read,
    )
    plan = trimming.plan()
    if execute:
        trimming.trim(plan)
    show(
        [
            {
                "topic": each.topic,
                "partition": each.partition,
                "first": each.first,
                "before": each.before,
                "offsets": each.offsets,
                "held_by": each.held_by,
            }
            for each in plan
        ],
        COLUMNS,
        output_of(context),
    )
    if output_of(context) is Output.TABLE and not execute:
        note(
            "nothing was deleted; other applications that read these topics lose it too: name their groups"
            " with --group, and give --execute"
        )
