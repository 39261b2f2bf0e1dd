"""Every requirement that a test names is explained, and every one that is explained is named by a test."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.support.places import ROOT

ID = re.compile(r"\b[DEGHMNO][1-9][0-9]?\b")
ROW = re.compile(r"^\| ([A-Z][0-9]+) \|", re.MULTILINE)
SOURCES = sorted(
    path
    for room in ("tests", "holdfast", "agents", "outbox", "pipeline", "tables")
    for path in (ROOT / room).rglob("*.py")
)


PAGE, PROTOCOL = ROOT / "tests" / "REQUIREMENTS.md", ROOT / "docs" / "PROTOCOL.md"


def explained() -> list[str]:
    return ROW.findall(PAGE.read_text())


def named(text: str) -> Iterator[str]:
    """Yield the ids in comments and docstrings of a program.

    >>> list(named('def fold():\\n    \"\"\"D17: one owns.\"\"\"\\n    return "M8"  # and M4, as H1A1 does not'))
    ['D17', 'M4']
    """  # noqa: E501
    if not ID.search(text):
        return
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and before in (tokenize.INDENT, tokenize.NEWLINE, tokenize.ENCODING)
        ):
            yield from ID.findall(token.string)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


@pytest.fixture(scope="module")
def everywhere() -> set[str]:
    return {each for path in SOURCES for each in named(path.read_text())}


@pytest.mark.long
def test_each_requirement_that_is_named_is_explained(everywhere: set[str]) -> None:
    assert everywhere - set(explained()) - set(ROW.findall(PROTOCOL.read_text())) == set()


@pytest.mark.long
def test_each_that_is_explained_is_named(everywhere: set[str]) -> None:
    assert set(explained()) - everywhere == set()


def test_each_is_explained_once() -> None:
    assert len(explained()) == len(set(explained()))
