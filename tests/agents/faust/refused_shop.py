"""The application of tests/agents/faust/test_refused_starts.py as a module of the tests, whose workers a fork
server starts.
"""

from __future__ import annotations

import os

import msgspec

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows


class Counted(msgspec.Struct, frozen=True):
    """The number of times that a word was there."""

    seen: int = 0


def decode(value: bytes) -> str:
    return value.decode()


def fold(rows: Rows[Counted], word: str, at_ms: int) -> None:
    rows[word] = Counted(rows.get(word, Counted()).seen + 1)


if __name__ == "__main__":  # what looks for doctests imports this too
    counts = Processor(name="counts", source=os.environ["SHOP_SOURCE"], decode=decode, fold=fold, row=Counted)
    create_app(processors=[counts]).main()
