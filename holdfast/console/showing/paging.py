"""Long lists, a page at a time, and the numbers that a URL carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

from holdfast.console.access import RequestDenied

T = TypeVar("T")

PAGE_LINES = 50
"""A browser needs longer to lay out a table than the console to make it: 100 lines of ten cells took 300 ms
on a busy machine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[T]):
    """Some of *total* lines. *first* and *last* count from 1; *before* and *behind* are the links of the
    neighbours.
    """

    lines: Sequence[T]
    total: int
    number: int
    numbers: int
    before: str | None
    behind: str | None

    @property
    def first(self) -> int:
        return (self.number - 1) * PAGE_LINES + 1 if self.lines else 0

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1 if self.lines else 0


def page_number(query: Mapping[str, str]) -> int:
    """Return which page is asked for, from 1."""
    return max(1, number(query, "page") or 1)


def paged(lines: Sequence[T], path: str, query: Mapping[str, str]) -> ListPage[T]:
    """Return the page of *lines* that the URL asks for, the last one if that is beyond it."""
    asked = min(page_number(query), _numbers(len(lines)))
    first = (asked - 1) * PAGE_LINES
    return page_of(lines[first : first + PAGE_LINES], len(lines), path, {**query, "page": str(asked)})


def page_of(lines: Sequence[T], total: int, path: str, query: Mapping[str, str]) -> ListPage[T]:
    """Return *lines* as the page that the URL asks for, of *total* lines."""
    asked, numbers = page_number(query), _numbers(total)

    def link(page: int) -> str | None:
        return f"{path}?{urlencode({**query, 'page': page})}" if 1 <= page <= numbers else None

    return ListPage(
        lines=lines,
        total=total,
        number=asked,
        numbers=numbers,
        before=link(asked - 1),
        behind=link(asked + 1),
    )


def _numbers(total: int) -> int:
    return max(1, -(-total // PAGE_LINES))


def number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number from 0 of the URL, None where it is not given; RequestDenied for an invalid one."""
    text = query.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise RequestDenied(400, f"{name} is {text[:40]!r}: write a number from 0, of at most 15 digits.")
    return int(text)
