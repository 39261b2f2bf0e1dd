"""The output of commands: tables for people and for pipes, JSON for programs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.output import Output, OutputRow, note, show
from tests.support.patience import DEADLINE_S

RECORDS: list[OutputRow] = [
    {
        "topic": "orders",
        "partition_count": 12,
        "leader": None,
        "configs": {"cleanup.policy": "compact"},
        "note": "long " * 60,
    },
    {"topic": "[bold]x[/bold]", "partition_count": 3, "leader": 1, "configs": {}, "note": ""},
]


def test_a_table_has_kafkas_heads_and_a_dash_for_the_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    show(RECORDS, ("topic", "partition_count", "leader", "configs"), Output.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC           PARTITION-COUNT  LEADER  CONFIGS",
        "orders                       12       -  cleanup.policy=compact",
        "[bold]x[/bold]                3       1  -",
    ]


def test_nothing_is_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show(RECORDS, ("topic", "note"), Output.TABLE)
    assert ("long " * 60).strip() in capsys.readouterr().out


def test_an_empty_table_is_its_heads_and_empty_json_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    show([], ("topic", "leader"), Output.TABLE)
    assert capsys.readouterr().out == "TOPIC  LEADER\n"
    show([], ("topic",), Output.JSON)
    assert capsys.readouterr().out == "[]\n"


def test_json_carries_every_key_with_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    show(RECORDS, ("topic",), Output.JSON)
    assert json.loads(capsys.readouterr().out) == RECORDS


HOSTILE = "orders\x1b[2J\nfake-group  OK\u202e\x9b\ud800"


def test_names_that_others_chose_move_no_cursor_and_begin_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"group": HOSTILE, "by": {HOSTILE: [HOSTILE]}}], ("group", "by"), Output.TABLE)
    note(f"{HOSTILE} is behind")
    told = capsys.readouterr()
    escaped = r"orders\x1b[2J\nfake-group  OK\u202e\x9b\ud800"
    assert told.out.splitlines()[1:] == [f"{escaped}  {escaped}={escaped}"]
    assert told.err == "orders\\x1b[2J\nfake-group  OK\\u202e\\x9b\\ud800 is behind\n", (
        "our notes may have lines"
    )
    show([{"group": HOSTILE}], ("group",), Output.JSON)
    written = capsys.readouterr().out
    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == [{"group": HOSTILE}]


@pytest.mark.process
def test_a_terminal_gets_the_same_cells_with_brackets_untouched(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    code = (
        "from holdfast.cli.output import *; show([{'topic': '[bold]x[/bold]', 'n': 1}], ('topic', 'n'),"
        " Output.TABLE)"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            stdout=follower,
            env=os.environ | {"TERM": "xterm"},
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0
        seen = os.read(leader, 65_536).decode()
    finally:
        os.close(leader)
        os.close(follower)
    assert "\x1b[1m" in seen, "the head is bold on a terminal"
    assert "[bold]x[/bold]" in seen
