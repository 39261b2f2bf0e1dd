"""docs/tutorial.md, docs/tutorial-claims.md and docs/tutorial-streams.md, each followed to the letter in one
shell: its files saved, its commands run in order in the environment that it says to install, what they print
compared.

Only the ports differ: those that the page takes for free are exchanged for free ones.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.ports import free_ports
from tests.support.installations import Installations
from tests.support.parts import QUICK_JAVA
from tests.support.patience import DEADLINE_S, SCENARIO_S, VAIN_S
from tests.support.places import ROOT, example_file
from tests.test_docs import FOLLOWED, Block, blocks, differs

PAGES = {name: ROOT / "docs" / f"{name}.md" for name in FOLLOWED}
PORTS = ("9092", "6066", "6067")
MARK = "-- here ends the output of a command --"


def with_ports(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"(?<=[:= ])(9092|6066|6067)\b", lambda found: ports[found[1]], text)


def session(page: str) -> list[tuple[str, str]]:
    """Return (command, what it prints) of the page's session."""
    found = []
    for block in blocks(page):
        if block.language == "console" and "session" in block.words:
            assert block.text.startswith("$ "), f"a session begins with a command: {block.text!r}"
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                found.append((command, printed))
    return found


def files(page: str) -> dict[str, str]:
    """Return the files that the page says to save."""

    def name(block: Block) -> str | None:
        return next((word.removeprefix("file=") for word in block.words if word.startswith("file=")), None)

    return {path: block.text for block in blocks(page) if (path := name(block)) is not None}


def script(commands: list[tuple[str, str]], ports: dict[str, str]) -> str:
    """Return a shell program that runs *commands* and marks where the output of each ends."""
    told = [f"{with_ports(command, ports)}\necho; echo '{MARK}'" for command, _ in commands]
    return "\n".join(["set -e -o pipefail", *told, ""])


def follow(
    folder: Path, commands: list[tuple[str, str]], ports: dict[str, str], path: str = os.environ["PATH"]
) -> str:
    """Run the commands of *path* in *folder*; return what they printed. Whatever they started and left is
    ended.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "PYTHON", "KAFKA_", "F_"))
    }
    environment |= {
        "PATH": path,
        "COLUMNS": "100",
        "NO_COLOR": "1",
        **QUICK_JAVA,
    }
    with (folder / "errors.log").open("w") as errors:
        shell = subprocess.Popen(
            ["bash", "-c", script(commands, ports)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        in_time = True
        try:
            printed, _ = shell.communicate(timeout=SCENARIO_S)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)  # the workers are its children, and of its group
            except ProcessLookupError:
                pass
            shell.wait(DEADLINE_S)
            if not in_time:
                printed, _ = shell.communicate(timeout=DEADLINE_S)
            if (cluster := Cluster.find(folder / ".holdfast" / "broker")) is not None:
                cluster.purge()
    assert in_time, (
        f"not through within {SCENARIO_S:g} s, after {printed.count(MARK)}"
        f" commands\n{printed[-2_000:]}\n{logs(folder)}"
    )
    assert shell.returncode == 0, f"{printed[-2_000:]}\n{logs(folder)}"
    return printed


def logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()[-3_000:]}" for path in sorted(folder.glob("*.log")))


@pytest.mark.variants("tutorial-claims", "tutorial-streams")
@pytest.mark.kafka
@pytest.mark.parametrize("name", PAGES)
def test_the_tutorial_does_what_it_says(name: str, tmp_path: Path, installations: Installations) -> None:
    page, installed = PAGES[name].read_text(), installations.of_page(PAGES[name])
    ports = dict(zip(PORTS, map(str, free_ports(3)), strict=True))
    for file, text in files(page).items():
        (tmp_path / file).write_text(with_ports(text, ports))
    with (tmp_path / "holdfast.toml").open("a") as settings:
        settings.write(
            f'web_port = {ports["6066"]}\n[kafka]\n"bootstrap.servers" = "127.0.0.1:{ports["9092"]}"\n'
        )
    commands = session(page)
    assert len(commands) > 20
    printed = follow(tmp_path, commands, ports, installed.path()).split(f"\n{MARK}\n")
    for (command, wanted), got in zip(commands, printed, strict=False):
        assert not differs(with_ports(wanted, ports), got), (
            f"$ {command}\n--- the page says\n{wanted}\n--- it printed\n{got}\n{logs(tmp_path)}"
        )
    assert len(printed) == len(commands) + 1


@pytest.mark.parametrize(
    ("name", "file"),
    [("tutorial", "shop.py"), ("tutorial-claims", "billing.py"), ("tutorial-streams", "word_count.py")],
)
def test_the_program_of_the_tutorial_is_the_one_among_the_examples(name: str, file: str) -> None:
    assert files(PAGES[name].read_text())[file] == example_file(file).read_text()


# -- the checks can fail


@pytest.mark.process
def test_a_session_that_fails_or_hangs_or_prints_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "```console session\n$ echo one\ntwo\n$ false\n```\n"
    assert session(page) == [("echo one", "two\n"), ("false", "")]
    with pytest.raises(AssertionError, match="one"):
        follow(tmp_path, session(page), {})
    for within_s in (0.5, *VAIN_S):
        monkeypatch.setattr("tests.test_tutorial.SCENARIO_S", within_s)
        with pytest.raises(AssertionError, match=r"after \d commands") as late:
            follow(tmp_path, [("echo one", ""), ("sleep 600", "")], {})
        if "after 1 commands" in str(late.value):  # a busy machine may not have come so far in half a second
            break
    assert "after 1 commands" in str(late.value)
    assert differs("two\n", "one\n")
