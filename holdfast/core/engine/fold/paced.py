"""Records that take long to fold: a step at a time, so that a caller can let others work in between."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain

from holdfast.core.engine.emits import Emit, Emits


class Paced:
    """The emits of a fold that pauses before it is done: taking each of *parts* folds a step further, and
    gives the emits of that step.

    Iterated, it folds to the end at once. A record counts as folded when all parts are taken.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterator[list[Emit]]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[Emit]:
        return chain.from_iterable(self.parts)


Work = Generator[list[Emit], None, list[Emit]]
"""The work on a record: it yields emits where it can pause, and returns the last ones."""


def begun(work: Work) -> Emits:
    """Do the first part of *work*; return its emits if that was all, else all parts as `Paced`.

    >>> def work(parts):
    ...     for part in range(1, parts):
    ...         yield [Emit("out", f"{part}")]
    ...     return [Emit("out", f"{parts}")]
    >>> [each.key for each in begun(work(1))]
    ['1']
    >>> type(begun(work(3))).__name__, [each.key for each in begun(work(3))]
    ('Paced', ['1', '2', '3'])
    """
    try:
        first = next(work)
    except StopIteration as end:
        found: list[Emit] = end.value
        return found
    return Paced(_rest(first, work))


def _rest(first: list[Emit], work: Work) -> Iterator[list[Emit]]:
    yield first
    last = yield from work
    yield last
