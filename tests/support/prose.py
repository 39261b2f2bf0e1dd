"""Finds words of a private dialect in the docstrings, comments, log lines and test titles of Python files.

`WORDS` is the rule: each entry is a pattern, the reason against it and what to write instead. `ALLOWED` lists
the uses that are plain English all the same. `findings` applies both to one file. tests/test_prose.py
compares the counts of each package with its ceiling.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple


class Word(NamedTuple):
    """A pattern that prose must not contain."""

    pattern: str
    reason: str
    instead: str


class Use(NamedTuple):
    """A use of a listed word that is plain English."""

    pattern: str
    reason: str


class Finding(NamedTuple):
    """A listed word in a file, with what to write instead."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} -> {self.instead}"


# A pattern matches whole words; a blank in it is any white space. Columns are two blanks apart.
_TABLE = r"""
PATTERN                              REASON                    WRITE INSTEAD
told                                 passive, hides the actor  reported, replied, passed, or the value's name
tells?|telling                       personifies code          report, return, log, raise, distinguish, pass
heard                                personifies code          received, read, heartbeat seen
(?:goes|go|going|went) on            vague                     resumes, continues
(?<!-)(?:stands?|standing|stood)(?!-)  vague                   is stalled, is stored, is, remains
who(?:m|so)?ever                     riddle                    the caller, any reader, every client
nobody|no one                        riddle by negation        no worker, unused, unowned
somebody                             vague                     name the actor: a worker, another client
(?:those|one|he|she|they) who        riddle                    name the actor: callers, readers, members
(?:for|to|of|by|from|with|as) who    riddle                    name the actor: callers, readers, members
anew                                 archaic                   again
meanwhile                            vague                     in the meantime, while ..., since then
beside                               archaic                   with, next to, alongside
behind                               has three meanings        after, downstream of, lagging
what (?:is|was|are|were)             names nothing             the noun that it is about
places?                              has five meanings         topic partition, position, location
of others                            names nothing             of other clients, of other programs
of (?:one|several)(?=[.,;:)]|\s+(?:and|or|but|is|are|that|which|who|has|have)\b)  names nothing  say of which
(?-i:none) (?:that|has|had|is|are|was|were|who|which)  riddle by negation  no row, without
nothing that                         riddle by negation        name what is absent
(?-i:Return) (?:what|who|whom)       names nothing             name the value that is returned
"""

WORDS = tuple(Word(*re.split(r" {2,}", row)) for row in _TABLE.splitlines()[2:])
_EXPRESSIONS = [
    (re.compile(rf"\b(?:{each.pattern})\b".replace(" ", r"\s+"), re.IGNORECASE), each.instead)
    for each in WORDS
]

# The first word of a docstring. Of the module: its subject as a noun, or a verb with what it does.
OPENING = Word(
    r"(What|How|Which|Where|Whether|Who|Whose|Whoever)\b",
    "opens with a riddle",
    "open with the noun or the verb",
)
# A sentence after the first that begins with an auxiliary verb and is no question.
SUBJECTLESS = re.compile(
    r"(?<=[.!?])\s+(Is|Are|Was|Were|Has|Have|Had|Does|Did|Can|Could|Cannot|May|Might|Must|Will|Would|Should)\b"
    r"(?=[^.?!]*[.!])"
)

ALLOWED = (
    Use(r"(?i)\bstands? for\b", "a symbol stands for its meaning"),
    Use(r"(?i)\bin place\b(?! of)", "'sorts in place' is the usual term"),
    Use(r"(?i)\bdecimal places?\b", "the usual term"),
    Use(r"(?i)\b(takes?|took|taking) place\b", "an event takes place"),
    Use(
        r"(?i)\b(lag(s|ged|ging)?|far|(records?|offsets?|ms|seconds?|minutes?|hours?)) behind\b",
        "lag, with its amount",
    ),
    Use(r"(?i)\bbehind (a|the) (proxy|load balancer|gateway|firewall)\b", "network position"),
)

LOGGERS = ("logger", "_logger", "log")
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_BLANKED = re.compile(r"\*\w+\*|``[^`]*``|`[^`\n]*`|\"[^\"\n]*\"")
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma|pylint|mypy:|ruff:|!)")


class _Text(NamedTuple):
    """Prose from one position of a file; *line* is that of its first character."""

    line: int
    prose: str
    docstring: bool = False


def findings(path: str, source: str, *, titles: bool = False) -> list[Finding]:
    """Return the listed words in the prose of *source*, by line. *titles* adds names of test functions."""
    nodes = list(ast.walk(ast.parse(source)))
    texts = [*_docstrings(nodes, source), *_comments(source), *_log_lines(nodes)]
    if titles:
        texts += _titles(nodes)
    return sorted({each for text in texts for each in _in_text(path, text)})


def _in_text(path: str, text: _Text) -> Iterator[Finding]:
    prose = text.prose
    for use in ALLOWED:
        prose = re.sub(use.pattern, _blank, prose)
    if text.docstring and (opening := re.match(OPENING.pattern, prose.lstrip())):
        yield Finding(path, text.line, opening[0], OPENING.instead)
    matches = [(match, 0, instead) for word, instead in _EXPRESSIONS for match in word.finditer(prose)]
    if text.docstring:
        matches += [(match, 1, "begin with a subject") for match in SUBJECTLESS.finditer(prose)]
    for match, group, instead in matches:
        line = text.line + prose.count("\n", 0, match.start(group))
        yield Finding(path, line, " ".join(match[group].split()), instead)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "·", match[0])


def _docstrings(nodes: list[ast.AST], source: str) -> Iterator[_Text]:
    """Yield the strings that are statements: of modules, classes, functions and attributes."""
    lines = source.splitlines()
    for node in nodes:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node.value.value, str):
            continue
        shown = "\n".join(_without_programs(lines[node.lineno - 1 : node.end_lineno]))
        yield _Text(
            node.lineno, _BLANKED.sub(_blank, re.sub(r'^\s*r?"""|"""\s*$', "", shown)), docstring=True
        )


def _without_programs(lines: list[str]) -> Iterator[str]:
    """Yield *lines* with doctests, their output and fenced blocks left empty."""
    doctest = fenced = False
    for line in lines:
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
            yield ""
            continue
        doctest = bare.startswith(">>>") or (doctest and bare not in ("", '"""'))
        yield "" if doctest or fenced else line


def _comments(source: str) -> Iterator[_Text]:
    """Yield the comments of *source*; those on consecutive lines are one text."""
    first, before = 0, (0, 0)
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if (token.start[0] - 1, token.start[1]) != before and lines:
            yield _Text(first, _BLANKED.sub(_blank, "\n".join(lines)))
            lines = []
        if not lines:
            first = token.start[0]
        lines.append(token.string.lstrip("#! "))
        before = token.start
    if lines:
        yield _Text(first, _BLANKED.sub(_blank, "\n".join(lines)))


def _log_lines(nodes: list[ast.AST]) -> Iterator[_Text]:
    """Yield the constant texts of log lines, with the names of their fields left out."""
    for node in nodes:
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or node.func.attr not in LEVELS
        ):
            continue
        if ast.unparse(node.func.value).rpartition(".")[2] not in LOGGERS:
            continue
        for text in node.args[:2]:
            for each in ast.walk(text):
                if (
                    isinstance(each, ast.Constant)
                    and isinstance(each.value, str)
                    and not isinstance(text, ast.Dict)
                ):
                    yield _Text(each.lineno, re.sub(r"%\(\w+\)\w?", "·", each.value).replace("\n", " "))


def _titles(nodes: list[ast.AST]) -> Iterator[_Text]:
    """Yield the names of tests as sentences."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield _Text(node.lineno, node.name.removeprefix("test_").replace("_", " "))
