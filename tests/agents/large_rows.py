"""An application whose rows have 900 KB each: `python -P -m tests.agents.large_rows worker`."""

from __future__ import annotations

from typing import Any

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows

SIZE = 900_000


def fold(rows: Rows[bytes], word: str, at_ms: int) -> None:
    """Keep a count of the word in a row of SIZE bytes."""
    count = int(rows.get(word, b"0").partition(b" ")[0]) + 1
    rows[word] = (b"%d " % count).ljust(SIZE, b"x")


PAGES: Processor[str, bytes] = Processor(
    name="pages", source="words", decode=bytes.decode, fold=fold, row=bytes, route=by_key
)


def processors() -> list[Processor[Any, Any]]:
    return [PAGES]


if __name__ == "__main__":
    create_app(processors=processors()).main()
