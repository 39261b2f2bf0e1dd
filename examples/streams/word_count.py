"""The count of each word: lines are re-keyed by their words, and counted by another processor."""

from __future__ import annotations

from holdfast import Source, Text, create_app
from holdfast.streams import Rekey, count, updates


def words_of(line: str) -> list[tuple[str, str]]:
    return [(word, word) for word in line.lower().split()]


lines = Source("lines", Text())
words = Rekey(name="words", source=lines, pairs=words_of, serde=Text())
counts = count(
    name="counts",
    source=words,
    key=str,
    emits=updates("word-counts"),
)
app = create_app(processors=[words, counts])
