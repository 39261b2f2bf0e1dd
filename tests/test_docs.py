"""The pages are true: blocks marked runnable run, links lead somewhere, and no page mentions where the
project was written.

A block is run when the word `runnable` follows its language. Python blocks of a page are one program, in
order. In console blocks, lines after `$ ` are run and the lines below them are the expected output, `...`
matching any text.

Each page is run in the environment that its own install lines make (tests/support/installations.py), and
shows no command that needs more.

Every Python block is run somewhere. A block with `program=NAME` is a program that needs a broker
(test_page_programs.py). A block with `file=NAME` is a file of a tutorial (test_tutorial.py), or it equals the
file of that name in examples/.
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

from tests.support.installations import Installations, named_extras, with_those_within
from tests.support.page_commands import command_lines, needs, resolved, starts_workers
from tests.support.patience import DEADLINE_S
from tests.support.places import EXAMPLES, ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
        *EXAMPLES.rglob("*.md"),
    ]
)
FOLLOWED = ("tutorial", "tutorial-claims", "tutorial-streams")
"""Pages whose files test_tutorial.py saves and runs."""
SAVED = (*FOLLOWED, "lake")
"""And those of which tests/pipeline/test_lake_page.py does."""

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
    """One fenced block: its language, the words after it, its text."""

    language: str
    words: tuple[str, ...]
    text: str


def blocks(page: str) -> Iterator[Block]:
    for found in _FENCE.finditer(page):
        language, *words = found["info"].split() or [""]
        yield Block(language=language, words=tuple(words), text=found["text"])


def values(block: Block, name: str) -> list[str]:
    """Return the values of *name*= among the words of a block."""
    return [word.partition("=")[2] for word in block.words if word.startswith(f"{name}=")]


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


def run(*command: str, cwd: Path, path: str = "") -> str:
    """Return the output of *command*; it finds the tools of this environment, or those of *path*, and no
    settings.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))
    }
    environment |= {
        "PATH": path or f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
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
def test_runnable_python_runs(page: Path, tmp_path: Path, installations: Installations) -> None:
    (tmp_path / "page.py").write_text(program(page.read_text()))
    run(str(installations.of_page(page).python), "-P", "page.py", cwd=tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page.read_text()))], ids=named)
def test_runnable_commands_print_what_the_page_says(
    page: Path, tmp_path: Path, installations: Installations
) -> None:
    path = installations.of_page(page).path()
    for command, wanted in commands(page.read_text()):
        got = run("bash", "-euo", "pipefail", "-c", command, cwd=tmp_path, path=path)
        assert not differs(wanted, got), f"$ {command}\n--- the page says\n{wanted}\n--- it printed\n{got}"


def imports(page: str) -> str:
    """Return the import statements of the Python blocks of *page*, but those of a file that the page itself
    shows.
    """
    shown = [block for block in blocks(page) if block.language == "python"]
    own = {
        name.removesuffix(".py")
        for block in shown
        for kind in ("file", "program")
        for name in values(block, kind)
    }
    nodes = [node for block in shown for node in ast.walk(ast.parse(block.text))]
    return "\n".join(
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and node.module not in own | {"__future__"})
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "page", [page for page in PAGES if imports(page.read_text()) and not program(page.read_text())], ids=named
)
def test_what_a_page_imports_is_installed(page: Path, tmp_path: Path, installations: Installations) -> None:
    run(str(installations.of_page(page).python), "-P", "-c", imports(page.read_text()), cwd=tmp_path)


def idle_blocks(page: str, *, followed: bool) -> list[str]:
    """Return the first lines of the Python blocks that nothing runs; the files of a page that is *followed*
    are saved and run.
    """

    def is_example(file: str, text: str) -> bool:
        return any(path.read_text() == text for path in EXAMPLES.rglob(file))

    return [
        block.text.partition("\n")[0]
        for block in blocks(page)
        if block.language == "python"
        and "runnable" not in block.words
        and not values(block, "program")
        and not (followed and values(block, "file"))
        and not any(is_example(file, block.text) for file in values(block, "file"))
    ]


def missing_imports(page: str) -> list[str]:
    """Return the names that Python blocks of *page* use and leave to an earlier block to import.

    A reader copies one block. Names that an earlier block defines are part of the page's story.
    """
    found, known = [], set[str]()
    for block in blocks(page):
        if block.language == "python":
            nodes = list(ast.walk(ast.parse(block.text)))
            own = {
                alias.asname or alias.name.partition(".")[0]
                for node in nodes
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            found += sorted({node.id for node in nodes if isinstance(node, ast.Name)} & known - own)
            known |= own
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_python_block_runs_somewhere(page: Path) -> None:
    assert idle_blocks(page.read_text(), followed=page.stem in SAVED) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_python_block_imports_what_it_uses(page: Path) -> None:
    assert missing_imports(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page.read_text(), page) == []


def beyond(page: str) -> list[str]:
    """Return the commands of *page* that its install lines do not bring: those that need another extra, or do
    not exist.
    """
    named, found = named_extras(page), []
    lines = list(command_lines(page))
    if named is None:
        python = any(block.language == "python" for block in blocks(page))
        return ["it names no install line"] if lines or python or starts_workers(page) else []
    brought = with_those_within(named)
    if starts_workers(page) and "worker" not in brought:
        found.append("a worker needs worker")
    for words in lines:
        command = resolved(words)
        found += [f"{command} needs {extra}" for extra in sorted(needs(words, command) - brought)]
    return sorted(set(found))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_names_the_extras_of_all_that_it_shows(page: Path) -> None:
    assert beyond(page.read_text()) == []


def test_there_is_something_to_run() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "create_app" in program(readme)
    assert len(list(commands(readme))) >= 2


@pytest.mark.long
def test_no_file_speaks_of_where_it_was_written() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    ).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_symlink() or not path.is_file() or path.suffix == ".lock":
            continue
        text = path.read_bytes().decode(errors="replace")
        if not _WORKPLACE.search(text):
            continue
        found += [
            f"{name}:{number}: {line[:160]}"
            for number, line in enumerate(text.splitlines(), 1)
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


def test_a_block_that_nothing_runs_is_found() -> None:
    assert idle_blocks(PAGE, followed=True) == ["x = ("]
    page = "```python file=word_count.py\nx = 1\n```\n```python program=ask.py\ny = 1\n```\n"
    assert idle_blocks(page, followed=False) == ["x = 1"]
    assert idle_blocks(page, followed=True) == []


def test_an_import_that_a_block_lacks_is_found() -> None:
    page = "```python\nimport os\nx = os.sep\n```\n```python\nprint(x, os.name)\n```\n"
    assert missing_imports(page) == ["os"]
    assert missing_imports(page.replace("print", "import os\nprint")) == []


@pytest.mark.long
def test_a_page_that_needs_an_extra_that_it_does_not_name_is_found(
    tmp_path: Path, installations: Installations
) -> None:
    shown = "    holdfast replay totals --engine spark\n    faust -A shop worker\n"
    assert beyond(shown) == ["it names no install line"]
    assert beyond("prose only") == []
    assert beyond(f"    pip install .\n{shown}") == [
        "a worker needs worker",
        "replay needs lake",
        "replay needs spark",
    ]
    assert beyond(f"`pip install 'holdfast[worker,spark]'`\n{shown}") == []
    page = tmp_path / "page.md"
    page.write_text("    pip install 'holdfast[lake]'\n```python\nfrom holdfast import create_app\n```\n")
    with pytest.raises(
        AssertionError, match=r"holdfast.agents.app needs faust, .*pip install 'holdfast\[worker\]'"
    ):
        run(str(installations.of_page(page).python), "-c", "from holdfast import create_app", cwd=tmp_path)


def test_broken_links_are_found() -> None:
    assert broken_links(PAGE, ROOT / "page.md") == ["missing.md", "#gone"]


@pytest.mark.parametrize(
    "line",
    ["cd /wo" + "rk/main", "see ../sha" + "red/notes", "from repo1.ma" + "ven.org", "/ro" + "ot/.cache"],
)
def test_the_workplace_is_recognised(line: str) -> None:
    assert _WORKPLACE.search(line)


_PLACE = re.compile(r"`(?P<name>\w+)` in \[[^\]]*\]\((?P<path>[^)]+)\)")


def wrong_answers(page: str) -> list[str]:
    """Return the answers of CONTRIBUTING's quiz that name nothing, or what its file does not define."""
    quiz = page.partition("## Quiz")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in quiz.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 6, f"the quiz has {len(rows)} questions"
    found = []
    for question, answer in rows:
        places = list(_PLACE.finditer(answer))
        if not places or len(places) != len(_LINK.findall(answer)):
            found.append(f"{question.strip()}: write each place as `name` in [file](path)")
        for each in places:
            path, name = ROOT / each["path"], each["name"]
            defined = rf"^ *(?:(?:async )?(?:def|class) {name}\b|{name}(?:: [^=\n]+)? = )"
            if not path.is_file() or not re.search(defined, path.read_text(), re.MULTILINE):
                found.append(f"{question.strip()}: {each['path']} has no {name}")
    return found


def test_the_answers_of_contributings_quiz_are_right() -> None:
    assert wrong_answers((ROOT / "CONTRIBUTING.md").read_text()) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("`RowCodec` in", "`RowCoder` in"),
        ("`COLUMNS` in", "`COLUMN` in"),
        ("](holdfast/kafka/transactions/transactional_client.py)", "](holdfast/kafka/transaction_client.py)"),
        ("`unready` in [", "["),
    ],
)
def test_a_wrong_answer_is_found(right: str, wrong: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert right in page
    assert len(wrong_answers(page.replace(right, wrong, 1))) == 1


DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))


@pytest.mark.parametrize("page", DECISIONS, ids=named)
def test_a_decision_has_a_status_and_says_why_what_and_what_follows(page: Path) -> None:
    text = page.read_text()
    assert re.match(rf"# {int(page.name[:4])}\. .+\n\nStatus: (accepted|superseded by \[\d+\]\(.+\))\n", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.MULTILINE))
    title = text.partition("\n")[0].removeprefix("# ").partition(". ")[2]
    assert f". [{title}](adr/{page.name})" in (ROOT / "docs" / "DESIGN.md").read_text()


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
