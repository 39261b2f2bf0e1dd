"""The fold of whole partitions from columns of records: what each Spark task runs, and the local engine too.

Records go in as Arrow batches or as `Batch`es, in offset order within each partition; out come tables of one
schema: final rows and timers as stored, refused records, transitions when asked for, one summary per
partition. Executors import this module: it needs the core, pyarrow and numpy, no Spark.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Protocol, cast

import msgspec
import pyarrow as pa

from holdfast.core.engine.declared.processor import Emit, Headers, Input, Processor
from holdfast.core.engine.fold.folding import Batch, Folder, Refused, Transition
from holdfast.core.engine.fold.skips import OffsetRanges, behind
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.migrating import Beginning
from holdfast.core.engine.positions import Position, encode_position, stored_format
from holdfast.core.engine.state.codec import NOTHING_APPLIED, ROW_KINDS, TIMER_KINDS, digest
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.core.engine.state.timers import NEVER
from holdfast.errors import OrderError
from holdfast.pipeline.bronze.files import whole_ms
from holdfast.pipeline.folds.spilling import STATE_MEMORY_BYTES, SpillingStore
from holdfast.pipeline.folds.waiting import fold_whole, waiting
from holdfast.pipeline.progress import advance

TRANSACTION_RECORDS = 50_000
TRANSACTION_BYTES = 32 << 20
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
RESULT_DDL = (
    "kind string, partition int, offset bigint, at_ms bigint, name string, before string, after string, key"
    " binary, value binary"
)

STATE, REFUSED, TRANSITION, EMITTED, SUMMARY = "state", "refused", "transition", "emitted", "summary"
EVERYWHERE = (1 << 63) - 1
"""An offset, or the number of a choice, that comes after all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitsWanted:
    """The emits of each partition to return: those after *handovers*, where there is one, each with the
    information whether it comes up to *due*.
    """

    handovers: Mapping[int, Handover]
    due: Mapping[int, Handover]

    def places(self, partition: int) -> list[Handover]:
        """Return the positions at which a transaction ends, that of *due* the last."""
        silent = self.handovers.get(partition)
        return [*([] if silent is None else [silent]), self.due[partition]]


def all_emits(
    processor: Processor[Any, Any], partitions: Iterable[int], *, internal_alone: bool
) -> EmitsWanted:
    """Return the choice of all emits, or with *internal_alone* of those to internal topics: the ones that a
    version emits that is silent otherwise.
    """
    everywhere = Handover(HANDOVER_FORMAT, (EVERYWHERE,) * len(processor.topics), EVERYWHERE)
    upto = dict.fromkeys(partitions, everywhere)
    return EmitsWanted(handovers=upto if internal_alone else {}, due=upto)


class FoldedPartition(Protocol):
    """The fold of one partition, which takes records in order, then yields results."""

    def feed(self, batch: Batch, size_bytes: int) -> None: ...

    def finish(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


class FoldBeside(Protocol):
    """Folds another version along with the one of a plan. It can be pickled."""

    def of_one(self, plan: FoldPlan, partition: int, results: Results) -> FoldedPartition:
        """Return the two folds of one partition of one source."""

    def of_several(self, plan: FoldPlan, partition: int, results: Results, open_global: Any) -> Any:
        """Return the two folds of one partition of several sources
        (holdfast/pipeline/folds/merged_fold.py).
        """

    def source_inputs(self, plan: FoldPlan) -> list[tuple[Input, ...]]:
        """Return the columns of each source that either version takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """The processor to fold and the results to return.

    *rows* False leaves final rows and timers out (their digest is in the summary all the same). *transitions*
    returns every change of a row, or with *of_key*, a table ("" for the processor's own) and a key, only
    those of that row; or with *of_prefixes* of rows of its own whose keys begin so. Folding then is record by
    record, about three times slower. *skips* are offsets of each partition that are left out, whatever a
    reader gives: skipped offsets of a source do not exist for its application. *later_timeout_s* is how long
    a record may wait for the services that its fold needs. *emits* returns the emits as well. *refused* are
    records, by topic and offset, that the table refused for a reason that may have passed.
    """

    processor: Processor[Any, Any]
    rows: bool = True
    emits: EmitsWanted | None = None
    refused: Mapping[int, frozenset[tuple[str, int]]] = field(default_factory=dict)
    transitions: bool = False
    of_key: tuple[str, str] | None = None
    of_prefixes: tuple[str, ...] = ()
    skips: Mapping[int, OffsetRanges] = field(default_factory=dict)
    later_timeout_s: float = 600.0
    bases: Mapping[int, Beginning] = field(default_factory=dict)
    """The first states of partitions that did not begin empty."""
    memory_bytes: int = STATE_MEMORY_BYTES
    """About so much of the state of a partition is in memory while it is folded, and all of it in a temporary
    file where there is more.
    """
    beside: FoldBeside | None = None
    """Another version that is folded as well, each partition from its beginning: only the differences between
    the two are returned then.
    """

    def fold_of(self, partition: int, results: Results, state: FoldedState | None = None) -> FoldedPartition:
        """Return the fold of one partition of one source, from *state* or else its beginning."""
        if self.beside is not None:
            return self.beside.of_one(self, partition, results)
        return PartitionFold(self, partition, results, state)

    @property
    def source_inputs(self) -> list[tuple[Input, ...]]:
        """Return the columns that batches of each of several sources must have."""
        if self.beside is not None:
            return self.beside.source_inputs(self)
        return [each.inputs for each in self.processor.folds]

    def handover(self, partition: int) -> Handover | None:
        """Return the position up to which a partition's emits are not returned."""
        return None if self.emits is None else self.emits.handovers.get(partition)

    def tells(self, each: Transition[Any]) -> bool:
        """Return whether a transition is one of those asked for."""
        if self.of_prefixes:
            return not each.table and each.key.startswith(self.of_prefixes)
        return self.of_key is None or self.of_key == (each.table, each.key)


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


class FoldStore(Protocol):
    """The committed rows of a partition, as a fold reads and changes them."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None: ...

    def everything(self) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FoldedState:
    """The state with which a fold of one partition continues: stored rows, at *position*. Its creator closes
    it.
    """

    store: FoldStore
    position: Position


def beginning_of(plan: FoldPlan, partition: int) -> FoldedState:
    """Return the first state of a partition, in a store of its own."""
    base, store = plan.bases.get(partition), SpillingStore(plan.memory_bytes)
    if base is None:
        return FoldedState(store, stored_format(plan.processor).start)
    store.apply(base.stored)
    return FoldedState(store, base.position)


class PartitionFold:
    """The fold of one partition, from *state* (None: from its beginning) to its last record. Close it when
    done: what it began with may be in a file.
    """

    def __init__(
        self, plan: FoldPlan, partition: int, results: Results, state: FoldedState | None = None
    ) -> None:
        self.partition, self._plan, self._results = partition, plan, results
        self._skips = plan.skips.get(partition, ())
        self._owns_store = state is None
        state = state or beginning_of(plan, partition)
        self._store, at = state.store, state.position
        assert not at.reached_ms, "several sources are folded elsewhere"
        self._folder: Folder[Any] = Folder(
            plan.processor,
            self._store,
            marker=at,
            trace=self._trace if plan.transitions else None,
            handover=plan.handover(partition),
            partition=partition,
        )
        topic = plan.processor.topics[0]
        self._folder.refused_before = {
            ("", offset) for of, offset in plan.refused.get(partition, ()) if of == topic
        }
        self._due = None if plan.emits is None else plan.emits.due[partition].applied[0]
        self._on_later = waiting(plan.later_timeout_s)
        self._where = f"replay of {plan.processor.table} partition {partition}"
        self._pending: list[Batch] = []
        self._pending_records = self._pending_bytes = self._records = self._refused = 0
        (self._last,) = at.applied

    def _trace(self, each: Transition[Any]) -> None:
        if self._plan.tells(each):
            self._results.transition(self.partition, each)

    def feed(self, batch: Batch, size_bytes: int) -> None:
        """Take records that follow the last ones; raises OrderError when they do not.

        They are folded in large transactions.
        """
        if not batch.offsets:
            return
        if batch.offsets[0] <= self._last:
            raise OrderError(f"partition {self.partition}: offset {batch.offsets[0]} came after {self._last}")
        self._last = batch.offsets[-1]
        if self._skips:
            batch = without(batch, self._skips)
            if not batch.offsets:
                return
        if self._due is not None and batch.offsets[-1] > self._due:
            cut = bisect_right(batch.offsets, self._due)
            if cut:
                self._pending.append(batch.slice(0, cut))
            self._fold()
            self._due, batch = None, batch.slice(cut, len(batch.offsets))
        self._pending.append(batch)
        self._pending_records += len(batch.offsets)
        self._pending_bytes += size_bytes
        if self._pending_records >= TRANSACTION_RECORDS or self._pending_bytes >= TRANSACTION_BYTES:
            self._fold()

    def _fold(self) -> None:
        pending, self._pending, self._pending_records, self._pending_bytes = self._pending, [], 0, 0
        while pending and self._folder.marker.applied[0] < pending[-1].offsets[-1]:  # a handover cuts it
            changes = fold_whole(self._folder, pending, self._on_later, self._where)
            assert changes is not None, "feed() lets nothing through that was folded before"
            self._store.apply(changes.puts)
            for each in changes.refused:
                self._results.refused(self.partition, each)
            if self._plan.emits is not None:
                self._results.emitted(self.partition, changes.emits, is_due=self._due is not None)
            self._records += changes.records
            self._refused += len(changes.refused)
            self._folder.commit()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Fold the pending records, then yield the rest of the results: refused records, final rows, the
        summary last.
        """
        self._fold()
        yield from self._results.take(1)
        kinds = Counter(key[:1] for key, _ in self._store.everything())
        if self._plan.rows:
            yield from states(self._store, self.partition)
        summary = FoldSummary(
            partition=self.partition,
            applied=self._folder.marker.applied[0],
            stream_ms=self._folder.stream_ms,
            records=self._records,
            refused=self._refused,
            rows=sum(kinds[kind] for kind in ROW_KINDS),
            timers=sum(kinds[kind] for kind in TIMER_KINDS),
            digest=digest(self._store.everything()),
            **told_event_time(self._folder.event_ms if self._plan.processor.has_event_time else None),
            **told_watermarks(self._store.get(WATERMARKS)),
        )
        if (marker := self._folder.marker).origins is not None:
            summary = msgspec.structs.replace(summary, position=b64encode(encode_position(marker)).decode())
        yield summary_batch(summary)

    def close(self) -> None:
        """Release the state, unless another object owns it."""
        if self._owns_store:
            self._store.close()


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


def without(batch: Batch, skips: OffsetRanges) -> Batch:
    """Return the records of *batch* that are not skipped."""
    offsets = batch.offsets
    if all(last < offsets[0] or first > offsets[-1] for first, last in skips):
        return batch
    left = [at for at, offset in enumerate(offsets) if behind(skips, offset) == offset]

    def of(column: Sequence[Any]) -> list[Any]:
        return [column[at] for at in left]

    return Batch(of(offsets), of(batch.times_ms), tuple(map(of, batch.columns)))


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


# -- Arrow in


def columns_needed(inputs: Sequence[Input], time: str = "timestamp") -> list[str]:
    """Return the bronze columns a fold needs: coordinates, *time* (the name of its column) and inputs."""
    return ["partition", "offset", time, *(name for name in inputs if name not in ("offset", "partition"))]


def _times_ms(run: pa.RecordBatch) -> list[int]:
    """Return Kafka's own timestamps where they are, else those that Spark made of them."""
    if "timestamp_ms" in run.schema.names:
        return cast(list[int], run.column("timestamp_ms").to_numpy().tolist())
    return cast(list[int], whole_ms(run.column("timestamp")).to_numpy().tolist())


def _headers(column: pa.Array) -> list[Headers]:
    return [
        tuple((header["key"], header["value"]) for header in headers or ()) for headers in column.to_pylist()
    ]


_COLUMN: dict[str, Callable[[pa.Array], Sequence[Any]]] = {
    "value": pa.Array.to_pylist,
    "key": pa.Array.to_pylist,
    "headers": _headers,
}


def split(records: pa.RecordBatch, inputs: Sequence[str]) -> Iterator[tuple[int, Batch]]:
    """Yield (partition, records) for each run of one partition; raises OrderError when offsets do not
    ascend within a run.
    """
    import numpy as np

    if not records.num_rows:
        return
    partitions = records.column("partition").to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), records.num_rows]
    for start, stop in pairwise(cuts):
        run = records.slice(start, stop - start)
        partition = int(partitions[start])
        offsets = run.column("offset").to_numpy()
        steps = np.diff(offsets)
        if (steps <= 0).any():
            at = int(np.argmax(steps <= 0))
            raise OrderError(f"partition {partition}: offset {offsets[at + 1]} came after {offsets[at]}")
        dense = int(offsets[-1]) - int(offsets[0]) + 1 == len(offsets)
        places: Sequence[int] = range(int(offsets[0]), int(offsets[-1]) + 1) if dense else offsets.tolist()
        known: dict[str, Sequence[Any]] = {"offset": places, "partition": [partition] * len(places)}
        columns = tuple(known[name] if name in known else _COLUMN[name](run.column(name)) for name in inputs)
        yield partition, Batch(places, _times_ms(run), columns)


def fold_batches(plan: FoldPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold the partitions found in *batches* and yield their results (schema RESULT): the function given to
    mapInArrow.
    """
    results = Results()
    folds: dict[int, FoldedPartition] = {}
    with ExitStack() as stack:
        for records in batches:
            for partition, batch in split(records, plan.processor.columns):
                fold = folds.get(partition)
                if fold is None:
                    fold = folds[partition] = plan.fold_of(partition, results)
                    stack.callback(fold.close)
                fold.feed(batch, records.nbytes * len(batch.offsets) // records.num_rows)
                yield from results.take()
        for partition in sorted(folds):
            yield from folds.pop(partition).finish()


def fold_partition(
    plan: FoldPlan,
    partition: int,
    batches: Iterable[tuple[Batch, int]],
    state: FoldedState | None = None,
    results: Results | None = None,
) -> Iterator[pa.RecordBatch]:
    """Fold one partition from (records, their size in bytes) and yield its results, the summary last;
    continue with *state* if that is given.
    """
    results = results or Results()
    reached: int | None = None
    with closing(plan.fold_of(partition, results, state)) as fold:
        for batch, size_bytes in batches:
            fold.feed(batch, size_bytes)
            reached = told_progress(batch, reached)
            yield from results.take()
        yield from fold.finish()


def told_progress(batch: Batch, reached: int | None) -> int | None:
    """Report a partition's progress at *batch*, markers and omitted records included; return its last
    offset.
    """
    if not batch.offsets:
        return reached
    advance(batch.offsets[-1] - (batch.offsets[0] - 1 if reached is None else reached))
    return batch.offsets[-1]
