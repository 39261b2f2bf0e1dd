"""`holdfast pipeline`: jobs on Spark that keep a topic's history."""

from __future__ import annotations

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.pipeline.check import check
from holdfast.cli.pipeline.derive import derive
from holdfast.cli.pipeline.fold import fold
from holdfast.cli.pipeline.land import land
from holdfast.cli.pipeline.trim import trim
from holdfast.cli.pipeline.upkeep import compact, expire, vacuum

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)

app.command(
    help=(
        "Check the tables of a lake: counts, overlaps, gaps, files and commits by strangers. Exit code 1 for"
        " any fault."
    )
)(check)
app.command(
    help=(
        "Fold the newly landed records of a processor's source into two tables: the state, and the history of"
        " each row. After any number of runs they equal a replay from the beginning."
    )
)(fold)
app.command(
    help=(
        "Update the tables of claims, consumer groups and their lag, outboxes, producers' anomalies and the"
        " quarantine with the newly landed records."
    )
)(derive)
app.command(
    help=(
        "Join small files of a lake's tables, in the order of offsets. No row changes, and landings continue."
    )
)(compact)
app.command(
    help=(
        "Remove the records of a lake's tables that are older than a time, for good. Checks, replays and"
        " landings take it into account, and continue."
    )
)(expire)
app.command(
    help="Remove files of a lake's tables that no version needs any more, and those of killed landings."
)(vacuum)
app.command(
    help=(
        "Show which records may be deleted from the application's sources: those that the lake holds,"
        " compared one by one, and that all tables have folded. With --execute, delete them."
    )
)(trim)

app.command(
    help=(
        "Land topics in a lake, or every topic that a processor folds. Each committed record becomes one row"
        " of a Delta table, exactly once, also after a crash. With -A, landed records are deleted from topics"
        " that the application declares with retention landed."
    )
)(land)
