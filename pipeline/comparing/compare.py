"""Two versions of a fold over one history, in one pass: which keys they keep other rows of, since which
record, and in which fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError
from holdfast.pipeline.folds.plan import OtherVersion
from holdfast.pipeline.folds.result_rows import FoldSummary
from holdfast.pipeline.folds.results import decode_summary, summaries_of
from holdfast.pipeline.folds.spilling import STATE_MEMORY_BYTES
from holdfast.pipeline.folds.version_diff import COUNTED, OTHER, PARTED, PartedCounts, fields_apart
from holdfast.pipeline.replay import ReplayOptions, replay

_decode_counts = msgspec.json.Decoder(PartedCounts).decode
LIMIT_KEYS = 10_000
"""The most differing keys that are reported of each partition; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedKey:
    """A key whose rows differ, or did for a while (*apart* False). They first did at *offset* of *topic*, the
    record of *at_ms* (ms since the epoch); of a tick *topic* is None, and *offset* the number of its choice.
    *mine* and *theirs* are the last rows, as JSON, None for no row; *fields* are those that differ, at the
    top level.
    """

    partition: int
    table: str
    key: str
    topic: str | None
    offset: int
    at_ms: int
    apart: bool
    mine: str | None
    theirs: str | None
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """The results of two versions on a partition. *equal* is by digest, of rows and timers as stored; *apart*
    counts keys whose rows differ at the end, *met_again* those that only did in between. The first of all did
    at *first_offset* of *first_topic*.
    """

    partition: int
    records: int
    rows: int
    other_rows: int
    refused: int
    other_refused: int
    equal: bool
    apart: int
    met_again: int
    first_topic: str | None
    first_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two versions of a processor. *keys* are at most so many of a partition as were
    asked for, those that differ at the end first; *fields* counts, by field, all keys that differ in it at
    the end.
    """

    processor: str
    version: int
    other: str
    other_version: int
    engine: str
    records: int
    partitions: tuple[ComparedPartition, ...]
    keys: tuple[PartedKey, ...]
    fields: Mapping[str, int]
    holes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Return whether both end with the same rows and timers, and never differed."""
        return all(each.equal and not each.apart and not each.met_again for each in self.partitions)

    @property
    def apart(self) -> int:
        return sum(each.apart for each in self.partitions)

    @property
    def left_out(self) -> int:
        """Return the number of keys that differ, or did, and are not among *keys*."""
        return self.apart + sum(each.met_again for each in self.partitions) - len(self.keys)

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {**asdict(self), "equal": self.equal, "left_out": self.left_out}


def compare(
    processor: Processor[Any, Any],
    other: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions | None = None,
    *,
    memory_bytes: int = STATE_MEMORY_BYTES,
    limit_keys: int = LIMIT_KEYS,
) -> Comparison:
    """Fold *processor* and *other* over one history, each record once, and return where their rows differ.

    Rows are compared as JSON, field by field, so the types of the rows may differ. Both are folded from the
    beginning, several sources in the order of the choices of *processor*. While a partition is folded, about
    *memory_bytes* of each state and of the differences are in memory, and all of it in temporary files where
    there is more. At most *limit_keys* keys of each partition are returned; all are counted. Raises
    ConfigError for processors that do not fold the same sources and globals, and any error of `replay`.
    """
    _check(processor, other)
    options = options or ReplayOptions()
    beside = OtherVersion(processor=other, memory_bytes=memory_bytes, limit_keys=limit_keys)
    asked = replace(options, rows=False, transitions=False, out=None, other=beside)
    replayed = replay(processor, settings, asked)
    assert replayed.results is not None, "nothing is written to a folder"
    told = _of(replayed.results, OTHER).column("after").to_pylist()
    others = summaries_of(map(decode_summary, told), [each.partition for each in replayed.partitions])
    source = None if processor.named_sources else processor.topics[0]
    keys = tuple(_key(row, source) for row in _of(replayed.results, PARTED).to_pylist())
    counts = {
        row["partition"]: _decode_counts(row["after"]) for row in _of(replayed.results, COUNTED).to_pylist()
    }
    return Comparison(
        processor=processor.name,
        version=processor.version,
        other=other.name,
        other_version=other.version,
        engine=replayed.engine,
        records=replayed.records,
        partitions=tuple(
            _partition(mine, theirs, counts.get(mine.partition, PartedCounts()), source)
            for mine, theirs in zip(replayed.partitions, others, strict=True)
        ),
        keys=keys,
        fields=dict(sum((Counter(each.fields) for each in counts.values()), Counter[str]()).most_common()),
        holes=replayed.holes,
    )


def _check(processor: Processor[Any, Any], other: Processor[Any, Any]) -> None:
    if processor.named_sources != other.named_sources or processor.signature != other.signature:
        one, two = (_told(each) for each in (processor, other))
        raise ConfigError(
            f"processor {processor.name} folds {one}, and {other.name} folds {two}: there is no one history"
            " to compare them over"
        )


def _told(processor: Processor[Any, Any]) -> str:
    reads = "".join(f" and the global {each.name}" for each in processor.reads)
    return f"{', '.join(processor.topics)}{reads}{' (on=)' if processor.named_sources else ''}"


def _of(results: pa.Table, kind: str) -> pa.Table:
    return results.filter(pc.equal(results["kind"], kind))


def _partition(
    mine: FoldSummary, theirs: FoldSummary, counts: PartedCounts, source: str | None
) -> ComparedPartition:
    return ComparedPartition(
        partition=mine.partition,
        records=mine.records,
        rows=mine.rows,
        other_rows=theirs.rows,
        refused=mine.refused,
        other_refused=theirs.refused,
        equal=mine.digest == theirs.digest,
        apart=counts.apart,
        met_again=counts.met_again,
        first_topic=None if counts.offset is None else counts.topic or source,
        first_offset=counts.offset,
    )


def _key(row: Mapping[str, Any], source: str | None) -> PartedKey:
    apart, topic = row["value"][:1] == b"+", row["value"][1:].decode()
    return PartedKey(
        partition=row["partition"],
        table=row["key"].decode(),
        key=row["name"],
        topic=topic or source,
        offset=row["offset"],
        at_ms=row["at_ms"],
        apart=apart,
        mine=row["before"],
        theirs=row["after"],
        fields=fields_apart(row["before"], row["after"]) if apart else (),
    )
