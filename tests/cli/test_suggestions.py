"""A mistyped command is answered with the commands that it may mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from holdfast.cli.__main__ import COMMANDS, app, main
from holdfast.cli.command_group import CommandGroup


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("pipline", "No such command 'pipline'. Did you mean 'pipeline'?"),
        ("topic list", "No such command 'topic'. Did you mean 'topics'?"),
        ("nothing-like-it", "No such command 'nothing-like-it'."),
        ("pipeline lnd", "No such command 'lnd'. Did you mean 'land'?"),
        ("pipeline statsu", "No such command 'statsu'. Choose from 'check', 'fold'"),
        ("outbox statsu", "No such command 'statsu'. Did you mean 'status'?"),
        ("outbox quarantine lsit", "No such command 'lsit'. Did you mean 'list'?"),
    ],
)
def test_a_mistyped_command_is_answered_with_those_that_are_near(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    assert f"Error: {told}" in " ".join(capsys.readouterr().err.split())


def test_a_command_that_nothing_is_near_is_answered_briefly(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["z" * 100_000])
    assert len(capsys.readouterr().err) < 1_000


def test_every_group_suggests_its_commands() -> None:
    root: Any = typer.main.get_command(app)
    context: Any = typer.Context(root)
    nouns = [root.get_command(context, name) for name in COMMANDS]
    plain = [group.name for group in _groups([root, *nouns]) if not isinstance(group, CommandGroup)]
    assert plain == []


def _groups(commands: list[Any]) -> Iterator[TyperGroup]:
    for each in commands:
        if isinstance(each, TyperGroup):
            yield each
            yield from _groups([*each.commands.values()])
