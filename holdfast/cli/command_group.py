"""Groups of commands that suggest corrections for a mistyped command."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup

MOST_TOLD = 20
"""A larger group is listed by its help, which the usage names."""


class CommandGroup(TyperGroup):
    """A group of commands: it suggests similar commands for an unknown name, or lists all."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if not args[0].startswith("-") and args[0] not in known and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r:.100}. {_cure(args[0], known)}".rstrip())
        return super().resolve_command(ctx, args)


def _cure(given: str, known: list[str]) -> str:
    """Return the suggestion for *given*; "" if the help is to list the commands.

    >>> _cure("statsu", ["init", "status"]), _cure("zzz", ["init", "status"])
    ("Did you mean 'status'?", "Choose from 'init', 'status'.")
    """
    if near := get_close_matches(given, known):
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return f"Choose from {', '.join(map(repr, known))}." if len(known) <= MOST_TOLD else ""
