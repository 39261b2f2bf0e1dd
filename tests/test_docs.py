"""The pages tell the truth: what is marked runnable runs, links lead somewhere, and nothing speaks of where
the project was written.

A block is run when the word `runnable` stands behind its language. Python blocks of a page are one program,
in order. In console blocks, lines behind `$ ` are run and the lines below them are what they print, `...`
standing for anything.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.places import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
DEADLINE_S = 60

_FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$", re.MULTILINE)
# Written so that this file does not name them.
_WORKPLACE = re.compile(
    r"/wo[r]k/|/fa[r]m/|/ro[o]t/|\.\./sha[r]ed|steering re[p]o|suba[g]ent|\bCE[O]\b"
    r"|repo1?\.ma[v]en|proxy\.go[l]ang|registry\.np[m]js|files\.python[h]osted",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: its language, the words behind it, its text."""

    language: str
    words: tuple[str, ...]
    text: str


def blocks(page: str) -> Iterator[Block]:
    for found in _FENCE.finditer(page):
        language, *words = found["info"].split() or [""]
        yield Block(language=language, words=tuple(words), text=found["text"])


def program(page: str) -> str:
    """Return the page's runnable Python as one program."""
    return "\n".join(
        block.text for block in blocks(page) if block.language == "python" and "runnable" in block.words
    )


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yield (command, what it prints) of the page's runnable console blocks."""
    for block in blocks(page):
        if block.language == "console" and "runnable" in block.words:
            assert block.text.startswith("$ "), f"a console block begins with a command: {block.text!r}"
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                yield command, printed


def run(*command: str, cwd: Path) -> str:
    """Return what *command* printed; it finds the tools of this environment and no settings."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def differs(wanted: str, got: str) -> bool:
    return not doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def anchors(page: str) -> set[str]:
    return {slug(heading["text"]) for heading in _HEADING.finditer(_FENCE.sub("", page))}


def broken_links(page: str, path: Path) -> list[str]:
    """Return the links of *page*, which lies at *path*, that lead nowhere here."""
    text, found = _FENCE.sub("", page), []
    for target in (link["target"] for link in _LINK.finditer(text)):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        aim = path.parent / place
        if (place and not aim.exists()) or (
            anchor and anchor not in anchors(aim.read_text() if place else page)
        ):
            found.append(target)
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if program(page.read_text())], ids=named)
def test_runnable_python_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(program(page.read_text()))
    run(sys.executable, "-P", "page.py", cwd=tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page.read_text()))], ids=named)
def test_runnable_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    for command, wanted in commands(page.read_text()):
        got = run("bash", "-euo", "pipefail", "-c", command, cwd=tmp_path)
        assert not differs(wanted, got), f"$ {command}\n--- the page says\n{wanted}\n--- it printed\n{got}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_that_is_only_shown_is_python_too(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language == "python":
            compile(block.text, named(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page.read_text(), page) == []


def test_there_is_something_to_run() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "create_app" in program(readme)
    assert len(list(commands(readme))) >= 2


def test_no_file_speaks_of_where_it_was_written() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    ).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_symlink() or not path.is_file() or path.suffix == ".lock":
            continue
        lines = path.read_bytes().decode(errors="replace").splitlines()
        found += [
            f"{name}:{number}: {line[:160]}"
            for number, line in enumerate(lines, 1)
            if _WORKPLACE.search(line)
        ]
    assert not found, "\n".join(found)


# -- the checks above can fail

PAGE = """# A page

## What `it` does, and why

```python runnable
x = 1
```
See [the code](README.md), [above](#what-it-does-and-why), [nothing](missing.md), [nowhere](#gone), [elsewhere](https://example.org/x).

```python
x = (
```

````console runnable
$ echo one; echo two
one
...
$ true
````

```python runnable
assert x == 2
```
"""


def test_a_page_is_read_as_it_is_meant() -> None:
    assert program(PAGE) == "x = 1\n\nassert x == 2\n"
    assert list(commands(PAGE)) == [("echo one; echo two", "one\n...\n"), ("true", "")]


def test_a_program_that_fails_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(program(PAGE))
    with pytest.raises(AssertionError, match="exited with 1"):
        run(sys.executable, "-P", "page.py", cwd=tmp_path)


def test_a_command_that_prints_something_else_is_found() -> None:
    assert not differs("one\n...\n", "one\ntwo\nthree\n")
    assert differs("one\n", "one\ntwo\n")
    assert differs("", "one\n")


def test_broken_links_are_found() -> None:
    assert broken_links(PAGE, ROOT / "page.md") == ["missing.md", "#gone"]


@pytest.mark.parametrize(
    "line",
    ["cd /wo" + "rk/main", "see ../sha" + "red/notes", "from repo1.ma" + "ven.org", "/ro" + "ot/.cache"],
)
def test_the_workplace_is_recognised(line: str) -> None:
    assert _WORKPLACE.search(line)


_PLACE = re.compile(r"`(?P<name>\w+)` in \[[^\]]*\]\((?P<path>[^)]+)\)")


def test_what_contributing_says_where_it_is_is_there() -> None:
    found = [
        (each["name"], ROOT / each["path"])
        for each in _PLACE.finditer((ROOT / "CONTRIBUTING.md").read_text())
    ]
    assert len(found) >= 3
    for name, path in found:
        assert re.search(rf"^ *(?:async )?(?:def|class) {name}\b", path.read_text(), re.MULTILINE), (
            f"{path.name} has no {name}"
        )


def glossary() -> list[str]:
    """Return the words that docs/GLOSSARY.md explains, in order."""
    lines = (ROOT / "docs" / "GLOSSARY.md").read_text().splitlines()
    return [
        line.split("|")[1].strip()
        for line in lines
        if line.startswith("| ") and not line.startswith("| Word ")
    ]


def test_the_glossary_is_short_and_explains_each_word_once() -> None:
    words = glossary()
    assert len(words) == len(set(words)) <= 60
    text = "".join(path.read_text() for path in PAGES if path.name != "GLOSSARY.md").lower()
    assert [word for word in words if word not in text] == []
