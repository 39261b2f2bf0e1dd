"""Arguments that make no sense: every command prints one line, or the usage, and never shows a library's
traceback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cli.test_command_line import holdfast
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process

QUICK = ("request_timeout_s=2", "session_timeout_s=2", "heartbeat_interval_s=0.5")
NOWHERE = ("--bootstrap", "127.0.0.1:1", *(word for each in QUICK for word in ("--set", each)))
ENDLESS = "9" * 5_000


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        (
            "lacks",
            "import missing_package",
            "lacks.py:1: ModuleNotFoundError: No module named 'missing_package'",
        ),
        ("open", "x = (", "SyntaxError: '(' was never closed (open.py, line 1)"),
        ("zero", "\n1/0", "zero.py:2: ZeroDivisionError"),
        ("worse:make", "def make(settings):\n    raise ValueError('no')", "worse.py:2: ValueError: no"),
        ("wrong:make", "def make(): ...", "cannot be called with the settings"),
    ],
)
def test_the_fault_of_a_module_is_one_line(module: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / f"{module.partition(':')[0]}_shop.py").write_text(text)
    named = module.replace(":", "_shop:") if ":" in module else f"{module}_shop"
    done = holdfast("-A", named, *NOWHERE, "topics", "list", folder=tmp_path)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith("holdfast: -A ")) == (2, True)
    assert says in line.replace("_shop.py", ".py")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-A", "..shop", "topics", "list"],
        ["explain", "words", "0", "9" * 20],
        ["explain", "words", "9" * 20, "0"],
        ["explain", "--segment", ".", "--from", "9" * 20],
        ["explain", "words", "0", ENDLESS],
        ["groups", "reset-offsets", "g", "--topic", f"words:{ENDLESS}", "--to-earliest"],
        ["groups", "reset-offsets", "g", "--topic", "words", "--to-offset", "9" * 20],
        ["groups", "reset-offsets", "g", "--topic", "words", "--shift-by", "-" + "9" * 20],
        ["groups", "pause", "g", "--for", f"{ENDLESS}s"],
        ["groups", "simulate", "--topic", f"orders:{ENDLESS}", "--member", "anna"],
        ["replay", "totals", "--until", f"0:{ENDLESS}"],
        ["tables", "repair", "totals", "--applied", f"0:{ENDLESS}"],
        ["config", "--config", "."],
        ["config", "--config", "\n"],
    ],
    ids=lambda arguments: " ".join(each[:24] for each in arguments),
)
def test_numbers_and_names_that_cannot_be_are_refused_as_usage(arguments: list[str], tmp_path: Path) -> None:
    done = holdfast(*NOWHERE, *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) in (1, 4), done.stderr  # a line of ours, or the usage
    assert "Traceback" not in done.stderr


@pytest.mark.variants("command1", "command2", "command3")
@pytest.mark.parametrize(
    "command",
    [["replay", "claims"], ["verify", "claims"], ["audit", "outbox", "--outbox", "o"], ["groups", "list"]],
)
def test_a_broker_that_is_not_there_is_one_line_and_not_librdkafkas_too(
    command: list[str], tmp_path: Path
) -> None:
    done = holdfast(*NOWHERE, *command, folder=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("holdfast: ")


@pytest.mark.parametrize(
    ("ending", "code"),
    [("| true; exit ${PIPESTATUS[0]}", (0, 1)), (">&-", (0,)), (">/dev/full", (1,)), ("2>&-", (0,))],
)
def test_a_reader_that_is_gone_and_a_full_disk_are_no_traceback(
    ending: str, code: tuple[int, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -P -m holdfast.cli config {ending}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in code, done.stderr
    assert done.stderr == ("holdfast: No space left on device\n" if "full" in ending else "")


def test_ctrl_c_ends_a_command_that_waits_without_a_traceback(tmp_path: Path) -> None:
    waiting = [
        "-v",
        "--bootstrap",
        "127.0.0.1:1",
        "--set",
        "request_timeout_s=300",
        "--set",
        "kafka.log_level=7",
        "groups",
        "list",
    ]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", *waiting, "-v"],
            cwd=tmp_path,
            stdout=said,
            stderr=said,
            # A process that was started in the background ignores SIGINT, these tests perhaps, and hands that
            # on.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  takes no lock
        )
        try:
            wait_for(
                "it to look for the broker",
                lambda: "Connection refused" in (tmp_path / "said").read_text() or None,
                DEADLINE_S,
            )
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(DEADLINE_S) == 130, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in (tmp_path / "said").read_text()
