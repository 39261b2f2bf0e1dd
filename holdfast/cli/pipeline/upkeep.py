"""`holdfast pipeline compact`, `expire` and `vacuum`: upkeep of a lake's tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.lake.lakes import absolute, names_of, tables_in
from holdfast.cli.lake.sources import time_ms
from holdfast.cli.options.context import output_of
from holdfast.cli.options.executing import DryRunOption, ExecuteOption, is_executed
from holdfast.cli.output import note, show
from holdfast.clock import system_clock
from holdfast.errors import ConfigError

LakeOption = Annotated[str, typer.Option(help="Folder or address of the lake.")]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        "--topics",
        "--topic",
        help=(
            "Topics whose tables to maintain, with commas between them. Default: all, of a lake on this"
            " machine."
        ),
    ),
]
FoldsOption = Annotated[
    str | None,
    typer.Option(
        "--fold",
        help=(
            "In place of topics, the tables that `pipeline fold` has made of these processors, with commas"
            " between them."
        ),
    ),
]
DerivedOption = Annotated[
    str | None,
    typer.Option(
        "--derived",
        help="In place of topics, tables of `pipeline derive`, with commas between them.",
    ),
]


def compact(
    context: typer.Context,
    lake: LakeOption,
    topics: TopicsOption = None,
    folds: FoldsOption = None,
    derived: DerivedOption = None,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, help="About how large a joined file becomes.")
    ] = 128,
) -> None:
    from holdfast.pipeline.upkeep.compact import compact as join
    from holdfast.pipeline.upkeep.optimize import optimize_table

    where, target_bytes = absolute(lake), target_mb << 20
    if (outputs := _outputs(where, topics, folds, derived)) is None:
        reports = [join(each, where, target_bytes=target_bytes) for each in _topics(where, topics)]
    else:
        # Their states are left alone: each run writes them again.
        reports = [
            optimize_table(f"{folder}/{table}", f"{name} {table}", target_bytes=target_bytes)
            for name, (folder, table) in outputs.items()
        ]
    columns = ("topic", "files_before", "files_after", "rows", "version")
    show([asdict(each) for each in reports], columns, output_of(context))


def expire(
    context: typer.Context,
    lake: LakeOption,
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics",
            "--topic",
            help="Topics whose records expire, with commas between them.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--older-than-days", min=0.001, help="Remove records that are older than so many days."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            help="In place of --older-than-days: remove records from before this time, as --until takes it."
        ),
    ] = None,
    all_topics: Annotated[
        bool,
        typer.Option(
            "--all-topics", help="In place of --topics: all of a lake on this machine, except choices."
        ),
    ] = False,
    execute: ExecuteOption = False,
    dry_run: DryRunOption = False,
) -> None:
    from holdfast.pipeline.upkeep.expire import expire as remove
    from holdfast.pipeline.upkeep.expire import holds_choices

    where, before_ms = absolute(lake), _before_ms(days, before)
    removes = is_executed("expire", execute=execute, dry_run=dry_run)
    if (topics is None) != all_topics:
        raise ConfigError("say whose records expire: --topics TOPIC,... or --all-topics")
    names = names_of(topics or "")
    if topics is None:
        names = [each for each in tables_in(where) if not holds_choices(each, where)]
    reports = [remove(each, where, before_ms=before_ms, dry_run=not removes) for each in names]
    columns = ("topic", "partition", "first", "begins", "rows", "version")
    rows = [{**asdict(each), "version": report.version} for report in reports for each in report.expired]
    show(rows, columns, output_of(context))
    count = sum(each.rows for report in reports for each in report.expired)
    note(f"{count} rows {'were' if removes else 'would be'} removed")


def _before_ms(days: float | None, before: str | None) -> int:
    """Return the time that the options name, in ms since the epoch."""
    if (days is None) == (before is None):
        raise ConfigError("say what expires: --older-than-days DAYS or --before TIME")
    if days is not None:
        return system_clock.now_ms() - round(days * 86_400_000)
    return time_ms("--before", str(before))


def vacuum(
    context: typer.Context,
    lake: LakeOption,
    topics: TopicsOption = None,
    hours: Annotated[
        int,
        typer.Option(
            "--older-than-hours",
            min=1,
            help=(
                "Keep the files that versions of the last so many hours need; older versions cannot be read"
                " afterwards."
            ),
        ),
    ] = 168,
    folds: FoldsOption = None,
    derived: DerivedOption = None,
    execute: ExecuteOption = False,
    dry_run: DryRunOption = False,
) -> None:
    from holdfast.pipeline.upkeep.vacuum import vacuum_table

    removes = is_executed("vacuum", execute=execute, dry_run=dry_run)
    paths = _paths(absolute(lake), topics, folds, derived)
    reports = [vacuum_table(path, name, hours=hours, dry_run=not removes) for name, path in paths.items()]
    rows = [{"topic": each.topic, "file": file} for each in reports for file in each.files]
    show(rows, ("topic", "file"), output_of(context))
    note(f"{len(rows)} files {'were' if removes else 'would be'} removed")


def _paths(lake: str, topics: str | None, folds: str | None, derived: str | None) -> dict[str, str]:
    """Return the tables that are meant, by what people call them."""
    from holdfast.pipeline.bronze.lake import bronze_path
    from holdfast.pipeline.histories.fold_tables import is_table

    if (outputs := _outputs(lake, topics, folds, derived)) is None:
        return {each: bronze_path(lake, each) for each in _topics(lake, topics)}
    return {
        f"{name} {table}": f"{folder}/{table}"
        for name, (folder, output) in outputs.items()
        for table in ("state", output)
        if table == output or is_table(f"{folder}/{table}")  # a join of other tables has no state of its own
    }


def _topics(lake: str, topics: str | None) -> list[str]:
    return tables_in(lake) if topics is None else names_of(topics)


def _outputs(
    lake: str, topics: str | None, folds: str | None, derived: str | None
) -> dict[str, tuple[str, str]] | None:
    """Return folder and output table of each fold that is meant, by its name; None where topics are."""
    from holdfast.pipeline.derived.derive import derived_folder
    from holdfast.pipeline.derived.table import ROWS
    from holdfast.pipeline.histories.fold_tables import folds_path

    if sum(each is not None for each in (topics, folds, derived)) > 1:
        raise ConfigError("--topics, --fold and --derived each say which tables are meant: give one of them")
    if folds is not None:
        return {name: (folds_path(lake, name), "history") for name in names_of(folds)}
    if derived is not None:
        return {name: (derived_folder(lake, name), ROWS) for name in names_of(derived)}
    return None
