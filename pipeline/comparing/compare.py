"""Two versions of a fold over one history, in one pass: which keys they keep other rows of, since which record, and in which fields."""

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
from holdfast.pipeline.folds.folding import FoldSummary
from holdfast.pipeline.folds.paired import OTHER, PARTED, widened
from holdfast.pipeline.folds.results import decode_summary, summaries_of
from holdfast.pipeline.replay import ReplayOptions, replay

ONLY_HERE, ONLY_THERE, WHOLE = "(row only in this version)", "(row only in the other)", "(row)"
"""What stands for a field where there is no row to compare, or no row with fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedKey:
    """A key whose rows differ, or did for a while (*apart* False). They first did at *offset*, the record of *at_ms* (ms since the
    epoch). *mine* and *theirs* are the last rows, as JSON, None for no row; *fields* are those that differ, at the top level.
    """

    partition: int
    table: str
    key: str
    offset: int
    at_ms: int
    apart: bool
    mine: str | None
    theirs: str | None
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """What the two made of a partition. *equal* is by digest, of rows and timers as stored; *apart* counts keys whose rows differ at the end,
    *met_again* those that only did in between.
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
    first_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where two versions of a processor part. *fields* counts, by field, the keys that differ in it at the end."""

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
        return not self.keys and all(each.equal for each in self.partitions)

    @property
    def apart(self) -> int:
        return sum(each.apart for each in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {**asdict(self), "equal": self.equal}


def compare(
    processor: Processor[Any, Any],
    other: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions | None = None,
) -> Comparison:
    """Fold *processor* and *other* over one history, each record once, and return where their rows differ.

    Rows are compared as JSON, field by field, so the types of the rows may differ. Both are folded from the beginning. Raises
    ConfigError for processors that do not fold the same single source, and what `replay` does.
    """
    _check(processor, other)
    options = options or ReplayOptions()
    one, two = widened(processor, other)
    replayed = replay(one, settings, replace(options, rows=False, transitions=False, out=None, beside=two))
    assert replayed.results is not None, "nothing is written to a folder"
    told = _of(replayed.results, OTHER).column("after").to_pylist()
    others = summaries_of(map(decode_summary, told), [each.partition for each in replayed.partitions])
    keys = tuple(map(_key, _of(replayed.results, PARTED).to_pylist()))
    return Comparison(
        processor=processor.name,
        version=processor.version,
        other=other.name,
        other_version=other.version,
        engine=replayed.engine,
        records=replayed.records,
        partitions=tuple(
            _partition(mine, theirs, [each for each in keys if each.partition == mine.partition])
            for mine, theirs in zip(replayed.partitions, others, strict=True)
        ),
        keys=keys,
        fields=dict(Counter(name for each in keys if each.apart for name in each.fields).most_common()),
        holes=replayed.holes,
    )


def _check(processor: Processor[Any, Any], other: Processor[Any, Any]) -> None:
    for each in (processor, other):
        if each.on is not None:
            raise ConfigError(
                f"processor {each.name} declares its sources with on=: only folds of one source, declared with source=, can be compared yet. Replay "
                "each with --out, and compare the tables"
            )
    if processor.source != other.source:
        raise ConfigError(
            f"processor {processor.name} folds {processor.source}, and {other.name} folds {other.source}: there is no one history to compare them over"
        )


def _of(results: pa.Table, kind: str) -> pa.Table:
    return results.filter(pc.equal(results["kind"], kind))


def _partition(mine: FoldSummary, theirs: FoldSummary, keys: list[PartedKey]) -> ComparedPartition:
    apart = sum(each.apart for each in keys)
    return ComparedPartition(
        partition=mine.partition,
        records=mine.records,
        rows=mine.rows,
        other_rows=theirs.rows,
        refused=mine.refused,
        other_refused=theirs.refused,
        equal=mine.digest == theirs.digest,
        apart=apart,
        met_again=len(keys) - apart,
        first_offset=min((each.offset for each in keys), default=None),
    )


def _key(row: Mapping[str, Any]) -> PartedKey:
    apart = bool(row["value"])
    return PartedKey(
        partition=row["partition"],
        table=row["key"].decode(),
        key=row["name"],
        offset=row["offset"],
        at_ms=row["at_ms"],
        apart=apart,
        mine=row["before"],
        theirs=row["after"],
        fields=fields_apart(row["before"], row["after"]) if apart else (),
    )


def fields_apart(mine: str | None, theirs: str | None) -> tuple[str, ...]:
    """Return the names of the fields in which two rows differ.

    >>> fields_apart('{"a":1,"b":2}', '{"a":1,"b":3,"c":4}'), fields_apart(None, '{"a":1}'), fields_apart("1", "2")
    (('b', 'c'), ('(row only in the other)',), ('(row)',))
    """
    if mine is None or theirs is None:
        return (ONLY_THERE if mine is None else ONLY_HERE,)
    one, other = _fields(mine), _fields(theirs)
    if one is None or other is None:
        return (WHOLE,)
    missing = object()
    return tuple(
        sorted(name for name in {*one, *other} if one.get(name, missing) != other.get(name, missing))
    )


def _fields(row: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(row)
    except msgspec.DecodeError:  # what JSON cannot write is told otherwise
        return None
    return found if isinstance(found, dict) else None
