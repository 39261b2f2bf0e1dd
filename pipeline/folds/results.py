"""The results of a replay: digests, final rows, refused records and transitions, in memory or written to a
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.state.base import TableBase
from holdfast.core.engine.state.codec import ROW_KINDS, RowCodec, combine_digests, decode_due, place_of_row
from holdfast.errors import OrderError
from holdfast.pipeline.folds.result_rows import (
    EMITTED,
    REFUSED,
    RESULT,
    STATE,
    SUMMARY,
    TRANSITION,
    FoldSummary,
    decode_headers,
    readable,
)

_decode_summary = msgspec.json.Decoder(FoldSummary).decode


def told_bases(bases: Mapping[int, TableBase]) -> tuple[str, ...]:
    """Return in words with what partitions began.

    >>> told_bases({0: TableBase(1, 1, b"", 17, 3, "")})
    ('partition 0 from base: 3 rows and timers of version 1 behind offset 17',)
    """
    return tuple(f"partition {at} from base: {each.told()}" for at, each in sorted(bases.items()))


ROWS = pa.schema(
    [("partition", pa.int32()), ("key", pa.string()), ("row", pa.string()), ("stored", pa.binary())]
)
TIMERS = pa.schema([("partition", pa.int32()), ("key", pa.string()), ("due_ms", pa.int64())])
TRANSITIONS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("at_ms", pa.int64()),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)
REFUSALS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("stage", pa.string()),
        ("error", pa.string()),
        ("reason", pa.string()),
    ]
)
SUMMARIES = pa.schema(
    [
        ("partition", pa.int32()),
        ("applied", pa.int64()),
        ("stream_ms", pa.int64()),
        ("records", pa.int64()),
        ("refused", pa.int64()),
        ("rows", pa.int64()),
        ("timers", pa.int64()),
        ("digest", pa.string()),
    ]
)
TABLES = {"rows": ROWS, "timers": TIMERS, "transitions": TRANSITIONS, "refused": REFUSALS}
"""The tables a replay can be written as: rows and rows before and after a change as JSON, in addition to the
stored bytes.
"""
_BY_TOPIC = ("transitions", "refused")
_BY_TABLE = ("rows", "transitions")


def schema_of(name: str, processor: Processor[Any, Any]) -> pa.Schema:
    """Return the columns of one of TABLES; with several sources, entries at an offset have the topic too,
    none for a tick. With named tables, rows have theirs, none for the processor's own.
    """
    schema = TABLES[name]
    if processor.named_sources and name in _BY_TOPIC:
        schema = schema.append(pa.field("topic", pa.string()))
    if processor.tables and name in _BY_TABLE:
        schema = schema.append(pa.field("table", pa.string()))
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The state that a processor's fold made of a log.

    Two replays, or a replay and a live table, hold the same state exactly when their digests are equal.
    *results* (schema RESULT) holds rows and timers as stored, refused records and transitions; it is None
    when they were written to a folder instead.
    """

    processor: str
    version: int
    engine: str
    partitions: tuple[FoldSummary, ...]
    results: pa.Table | None
    skipped: int = 0
    """The number of skipped offsets in the part read, whose records cannot be read."""
    holes: tuple[str, ...] = ()
    """The missing parts of the log, in words; empty for a whole one."""
    bases: Mapping[int, TableBase] = field(default_factory=dict)
    """The first states of partitions that did not begin empty: the state is a function of those too."""

    @property
    def digest(self) -> str:
        """Return the digest of the whole table."""
        return combine_digests((each.partition, each.digest) for each in self.partitions)

    @property
    def applied(self) -> dict[int, int]:
        """Return the last offset folded, by partition; -1 for none."""
        return {each.partition: each.applied for each in self.partitions}

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return digests and positions as JSON values."""
        return {
            "processor": self.processor,
            "version": self.version,
            "engine": self.engine,
            "digest": self.digest,
            "records": self.records,
            "skipped": self.skipped,
            "bases": list(told_bases(self.bases)),
            "partitions": [msgspec.to_builtins(each) for each in self.partitions],
        }

    def state(self, partition: int) -> list[tuple[bytes, bytes]]:
        """Return a partition's rows and timers as stored, in key order."""
        found = self._of(STATE, partition)
        return list(zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True))

    def refused(self, partition: int) -> list[Refused]:
        """Return a partition's refused records, in the order of the log."""
        rows = self._of(REFUSED, partition).select(["offset", "name", "before", "after", "key"]).to_pylist()
        return [
            Refused(
                offset=row["offset"],
                stage=row["name"],
                error=row["before"],
                reason=row["after"],
                topic=(row["key"] or b"").decode(),
            )
            for row in rows
        ]

    def table(self, name: str, processor: Processor[Any, Any]) -> pa.Table:
        """Return one of TABLES: "rows", "timers", "transitions" or "refused"."""
        assert self.results is not None, "the results were written to a folder: read them there"
        return pa.Table.from_batches(
            [present(batch, name, processor) for batch in self.results.to_batches()],
            schema_of(name, processor),
        )

    def _of(self, kind: str, partition: int) -> pa.Table:
        import pyarrow.compute as pc

        assert self.results is not None, "the results were written to a folder: read them there"
        wanted = pc.and_(pc.equal(self.results["kind"], kind), pc.equal(self.results["partition"], partition))
        return self.results.filter(wanted)


def summaries_of(found: Iterable[FoldSummary], partitions: Iterable[int]) -> tuple[FoldSummary, ...]:
    """Return one summary for each partition; of those without records, that of nothing.

    A partition with two was folded in two halves by two tasks, each from an empty state: OrderError.
    """
    by_partition: dict[int, FoldSummary] = {}
    for summary in found:
        if summary.partition in by_partition:
            raise OrderError(
                f"partition {summary.partition} was folded by two tasks, each with a part of its records"
            )
        by_partition[summary.partition] = summary
    return tuple(
        by_partition.get(partition, FoldSummary(partition=partition)) for partition in sorted(partitions)
    )


def gather(
    batches: Iterable[pa.RecordBatch], partitions: Iterable[int]
) -> tuple[tuple[FoldSummary, ...], pa.Table]:
    """Return summaries and all other results, by partition and within one in their order of arrival."""
    import numpy as np
    import pyarrow.compute as pc

    whole = pa.Table.from_batches(batches, RESULT)
    is_summary = pc.equal(whole["kind"], SUMMARY)
    found = [decode_summary(text) for text in whole.filter(is_summary)["after"].to_pylist()]
    rest = whole.filter(pc.invert(is_summary))
    order = np.argsort(rest["partition"].to_numpy(), kind="stable")
    return summaries_of(found, partitions), rest.take(order)


def given(
    into: Callable[[pa.RecordBatch], None], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the summaries alone, and give all other results *into* something as they come."""
    import pyarrow.compute as pc

    for batch in batches:
        is_summary = pc.equal(batch.column("kind"), SUMMARY)
        rest = batch.filter(pc.invert(is_summary))
        if rest.num_rows:
            into(rest)
        yield batch.filter(is_summary)


def emits_in(results: pa.RecordBatch) -> Iterator[tuple[int, bool, Emit]]:
    """Yield what partitions emit in the order of the log, each with its partition and whether it is due."""
    import pyarrow.compute as pc

    found = results.filter(pc.equal(results.column("kind"), EMITTED))
    names = ("partition", "offset", "at_ms", "name", "after", "key", "value")
    columns = (found.column(name).to_pylist() for name in names)
    for partition, due, asked, topic, headers, key, value in zip(*columns, strict=True):
        yield partition, bool(due), Emit(topic, key, value, decode_headers(headers), asked)


def decode_summary(text: str) -> FoldSummary:
    return _decode_summary(text)


def present(batch: pa.RecordBatch, name: str, processor: Processor[Any, Any]) -> pa.RecordBatch:
    """Return the rows of *batch* (schema RESULT) for one of TABLES, for people and other tools to read."""
    rows = list(_presented(batch, name, processor))
    schema = schema_of(name, processor)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)], schema=schema
    )


def _presented(batch: pa.RecordBatch, name: str, processor: Processor[Any, Any]) -> Iterator[tuple[Any, ...]]:
    import pyarrow.compute as pc

    kind = {"rows": STATE, "timers": STATE, "transitions": TRANSITION, "refused": REFUSED}[name]
    found = batch.filter(pc.equal(batch.column("kind"), kind))
    match name:
        case "rows" | "timers":
            decode = {each: RowCodec[Any](processor.row_of(each)).decode for each in ("", *processor.tables)}
            columns = (found.column(each).to_pylist() for each in ("partition", "key", "value"))
            for partition, key, value in zip(*columns, strict=True):
                table, of = place_of_row(key)
                if key[:1] not in ROW_KINDS and name == "timers":
                    yield (partition, of, decode_due(value))
                elif key[:1] in ROW_KINDS and name == "rows":
                    told = (table or None,) if processor.tables else ()
                    yield (partition, of, readable(decode[table](value)), value, *told)
        case "transitions":
            columns = (
                found.column(each).to_pylist()
                for each in ("partition", "offset", "at_ms", "name", "before", "after")
            )
            yield from zip(*columns, *_topics(found, processor), *_tables(found, processor), strict=True)
        case _:
            columns = (
                found.column(each).to_pylist() for each in ("partition", "offset", "name", "before", "after")
            )
            yield from zip(*columns, *_topics(found, processor), strict=True)


def _topics(found: pa.RecordBatch, processor: Processor[Any, Any]) -> list[list[str | None]]:
    return [_texts(found, "key")] if processor.named_sources else []


def _tables(found: pa.RecordBatch, processor: Processor[Any, Any]) -> list[list[str | None]]:
    return [_texts(found, "value")] if processor.tables else []


def _texts(found: pa.RecordBatch, column: str) -> list[str | None]:
    return [None if each is None else each.decode() for each in found.column(column).to_pylist()]
