"""`holdfast pipeline compact` and `vacuum`: upkeep of a lake's tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.context import output_of
from holdfast.cli.output import note, show
from holdfast.cli.pipeline.lakes import absolute, names_of, tables_in

LakeOption = Annotated[str, typer.Option(help="Folder or address of the lake.")]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        "--topics",
        "--topic",
        help="Topics whose tables to keep up, with commas between them. Default: all, of a lake on this machine.",
    ),
]


def compact(
    context: typer.Context,
    lake: LakeOption,
    topics: TopicsOption = None,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, help="About how large a joined file becomes.")
    ] = 128,
) -> None:
    from holdfast.pipeline.upkeep.compact import compact as join

    where = absolute(lake)
    names = names_of(topics) if topics is not None else tables_in(where)
    reports = [join(each, where, target_bytes=target_mb << 20) for each in names]
    columns = ("topic", "files_before", "files_after", "rows", "version")
    show([asdict(each) for each in reports], columns, output_of(context))


def vacuum(
    context: typer.Context,
    lake: LakeOption,
    topics: TopicsOption = None,
    hours: Annotated[
        int,
        typer.Option(
            "--older-than-hours",
            min=1,
            help="Keep what versions of the last so many hours need; older ones cannot be read afterwards.",
        ),
    ] = 168,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell which files would be removed.")
    ] = False,
) -> None:
    from holdfast.pipeline.upkeep.vacuum import vacuum as clean

    where = absolute(lake)
    names = names_of(topics) if topics is not None else tables_in(where)
    reports = [clean(each, where, hours=hours, dry_run=dry_run) for each in names]
    rows = [{"topic": each.topic, "file": file} for each in reports for file in each.files]
    show(rows, ("topic", "file"), output_of(context))
    note(f"{len(rows)} files {'would be' if dry_run else 'were'} removed")
