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
"""The old word of commands that did it without being asked."""


def is_executed(command: str, *, execute: bool, dry_run: bool) -> bool:
    """Return whether a command that once needed no `--execute` removes something; in this release it still
    does without a word, and prints that the next one will not.
    """
    if not execute and not dry_run:
        note(f"{command} without --execute only shows what it would remove from the next release on")
    return execute or not dry_run
