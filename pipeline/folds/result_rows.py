"""The results of the fold of a partition, as rows of one schema: final rows and timers as stored, refused
records, transitions and emits where they are asked for, and one summary.

Executors import this module: it needs the core and pyarrow, no Spark.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.engine.declared.processor import Emit, Headers
from holdfast.core.engine.fold.folding import Refused, Transition
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import NOTHING_APPLIED, digest
from holdfast.core.engine.state.timers import NEVER
from holdfast.pipeline.folds.spilling import FoldStore

OUT_ROWS = 10_000

RESULT = pa.schema(
    [
        ("kind", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("at_ms", pa.int64()),
        ("name", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)

STATE, REFUSED, TRANSITION, EMITTED, SUMMARY = "state", "refused", "transition", "emitted", "summary"


class FoldSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one partition. *applied* is the last offset folded, -1 for none.

    With several sources *sources* has it of each, *applied* the number of these offsets in all, less one, and
    *choices* the number of recorded choices that were obeyed. *position* is the marker as stored, in base64;
    a single source has one too where event time passes by the watermarks of origins. *timers* are those of
    all clocks. *event_ms* is event time where the processor has that, *watermarks* the note of a step's
    sources as stored, in base64, once there is an origin.
    """

    partition: int
    applied: int = NOTHING_APPLIED
    stream_ms: int = -1
    records: int = 0
    refused: int = 0
    rows: int = 0
    timers: int = 0
    digest: str = digest(())
    sources: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    choices: int | msgspec.UnsetType = msgspec.UNSET
    position: str | msgspec.UnsetType = msgspec.UNSET
    event_ms: int | msgspec.UnsetType = msgspec.UNSET
    watermarks: str | msgspec.UnsetType = msgspec.UNSET


def emit_of(row: Mapping[str, Any]) -> Emit:
    """Return the emit in a row of results.

    >>> emit_of({"name": "t", "key": b"k", "value": b"v", "at_ms": None, "after": '[["h","eA=="]]'}).headers
    (('h', b'x'),)
    """
    return Emit(row["name"], row["key"], row["value"], decode_headers(row["after"]), row["at_ms"])


def told_event_time(event_ms: int | None) -> dict[str, Any]:
    """Return a summary's fields on event time: empty for a processor without event time."""
    return {} if event_ms is None else {"event_ms": event_ms}


def told_watermarks(note: bytes | None) -> dict[str, Any]:
    """Return a summary's field for a step's note of watermarks: empty without a note."""
    return {} if note is None else {"watermarks": b64encode(note).decode()}


def watermarks_of(summary: FoldSummary) -> bytes | None:
    """Return the note of a step's watermarks, with which its next record is to be folded.

    >>> watermarks_of(FoldSummary(partition=0, **told_watermarks(b"note")))
    b'note'
    """
    return b64decode(summary.watermarks) if summary.watermarks else None


def other_event_time(position: Position, replayed: FoldSummary) -> str | None:
    """Return the event times of a state and of a replay, None where they agree."""
    there = -NEVER if replayed.event_ms is msgspec.UNSET else replayed.event_ms
    here = position.event_ms
    return None if here is None or here == there else f"{here}, replayed {there}"


def readable(row: Any) -> str | None:
    """Return a row as JSON, the same text for equal rows; None for no row.

    >>> readable({"b": 1, "a": b"x"})
    '{"a":"eA==","b":1}'
    """
    if row is None:
        return None
    try:
        return msgspec.json.encode(row, order="deterministic").decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(
            msgspec.to_builtins(row, order="deterministic")
        )  # what msgpack can write but JSON cannot: maps with keys of other types


class Results:
    """Collects the results of partitions and returns them as Arrow batches of bounded size."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def refused(self, partition: int, each: Refused) -> None:
        what = (each.stage, each.error, each.reason)
        self._rows.append((REFUSED, partition, each.offset, None, *what, _named(each.topic), None))

    def transition(self, partition: int, each: Transition[Any]) -> None:
        before, after = readable(each.before), readable(each.after)
        what = (each.key, before, after, _named(each.topic), _named(each.table))
        self._rows.append((TRANSITION, partition, each.offset, each.at_ms, *what))

    def emitted(self, partition: int, emits: Iterable[Emit], *, is_due: bool) -> None:
        """Add emits: the column `offset` is whether they are due, `at_ms` the partition that is asked for."""
        for each in emits:
            key = each.key.encode() if isinstance(each.key, str) else each.key
            headers = encode_headers(each.headers) if each.headers else None
            what = (each.topic, None, headers, key, each.value)
            self._rows.append((EMITTED, partition, int(is_due), each.partition, *what))

    def take(self, at_least: int = OUT_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield what has gathered, once there are *at_least* so many."""
        if len(self._rows) < at_least:
            return
        rows, self._rows = self._rows, []
        for start in range(0, len(rows), OUT_ROWS):
            chunk = rows[start : start + OUT_ROWS]
            yield result_batch(chunk)


def encode_headers(headers: Headers) -> str:
    """Return headers as text, for a column.

    >>> decode_headers(encode_headers((("a", b"1"), ("b", None)))), decode_headers(None)
    ((('a', b'1'), ('b', None)), ())
    """
    return msgspec.json.encode(headers).decode()


_decode_headers = msgspec.json.Decoder(tuple[tuple[str, bytes | None], ...]).decode


def decode_headers(text: str | None) -> Headers:
    return () if text is None else _decode_headers(text)


def _named(name: str) -> bytes | None:
    """Return the columns `key` and `value` of a refused or changed record: the topic, if there are several,
    and the named table.
    """
    return name.encode() if name else None


def states(store: FoldStore, partition: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows and timers of a partition as stored."""
    stored = store.everything()
    while chunk := list(islice(stored, OUT_ROWS)):
        keys, values = zip(*chunk, strict=True)
        columns: dict[str, Sequence[Any]] = {
            "kind": [STATE] * len(keys),
            "partition": [partition] * len(keys),
            "key": keys,
            "value": values,
        }
        yield _result(columns, len(keys))


def summary_batch(summary: FoldSummary) -> pa.RecordBatch:
    """Return a summary as a row of results."""
    return _result(
        {
            "kind": [SUMMARY],
            "partition": [summary.partition],
            "after": [msgspec.json.encode(summary).decode()],
        },
        1,
    )


def result_batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows, with the columns of RESULT or the first of them, as Arrow has them."""
    return _result(dict(zip(RESULT.names, zip(*rows, strict=True), strict=False)), len(rows))


def _result(columns: dict[str, Sequence[Any]], rows: int) -> pa.RecordBatch:
    arrays = [
        pa.array(columns[each.name], each.type) if each.name in columns else pa.nulls(rows, each.type)
        for each in RESULT
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RESULT)
