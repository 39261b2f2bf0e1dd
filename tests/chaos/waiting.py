"""An application whose folds wait for a file, and stop before what they cannot fold: `python -P -m
tests.chaos.waiting worker`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import Json, Rows, Source
from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import Later


class Registry:
    """A serde that needs the file *path* for values that begin with "needs"."""

    def __init__(self, path: str) -> None:
        self.path = path

    def decode(self, value: bytes | None) -> str:
        word = (value or b"").decode()
        if word.startswith("needs") and not Path(self.path).exists():
            raise Later(f"{self.path} is not there", needs=f"file {self.path}")
        return word

    def encode(self, value: str) -> bytes:
        return value.encode()


def count(rows: Rows[int], word: str, at_ms: int) -> None:
    if word == "bad":
        raise ValueError("no such word")
    rows[word] = (rows.get(word) or 0) + 1


def needy(source: str, path: str) -> list[Processor[Any, Any]]:
    """Return one of one source and one of two, both of which wait and stop."""
    registry = Registry(path)
    other = Source(f"{source}-more", Json(str))
    return [
        Processor(name="one", source=source, decode=registry.decode, fold=count, row=int, on_error="stop"),
        Processor(name="two", on={Source(source, registry): count, other: count}, row=int, on_error="stop"),
    ]


processors = (
    needy(os.environ["CHAOS_SOURCE"], os.environ["CHAOS_NEEDS"]) if "CHAOS_NEEDS" in os.environ else []
)

if __name__ == "__main__":
    create_app(processors).main()
