"""Completion of the command line, as README describes it: in a real bash, and by the scripts for zsh and
fish.
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.cli.__main__ import main
from tests.support.installations import Installation, Installations
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def light(installations: Installations) -> Installation:
    return installations.of(())


def offered(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the completions that bash gets for the last word of *line*."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert not ended.value.code
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("holdfast to", ["topics", "topology"]),
        ("holdfast -A shop topics ", ["list", "create", "check", "describe"]),
        ("holdfast topics create -A shop --pa", ["--partitions"]),
        ("holdfast groups reset-offsets billing --to-d", ["--to-datetime"]),
        ("holdfast -o ", ["table", "json"]),
        ("holdfast -A shop worker -l ", ["debug", "info", "warning", "error", "critical"]),
        ("holdfast -A shop replay totals --engine ", ["auto", "local", "spark"]),
        ("holdfast nonsense --x", []),
    ],
)
def test_commands_options_and_choices_are_offered(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(line, monkeypatch, capsys) == words


@pytest.mark.long
def test_every_command_is_offered_without_being_imported(light: Installation, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom holdfast.cli.__main__ import COMMANDS, main\ntry: main([])\nexcept SystemExit:"
        " pass\nprint(len(COMMANDS), *(each for each in ('rich', 'confluent_kafka', 'sqlalchemy') if each in"
        " sys.modules))"
    )
    variables = {"COMP_WORDS": "holdfast ", "COMP_CWORD": "1", "_HOLDFAST_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [str(light.python), "-P", "-c", code],
        env={"PATH": light.path(), **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    *offers, last = done.stdout.split("\n")[:-1]
    assert last.split() == [str(len(offers))]


def typed(shell: list[str], keys: list[tuple[str, str]], path: str, folder: Path) -> None:
    """Type *keys* into a shell on a terminal, and wait after each for what it is to bring; fails with all
    that was shown.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(
            shell[0],
            shell,
            {"PATH": path, "HOME": str(folder), "PS1": "$ ", "TERM": "dumb", "COLUMNS": "200"},
        )
    shown = b""
    try:
        for text, wanted in keys:
            os.write(terminal, text.encode())
            until_s = time.monotonic() + DEADLINE_S
            while wanted.encode() not in shown:
                assert time.monotonic() < until_s, f"no {wanted!r}:\n{shown.decode(errors='replace')}"
                if select.select([terminal], [], [], 0.5)[0]:
                    shown += os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.process
def test_a_real_bash_completes_after_readmes_line(light: Installation, tmp_path: Path) -> None:
    line = 'eval "$(_HOLDFAST_COMPLETE=source_bash holdfast)"'
    assert f"`{line}`" in (ROOT / "README.md").read_text()
    keys = [
        (f'{line}; echo rea"d"y\n', "\nready"),
        ("holdfast topo\t", "holdfast topology "),
        ("\x15holdfast topics cr\t", "topics create "),  # \x15 empties the line
    ]
    typed(["bash", "--norc", "--noprofile", "-i"], keys, light.path(), tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_understands_its_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert f"source_{shell}" in (ROOT / "README.md").read_text()
    monkeypatch.setenv("_HOLDFAST_COMPLETE", f"source_{shell}")
    with pytest.raises(SystemExit):
        main([])
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert f"_HOLDFAST_COMPLETE=complete_{shell}" in script.read_text()
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n", str(script)], check=True, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("shell", "variables", "told"),
    [
        ("zsh", {}, '_arguments \'*: :(("topology":"Print the graph of topics and processors."))\'\n'),
        (
            "fish",
            {"_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "topology\tPrint the graph of topics and processors.\n",
        ),
    ],
)
def test_zsh_and_fish_get_commands_with_their_help(
    shell: str,
    variables: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"_TYPER_COMPLETE_ARGS": "holdfast topol", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_HOLDFAST_COMPLETE", f"complete_{shell}")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == told
