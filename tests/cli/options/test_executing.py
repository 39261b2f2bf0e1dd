"""One word, `--execute`, changes something; the old words are accepted, and say what becomes of them."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from holdfast.cli.groups.groups import app as groups
from holdfast.cli.options.executing import is_executed
from holdfast.cli.outbox.outbox import app as outbox
from holdfast.cli.pipeline.pipeline import app as pipeline
from holdfast.cli.tables.tables import app as tables
from holdfast.cli.topics.reset import app as reset


@pytest.mark.parametrize(
    ("execute", "dry_run", "executed", "noted"),
    [
        (True, False, True, False),
        (False, True, False, False),
        (False, False, True, True),
        (True, True, True, False),
    ],
)
def test_a_command_that_needed_no_word_says_that_it_will(
    execute: bool, dry_run: bool, executed: bool, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_executed("vacuum", execute=execute, dry_run=dry_run) is executed
    assert ("vacuum without --execute only shows" in capsys.readouterr().err) is noted


def options_of(app: typer.Typer) -> set[str]:
    found: set[str] = set()
    for command in app.registered_commands:
        assert command.callback is not None
        for hint in get_type_hints(command.callback, include_extras=True).values():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, OptionInfo) and not option.hidden:
                    found.update((str(option.default), *(option.param_decls or ())))
    return found


@pytest.mark.parametrize("app", [groups, outbox, pipeline, tables, reset], ids=lambda _: "app")
def test_no_command_has_another_word_of_its_own(app: Any) -> None:
    shown = options_of(app)
    assert "--dry-run" not in shown
    assert "--yes" not in shown or "--execute" in shown
