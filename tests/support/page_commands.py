"""The command lines of holdfast that a page shows its readers, and the extras that each of them needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from holdfast.cli.__main__ import app, hoist
from holdfast.cli.options.context import Globals

_SHOWN = re.compile(r"^(?: {4}|\$ )(?P<line>.*)$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[;&(|] *|\buntil )(?P<command>holdfast (?:'[^']*'|(?! [12]?>)[^#|>;&()'])+)")
_CONTINUED = re.compile(r" *\\\n *")
_FAUST = re.compile(r"^(?: {4}|\$ )(?:[\w=]+ )*(?:faust -A|python -P -m holdfast\.agents)\b", re.MULTILINE)
_FENCE = re.compile(r"^`{3,}(?:python|toml|json|sql|yaml)[^`]*?^`{3,}$", re.MULTILINE | re.DOTALL)

NEEDS: tuple[tuple[str, str], ...] = (
    # the beginning of a command, without the options before it: the extra
    ("audit", "lake"),
    ("bootstrap", "lake"),
    ("compare", "lake"),
    ("console", "console"),
    ("demo", "worker"),
    ("groups committed", "lake"),
    ("groups lag", "lake"),
    (
        "outbox",
        "outbox",
    ),  # its help and its SQLite do without: the drivers of the other databases come with it
    ("pipeline", "lake"),
    ("producers hanging", "lake"),
    ("producers transactions", "lake"),
    ("replay", "lake"),
    ("report", "lake"),
    ("tables take-over", "lake"),
    ("verify", "lake"),
    ("worker", "worker"),
)
"""Extras that commands need. tests/test_light_installation.py compares them with the error of each command in
an installation without extras.
"""


def command_lines(page: str) -> Iterator[list[str]]:
    """Yield the words after `holdfast` of each command line in the blocks of *page*.

    >>> [*command_lines("    holdfast -A shop topics check > out 2>&1   # and so on\\nprose: holdfast config")]
    [['-A', 'shop', 'topics', 'check']]
    >>> [*command_lines("    holdfast config \\\\\\n        -o json")]
    [['config', '-o', 'json']]
    >>> [*command_lines("$ until holdfast groups list 2> log | grep -c x; do sleep 1; done; holdfast config")]
    [['groups', 'list'], ['config']]
    """  # noqa: E501
    for shown in _SHOWN.finditer(_CONTINUED.sub(" ", _FENCE.sub("", page))):
        for found in _COMMAND.finditer(shown["line"]):
            yield shlex.split(found["command"])[1:]


def starts_workers(page: str) -> bool:
    """Return whether *page* shows how a worker is started by Faust's command, or by Python alone."""
    return _FAUST.search(page) is not None


@cache
def command_line() -> Any:
    """Return the command `holdfast` with each of its nouns made once, when it is first asked for: the pages
    show some hundred command lines.
    """
    command: Any = typer.main.get_command(app)
    make, made = command.get_command, dict[str, Any]()

    def get_command(context: Any, name: str) -> Any:
        if name not in made:
            made[name] = make(context, name)
        return made[name]

    command.get_command = get_command
    return command


def resolved(words: Sequence[str]) -> str:
    """Return the name of the command that *words* run, such as `topics create`.

    Raises an error of the command line's library for a command, an option or an argument that does not exist.

    >>> resolved(["-A", "shop", "topics", "create", "--partitions", "4"])
    'topics create'
    """
    if "--help" in words:
        return ""
    command = command_line()
    context = command.make_context("holdfast", hoist([*words]), obj=Globals())
    while isinstance(command, typer.core.TyperGroup):
        name, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None, "else it has raised"
        command, context = inner, inner.make_context(name, rest, parent=context)
    path: str = context.command_path
    return path.removeprefix("holdfast ")


def needs(words: Sequence[str], command: str) -> set[str]:
    """Return the extras that the command line *words* needs, which run *command*.

    >>> needs(["replay", "totals", "--engine", "spark"], "replay") == {"lake", "spark"}
    True
    >>> needs(["explain", "orders", "0", "7"], "explain"), needs(["explain", "totals", "ada", "--at", "7"], "explain")
    (set(), {'lake'})
    """  # noqa: E501
    found = {extra for beginning, extra in NEEDS if f"{command} ".startswith(f"{beginning} ")}
    if command == "explain" and "--at" in words:
        found.add("lake")
    if any(words[at : at + 2] == ["--engine", "spark"] for at in range(len(words))):
        found.add("spark")
    return found
