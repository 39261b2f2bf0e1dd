"""`--execute`: the one word by which a command that deletes, moves or resets does more than show its plan."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import note

ExecuteOption = Annotated[bool, typer.Option("--execute", help="Do it; without it, nothing changes.")]
ExecuteOrYes = Annotated[
    bool,
    typer.Option("--execute", "--yes", help="Do it; else nothing changes. --yes is the old name."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", hidden=True)]
"""The old option of commands that act by default."""


def is_executed(command: str, *, execute: bool, dry_run: bool) -> bool:
    """Return whether the command removes something. In this release it does without `--execute` too, unless
    `--dry-run` is given, and prints a note that the next release will not.
    """
    if not execute and not dry_run:
        note(f"{command} without --execute only shows what it would remove from the next release on")
    return execute or not dry_run
