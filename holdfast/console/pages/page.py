"""The definition of a page."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.console.desk import ConsoleDesk

Query = Mapping[str, str]
Build = Callable[[ConsoleDesk, Query], Coroutine[Any, Any, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A page: where it is, which entry of the menu it belongs to, its template, and what fills that.

    The template's block `live` is sent again, at most each *every_s* seconds, to browsers that ask for it,
    unless the page is not *live*.
    """

    path: str
    menu: str
    template: str
    build: Build
    every_s: float = 0.0
    live: bool = True


async def nothing(desk: ConsoleDesk, query: Query) -> dict[str, Any]:
    """Return the context of a template that shows the picture alone."""
    return {}
