"""Checks of the emits of a fold: a producer must take them, and their topics must be declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emit_columns import EmitColumns
from holdfast.core.engine.emits import Emit, Headers
from holdfast.core.engine.origins import ORIGIN, record_header
from holdfast.errors import FoldError

HEADER_BYTES = 10
"""The most bytes that a header takes in addition to its name and content."""
_LIMIT_PARTITIONS = 1 << 31
_BYTES = {bytes}
_ORIGIN_BYTES = HEADER_BYTES + len(ORIGIN) + len(record_header(0, 0, 0)[1])


def require_emits(given: Any) -> Any:
    """Return the emits of a fold as an iterable; FoldError for any other value, such as a single Emit."""
    if isinstance(given, Emit):
        raise FoldError(
            f"the fold returned one Emit, to {given.topic!r:.100}; write `yield Emit(...)`, or return a list:"
            " `return [Emit(...)]`"
        )
    if isinstance(given, str | bytes | Mapping) or not hasattr(type(given), "__iter__"):
        kind = type(given).__name__
        raise FoldError(
            f"the fold returned {given!r:.100} ({kind}); a fold returns emits or None, and stores a row by"
            " `rows[key] = row`"
        )
    return given


class EmitRules:
    """Checks of the emits of one processor."""

    def __init__(self, processor: Processor[Any, Any], limit_bytes: int) -> None:
        self._processor, self._limit_bytes = processor, limit_bytes
        self._may_emit_to = frozenset(processor.emits)

    def check_all(self, emits: Iterable[Emit]) -> None:
        """Check each of *emits* as `check` does, in one pass for those that are plainly valid."""
        if isinstance(emits, EmitColumns) and self._are_plain(emits):
            return
        declared, limit_bytes = self._may_emit_to, self._limit_bytes
        before: Headers = ()
        most_bytes = limit_bytes  # most that key and value may take with these headers
        for emit in emits:
            if (headers := emit.headers if type(emit) is Emit else None) is not before:
                if headers == ():
                    most_bytes = limit_bytes
                elif headers and len(headers) == 1 and headers[0][0] is ORIGIN:  # as a step has set it
                    most_bytes = limit_bytes - _ORIGIN_BYTES
                else:
                    self.check(emit)
                    continue
                before = headers
            if (
                type(topic := emit.topic) is str
                and topic in declared
                and (type(key := emit.key) is bytes or (type(key) is str and key.isascii()))
                and type(value := emit.value) is bytes
                and len(key) + len(value) <= most_bytes
                and (
                    (partition := emit.partition) is None
                    or (type(partition) is int and 0 <= partition < _LIMIT_PARTITIONS)
                )
            ):
                continue
            self.check(emit)

    def _are_plain(self, emits: EmitColumns) -> bool:
        """Return whether emits are plainly valid, as a step sends them."""
        if not emits:
            return True
        keys: list[Any] = emits.keys
        values: list[Any] = emits.values
        kinds = {*map(type, emits.carried)}
        most_bytes = self._limit_bytes - (_ORIGIN_BYTES if kinds == _BYTES else 0)
        return (
            (kinds == _BYTES or not any(emits.carried))
            and {*map(type, emits.topics)} == {str}
            and self._may_emit_to.issuperset(emits.topics)
            and {*map(type, keys)} == _BYTES
            and {*map(type, values)} == _BYTES
            and max(map(len, keys)) + max(map(len, values)) <= most_bytes
            and all(
                type(each) is int and 0 <= each < _LIMIT_PARTITIONS for each in {*emits.partitions} - {None}
            )
        )

    def check(self, emit: Emit) -> None:
        """Raise for what a producer would refuse: once the transaction is being written, one bad record
        would stop the partition.
        """
        if not isinstance(emit, Emit):
            raise FoldError(
                f"a fold may emit only Emit, not {type(emit).__name__}; it stores a row by `rows[key] = row`"
            )
        topic, key, value, partition = emit.topic, emit.key, emit.value, emit.partition
        if not isinstance(topic, str) or topic not in self._may_emit_to:
            name, declared = self._processor.name, ", ".join(self._processor.emits) or "none"
            raise FoldError(
                f"emit to {topic!r:.200}: not among the emits of processor {name} ({declared}); declare it"
                " there"
            )
        if not isinstance(key, str | bytes | type(None)) or not isinstance(value, bytes | type(None)):
            raise FoldError(f"emit to {topic}: key must be str or bytes and value bytes, or None")
        if partition is not None and not (type(partition) is int and 0 <= partition < _LIMIT_PARTITIONS):
            raise FoldError(f"emit to {topic}: partition {partition!r:.200} is not a partition's number")
        size = len(key.encode() if isinstance(key, str) else key or b"") + len(value or b"")
        if not isinstance(emit.headers, tuple | list):
            raise FoldError(
                f"emit to {topic}: headers must be a tuple of (name, value), not"
                f" {type(emit.headers).__name__}"
            )
        for header in emit.headers:
            match header:
                case (str() as name, bytes() | None as content):
                    size += HEADER_BYTES + len(name.encode()) + len(content or b"")
                case _:
                    raise FoldError(
                        f"emit to {topic}: header {header!r:.200} is not a pair of a str and bytes or None"
                    )
        if size > self._limit_bytes:
            raise FoldError(f"emit to {topic} takes {size} bytes, the limit is {self._limit_bytes}")
