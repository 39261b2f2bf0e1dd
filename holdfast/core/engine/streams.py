"""A topic that folds emit to, declared with what lies in it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from holdfast.core.engine.emits import Emit, Headers
from holdfast.core.engine.serdes import Serde, Text

T = TypeVar("T")


class Stream(str, Generic[T]):
    """A topic to emit to, and what lies in it: `enriched = Stream("enriched", Json(Enriched))`.

    It is the topic's name, so it stands wherever one does: in a processor's `emits`, and in what is emitted.

    >>> from holdfast.core.engine.serdes import Json
    >>> totals = Stream("totals", Json(int))
    >>> totals.emit("a", 3)
    Emit(topic='totals', key=b'a', value=b'3', headers=(), partition=None)
    >>> totals == "totals"
    True
    """

    serde: Serde[T]
    key: Serde[Any]

    def __new__(cls, topic: str, serde: Serde[T], key: Serde[Any] | None = None) -> Stream[T]:
        made = super().__new__(cls, topic)
        made.serde, made.key = serde, Text() if key is None else key
        return made

    def emit(self, key: Any, value: T, *, headers: Headers = (), partition: int | None = None) -> Emit:
        """Return a record of this topic for a fold to yield; raises FoldError when *key* or *value* is not of
        the declared type, so that the record being folded is refused.

        *partition* None leaves it to murmur2 of the key.
        """
        return Emit(str(self), self.key.encode(key), self.serde.encode(value), headers, partition)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (str(self), self.serde, self.key)
