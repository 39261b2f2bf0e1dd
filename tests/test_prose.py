"""Docstrings, comments, log lines and test titles use plain English: no words of `tests.support.prose.WORDS`.

tests/testdata/prose.toml has the number of findings that each package may still have; a package that is not
named there has none. The test fails if a count rises, and if it has fallen and the ceiling was not lowered.

    PYTHONPATH=. .venv/bin/python -P -m tests.test_prose holdfast/kafka    prints a package's findings
    PYTHONPATH=. .venv/bin/python -P -m tests.test_prose --lower           lowers the ceilings to the counts
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from tests.support.places import ROOT, TESTDATA
from tests.support.prose import ALLOWED, OPENING, WORDS, Finding, findings

ROOMS = ("holdfast", "agents", "tables", "outbox", "pipeline", "examples", "tests")
CEILINGS = TESTDATA / "prose.toml"
RULE = {"tests/support/prose.py", "tests/test_prose.py"}
"""These files quote the words."""


def package(path: str) -> str:
    """Return the package by which *path* is counted: its two uppermost folders, three below holdfast/core."""
    folders = path.split("/")[:-1]
    return "/".join(folders[: 3 if folders[:2] == ["holdfast", "core"] else 2])


def all_findings(only: str = "") -> list[Finding]:
    """Return the findings in each file whose path begins with *only*."""
    found = []
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path in RULE or not path.startswith(only) or any(each.is_symlink() for each in file.parents):
                continue
            found += findings(path, file.read_text(encoding="utf-8"), titles=room == "tests")
    return found


def ceilings() -> dict[str, int]:
    allowed: dict[str, int] = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))["ceilings"]
    return allowed


def complaints(found: Iterable[Finding], allowed: Mapping[str, int]) -> list[str]:
    """Return a line for each package whose count differs from *allowed*, with its findings if it rose."""
    listed: dict[str, list[Finding]] = {name: [] for name in allowed}
    for each in found:
        listed.setdefault(package(each.path), []).append(each)
    lines = []
    for name, its in sorted(listed.items()):
        ceiling = allowed.get(name, 0)
        if len(its) > ceiling:
            lines += [f"{name}: {len(its)} findings, at most {ceiling} are allowed; reword:", *map(str, its)]
        elif len(its) < ceiling:
            lines.append(f"{name}: {len(its)} findings; lower its ceiling from {ceiling} with --lower")
        elif not ceiling and name in allowed:
            lines.append(f"{name}: no findings; remove it from {CEILINGS.name}")
    return lines


@pytest.mark.long
def test_no_package_has_other_findings_than_its_ceiling_allows() -> None:
    found = complaints(all_findings(), ceilings())
    assert found == [], "\n".join(found)


def planted(count: int) -> list[Finding]:
    return [Finding("holdfast/core/kafka/a.py", line, "told", "reported") for line in range(count)]


@pytest.mark.parametrize(
    ("count", "allowed", "complaint"),
    [
        (3, {"holdfast/core/kafka": 2}, "holdfast/core/kafka: 3 findings, at most 2 are allowed"),
        (1, {}, "holdfast/core/kafka: 1 findings, at most 0 are allowed"),
        (1, {"holdfast/core/kafka": 2}, "holdfast/core/kafka: 1 findings; lower its ceiling from 2"),
        (0, {"holdfast/core/kafka": 2}, "holdfast/core/kafka: 0 findings; lower its ceiling from 2"),
        (0, {"holdfast/core/kafka": 0}, "holdfast/core/kafka: no findings; remove it"),
    ],
)
def test_a_count_that_differs_from_its_ceiling_fails(
    count: int, allowed: dict[str, int], complaint: str
) -> None:
    assert complaints(planted(count), allowed)[0].startswith(complaint)


def test_a_count_at_its_ceiling_passes() -> None:
    assert complaints(planted(2), {"holdfast/core/kafka": 2}) == []


def shown(source: str, *, titles: bool = False) -> list[tuple[int, str]]:
    return [(each.line, each.word) for each in findings("a.py", source, titles=titles)]


SENTENCES = (
    "The reader is told.",
    "It tells the owner.",
    "Once it is heard.",
    "The partition goes on.",
    "It stands there.",
    "A line for whoever reads it.",
    "Nobody reads it.",
    "Somebody reads it.",
    "Those who read it.",
    "A line for who reads it.",
    "It is read anew.",
    "Meanwhile it waits.",
    "A table beside it.",
    "The processors behind it.",
    "It reads what is there.",
    "Each place has one.",
    "The rows of others.",
    "The fold of several.",
    "If none has it.",
    "There is nothing that reads it.",
    "Return what it read.",
)


def test_each_word_is_found_in_a_sentence_of_its_own() -> None:
    found = [[each.instead for each in findings("a.py", f'"""{text}"""')] for text in SENTENCES]
    assert found == [[word.instead] for word in WORDS]


@pytest.mark.parametrize("word", ["What", "How", "Which", "Where", "Whether", "Who", "Whose", "Whoever"])
def test_a_docstring_does_not_open_with_a_riddle(word: str) -> None:
    found = findings("a.py", f'def a():\n    """{word} it does."""\n')
    assert [each.instead for each in found if each.word == word and each.instead == OPENING.instead]


def test_a_sentence_after_the_first_has_a_subject() -> None:
    assert shown('"""The owner.\n\nIs read again. Must it wait? May be empty."""') == [(3, "Is"), (3, "May")]
    assert shown('"""Is read again by each owner."""') == []


def test_comments_log_lines_attributes_and_titles_are_prose() -> None:
    assert shown("a = 1  # is read anew\n") == [(1, "anew")]
    assert shown("# The lines of one\n# comment: what\n# is read.\n") == [(2, "what is")]
    assert shown('logger.info("partition %(told)s goes on", {"told": "told"})\n') == [(1, "goes on")]
    assert shown('self._logger.log(level, "it " "goes on")\n') == [(1, "goes on")]
    assert shown('a: int\n"""Where it begins."""\n') == [(2, "Where")]
    assert shown("def test_what_is_told(): ...\n", titles=True) == [(1, "told"), (1, "what is")]


def test_programs_names_and_strings_are_no_prose() -> None:
    assert shown('"""Its `told` and "anew" stay.\n\n>>> told\nanew\n\n```\ntold\n```\n"""') == []
    assert shown('told = "anew"  # noqa: nobody\n') == []
    assert shown("def test_what_is_told(): ...\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "F stands for fetch.",
        "It sorts the list in place.",
        "Three decimal places.",
        "An election takes place.",
        "A member that is lagging behind.",
        "It runs behind a proxy.",
    ],
)
def test_an_allowed_use_is_plain_english(text: str) -> None:
    assert shown(f'"""{text}"""') == []


def test_each_allowed_use_has_a_reason() -> None:
    assert all(each.reason for each in ALLOWED)


def main(arguments: list[str]) -> None:
    """Print the findings below the given paths, or lower the ceilings."""
    if arguments == ["--lower"]:
        counts, before = Counter(package(each.path) for each in all_findings()), ceilings()
        head = CEILINGS.read_text(encoding="utf-8").partition("[ceilings]")[0]
        rows = [f'"{name}" = {min(count, before.get(name, 0))}\n' for name, count in sorted(counts.items())]
        CEILINGS.write_text(f"{head}[ceilings]\n{''.join(rows)}", encoding="utf-8")
    else:
        print(*(each for path in arguments or [""] for each in all_findings(path)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
