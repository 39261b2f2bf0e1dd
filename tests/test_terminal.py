"""The output of commands on a terminal that lacks letters, or takes no more: all of it, escaped, or one
line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.__main__ import main
from holdfast.cli.output import Output, OutputRow, note, show
from holdfast.cli.tables.reading import _json
from holdfast.cli.worker.launching import Launch
from holdfast.cli.worker.supervising import WorkerProcesses
from holdfast.logs import VisibleFormatter, use_format
from holdfast.terminal import escape_what_is_not_shown
from tests.support.patience import DEADLINE_S

Written = tuple[bytes, bytes]
KEYS = ("a", "e\u0301", "\U0001f600", "é€", "\ud800", "\x1b[2J\u202e", "line\nholdfast: done", "z")
ROWS: list[OutputRow] = [{"key": key, "value": {key: at}} for at, key in enumerate(KEYS)]
ENCODINGS = ("ascii", "cp1252", "latin-1", "cp437", "utf-8")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Written]:
    """Return a function that runs something with streams of an encoding, and gives the bytes of both."""

    def run(encoding: str, work: Callable[[], object], errors: str = "strict") -> Written:
        streams = [TextIOWrapper(BytesIO(), encoding=encoding, errors=errors) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            escape_what_is_not_shown()
            try:
                work()
            except SystemExit:
                pass
            for each in streams:
                each.flush()
        out, err = (each.buffer.getvalue() for each in streams)
        return out, err

    return run


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_table_is_whole_and_in_columns_where_letters_are_missing(
    on: Callable[..., Written], encoding: str
) -> None:
    out, _ = on(encoding, lambda: show(ROWS, ("key", "value"), Output.TABLE))
    head, *lines = out.decode(encoding).splitlines()
    assert len(lines) == len(ROWS)
    column = head.index("VALUE")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines), lines
    assert "\x1b" not in out.decode(encoding)
    if encoding != "utf-8":
        assert r"e\u0301" in out.decode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_says_the_same_in_every_encoding(on: Callable[..., Written], encoding: str) -> None:
    out, _ = on(encoding, lambda: show(ROWS, ("key",), Output.JSON))
    assert json.loads(out.decode(encoding)) == ROWS


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lines_of_both_ways_to_write_come_in_turn(on: Callable[..., Written], encoding: str) -> None:
    """click writes UTF-8 past a stdout that calls itself ASCII."""

    def write() -> None:
        print("é 1")
        typer.echo("e\u0301 2")
        print("é 3")
        note("e\u0301 4")
        typer.echo("é 5", err=True)

    out, err = on(encoding, write)
    assert [line[-1] for line in out.decode(encoding).splitlines()] == ["1", "2", "3"]
    assert [line[-1] for line in err.decode(encoding).splitlines()] == ["4", "5"]


@pytest.mark.parametrize("arguments", [["--help"], ["tables", "naïve"], ["nö"], ["config", "--set", "ö=ß"]])
def test_help_and_errors_are_ascii_where_the_terminal_is(
    on: Callable[..., Written], arguments: list[str]
) -> None:
    out, err = on("ascii", lambda: main(arguments))
    assert (out + err).isascii()
    assert out + err
    assert b"Traceback" not in err


def test_who_asks_for_another_way_gets_it(on: Callable[..., Written]) -> None:
    out, _ = on("ascii", lambda: show(ROWS[:2], ("key",), Output.TABLE), errors="replace")
    assert out.splitlines()[2] in (b"e?", rb"e\u0301")
    assert on("ascii", lambda: print("e\u0301"), errors="replace")[0] == b"e?\n"


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_worker_writes_its_banner_on_every_terminal(encoding: str) -> None:
    code = (
        "import faust; from holdfast.agents.faust.process.leaving import Worker\n"
        "import click; Worker(faust.App('x')); click.echo('\u0192a\u00b5S\u2020 e\u0301'); print('e\u0301')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, rb"\u0301" in done.stdout) == (0, True), done.stderr
    done.stdout.decode(encoding)


def test_a_row_is_json_also_where_it_has_what_no_terminal_should_get() -> None:
    for row in ({"a": "\x9b2J\u202e\u2028é"}, {"a": "\ud800", "b": 1}, ["\x1b"]):
        assert _json(row).isprintable()
        assert json.loads(_json(row)) == row


# -- logs


@pytest.fixture
def logged() -> Iterator[Callable[..., str]]:
    """Return the logged text."""
    root, handler, before = logging.getLogger(), None, logging.getLogger().handlers[:]
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root.handlers[:] = [handler]

    def log(*arguments: Any, **more: Any) -> str:
        use_format("text")
        use_format("text")
        logging.getLogger("shop").error(*arguments, **more)
        return stream.getvalue()

    try:
        yield log
    finally:
        root.handlers[:] = before


HOSTILE = "x\x1b[31m\nERROR forged\u202e"


def test_a_field_begins_no_line_of_a_log(logged: Callable[..., str]) -> None:
    assert logged("refused %(key)s of %(at)d", {"key": HOSTILE, "at": 7}) == (
        "ERROR refused x\\x1b[31m\\nERROR forged\\u202e of 7\n"
    )


@pytest.mark.parametrize("arguments", [("key %s", HOSTILE), ("key %r", HOSTILE), (HOSTILE,)])
def test_no_line_of_a_log_moves_a_cursor(logged: Callable[..., str], arguments: tuple[str, ...]) -> None:
    assert logged(*arguments).replace("\n", "").isprintable()


def test_the_lines_of_a_traceback_stay_lines(logged: Callable[..., str]) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        text = logged("it failed: %(error)s", {"error": error}, exc_info=True)
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") > 4
    assert "ERROR it failed: x\\x1b[31m\n" in text


def test_other_formats_stay_as_they_are() -> None:
    plain = logging.makeLogRecord({"msg": "a %s %.1f", "args": ("b", 1.25)})
    formatter = VisibleFormatter(logging.Formatter("%(message)s"))
    assert formatter.format(plain) == "a b 1.2"
    assert (plain.args, plain.message) == (("b", 1.25), "a b 1.2"), "the record is also others'"


# -- what takes no more


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_the_exit_code_shows_an_error_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with pytest.raises(SystemExit) as ended:
            main(["config", "--set", "nothing=1"])
        assert ended.value.code == 2
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_workers_whose_output_is_not_read_end_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds: a supervisor that stopped to read would keep its worker for ever."""
    program = "import os, sys, signal; print(('x' * 100 + '\\n') * 20_000); sys.stdout.flush()"
    program += "; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    launch = Launch(name="worker-1", arguments=(sys.executable, "-c", program), variables={})
    told = list[str]()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        supervisor = WorkerProcesses([launch], grace_s=DEADLINE_S, named=True, tell=told.append)
        assert asyncio.run(asyncio.wait_for(supervisor.run(), DEADLINE_S)) == 0
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    assert [each for each in told if "takes no lines" in each] == told
    assert len(told) == 1
