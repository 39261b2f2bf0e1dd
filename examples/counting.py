"""Counts words: the smallest holdfast application. Start with `faust -A examples.counting worker -l info`."""

from __future__ import annotations

import msgspec

from holdfast import Processor, Rows, create_app


class Count(msgspec.Struct, frozen=True, array_like=True):
    """The count of a word, and when it was last seen (ms, the broker's append time)."""

    seen: int = 0
    last_ms: int = 0


def decode(value: bytes) -> str:
    return value.decode()


def fold(rows: Rows[Count], word: str, at_ms: int) -> None:
    rows[word] = Count(rows.get(word, Count()).seen + 1, at_ms)


counts = Processor(name="counts", source="words", decode=decode, fold=fold, row=Count)
app = create_app(processors=[counts])
