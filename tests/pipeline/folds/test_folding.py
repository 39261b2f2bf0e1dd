"""The function that each Spark task runs, called directly: no Spark here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import compute

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.state.codec import RowCodec, digest, row_key, text_key, wake_key
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import Later, OrderError, StillWaitingError
from holdfast.pipeline.bronze.files import whole_ms
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.folds import folding
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.result_rows import OUT_ROWS, RESULT, FoldSummary
from holdfast.pipeline.folds.results import Replayed, gather, present, summaries_of
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.topic import Span
from holdfast.tables.rocks import Budget
from holdfast.tables.store import PartitionStore, StoreStamp
from tests.pipeline.accounts import Account, Log, Record, accounts, logs, records
from tests.pipeline.lakes import cut, record_batch, write_bronze
from tests.support.scale import scaled

PROCESSOR = accounts()
BUDGET = Budget.of(1 << 20, 1 << 20)
RELAXED = settings(max_examples=scaled(25), suppress_health_check=[HealthCheck.too_slow])


def replayed(
    batches: Iterable[pa.RecordBatch], partitions: Iterable[int], plan: FoldPlan | None = None
) -> Replayed:
    summaries, results = gather(fold_batches(plan or FoldPlan(processor=PROCESSOR), batches), partitions)
    return Replayed(processor="accounts", version=1, engine="test", partitions=summaries, results=results)


def fold_batches(plan: FoldPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold the partitions found in *batches* and yield their results."""
    logs = dict[int, list[tuple[Batch, int]]]()
    for rows in batches:
        for partition in dict.fromkeys(rows.column("partition").to_pylist()):
            found = rows.filter(compute.equal(rows.column("partition"), partition))
            logs.setdefault(partition, []).append((batch_in(found), found.nbytes))
    for partition, log in sorted(logs.items()):
        yield from fold_partition(plan, partition, [log])


def batch_in(rows: pa.RecordBatch) -> Batch:
    headers = [
        tuple((each["key"], each["value"]) for each in of or ()) for of in rows.column("headers").to_pylist()
    ]
    values, keys, offsets = (rows.column(name).to_pylist() for name in ("value", "key", "offset"))
    times = whole_ms(rows.column("timestamp")).to_pylist()
    return Batch(offsets, times, (values, keys, headers, offsets))


def batch_of(part: list[Record]) -> Batch:
    columns: tuple[list[Any], ...] = (
        [r.value for r in part],
        [r.key for r in part],
        [r.headers for r in part],
        [r.offset for r in part],
    )
    return Batch([r.offset for r in part], [r.at_ms for r in part], columns)


def live(log: Log, folder: Path, step: int) -> dict[int, tuple[str, list[Any], int]]:
    """Fold as a worker does, RocksDB and small transactions: (digest, refused, stream time) by partition."""
    out: dict[int, tuple[str, list[Any], int]] = {}
    for partition, whole in log.items():
        stamp = StoreStamp(
            app="a", processor="accounts", version=1, partition=partition, cluster_id="c", changelog_id="l"
        )
        store = PartitionStore(folder / str(partition), stamp, BUDGET)
        folder_of = Folder(PROCESSOR, store, cache_rows=4)
        refused: list[Any] = []
        for start in range(0, len(whole), step):
            changes = folder_of.fold([batch_of(whole[start : start + step])])
            assert changes is not None
            store.write(changes.puts, changes.marker, 0)
            refused += changes.refused
            folder_of.commit()
        out[partition] = (digest(store.everything()), refused, folder_of.stream_ms)
        store.close()
    return out


@pytest.mark.long
@RELAXED
@given(log=logs(), step=st.integers(1, 30), size=st.integers(1, 40))
def test_a_task_reaches_the_bytes_that_a_worker_has_in_rocksdb(log: Log, step: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        want = live(log, Path(folder), step)
    got = replayed(cut(log, size), log)
    assert {each.partition: each.digest for each in got.partitions} == {
        partition: each[0] for partition, each in want.items()
    }
    assert {partition: got.refused(partition) for partition in log} == {
        partition: each[1] for partition, each in want.items()
    }
    assert {each.partition: each.stream_ms for each in got.partitions} == {
        partition: each[2] for partition, each in want.items()
    }


def test_that_comparison_fires_when_one_timestamp_is_off_by_one_ms(tmp_path: Path) -> None:
    log = {0: [Record(0, 1_000, None, b"add a 1")]}
    late = {0: [Record(0, 1_001, None, b"add a 1")]}
    assert replayed(cut(late, 1), log).partitions[0].digest != live(log, tmp_path, 1)[0][0]


@pytest.mark.long
@RELAXED
@given(log=logs(), one=st.integers(1, 10), other=st.integers(11, 60))
def test_the_cuts_between_batches_change_nothing(log: Log, one: int, other: int) -> None:
    plan = FoldPlan(processor=PROCESSOR, transitions=True)
    first, second = replayed(cut(log, one), log, plan), replayed(cut(log, other), log, plan)
    assert first == second or first.results.equals(second.results)  # type: ignore[union-attr]
    assert first.partitions == second.partitions


@pytest.mark.long
@RELAXED
@given(log=logs(), size=st.integers(1, 40), limit=st.sampled_from([0, 1_000]))
def test_a_state_larger_than_its_memory_is_the_same_one_in_a_file_that_goes(
    log: Log, size: int, limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", folder)
        patched.setattr(folding, "TRANSACTION_RECORDS", 10)
        plan = FoldPlan(processor=PROCESSOR, transitions=True)
        want, got = (
            replayed(cut(log, size), log, replace(plan, memory_bytes=each)) for each in (1 << 30, limit)
        )
        assert (got.partitions, got.results) == (want.partitions, want.results)
        assert [*Path(folder).iterdir()] == []


def test_a_fold_that_is_given_up_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folding, "TRANSACTION_RECORDS", 1)

    def broken() -> Iterator[tuple[Batch, int]]:
        yield batch_of([Record(0, 1, None, b"add a 1")]), 10
        assert [*tmp_path.iterdir()], "the rows are in a file"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        [*fold_partition(FoldPlan(processor=PROCESSOR, memory_bytes=0), 0, [broken()])]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.long
@RELAXED
@given(log=logs(partitions=2))
def test_the_last_transition_of_each_key_is_its_final_row(log: Log) -> None:
    plan = FoldPlan(processor=PROCESSOR, transitions=True)
    got = replayed(cut(log, 7), log, plan)
    last = {
        (row["partition"], row["key"]): row["after"]
        for row in got.table("transitions", PROCESSOR).to_pylist()
    }
    rows = {(row["partition"], row["key"]): row["row"] for row in got.table("rows", PROCESSOR).to_pylist()}
    assert {key: after for key, after in last.items() if after is not None} == rows
    assert got.digest == replayed(cut(log, 7), log).digest, "telling transitions must not change the state"


@RELAXED
@given(part=records(), one=st.sampled_from(["ms", "us", "ns"]))
def test_timestamps_mean_the_same_in_every_unit(part: list[Record], one: str) -> None:
    want = replayed([record_batch(0, part)], [0]).digest
    assert replayed([record_batch(0, part, unit=one)], [0]).digest == want


def test_nanoseconds_taken_for_microseconds_would_be_noticed() -> None:
    part = [Record(0, 1_700_000_000_000, None, b"add a 1")]
    wrong = record_batch(0, part, unit="ns")
    column = wrong.column("timestamp").cast(pa.int64()).cast(pa.timestamp("us"))
    misread = wrong.set_column(3, "timestamp", column)
    assert replayed([misread], [0]).digest != replayed([wrong], [0]).digest


def test_times_before_1970_round_down() -> None:
    assert whole_ms(pa.array([-1_000, -1, 999], pa.timestamp("us", "UTC"))).to_pylist() == [-1, -1, 0]


def test_records_out_of_order_across_batches_are_refused() -> None:
    batches = [record_batch(0, [Record(offset, 1, None, b"add a 1")]) for offset in (5, 4)]
    with pytest.raises(OrderError, match="offset 4 came after 5"):
        list(fold_batches(FoldPlan(processor=PROCESSOR), batches))


def test_one_partition_folded_by_two_tasks_is_refused() -> None:
    with pytest.raises(OrderError, match="partition 1 was folded by two tasks"):
        summaries_of([FoldSummary(partition=1), FoldSummary(partition=1)], [0, 1])


def test_a_partition_without_records_has_the_digest_of_nothing() -> None:
    got = replayed([], [0, 1])
    assert [each.digest for each in got.partitions] == [digest(()), digest(())]
    assert got.applied == {0: -1, 1: -1}


def test_dense_offsets_are_kept_as_a_range_and_sparse_ones_as_they_are(tmp_path: Path) -> None:
    def read(offsets: tuple[int, ...], inputs: tuple[Any, ...]) -> Batch:
        lake = tmp_path / str(offsets)
        if not lake.exists():
            write_bronze(lake, "t", {3: [Record(offset, 1, None, b"x") for offset in offsets]}, commits=1)
        log, _ = open_bronze(bronze_path(str(lake), "t"))
        [(batch, _)] = log.batches(inputs, 3, Span(first=0, end=9))
        return batch

    assert read((4, 5, 6), ("value",)).offsets == range(4, 7)
    assert read((4, 6), ("value", "offset")).columns == ([b"x", b"x"], [4, 6])
    assert read((4, 6), ("partition", "offset")).columns == ([3, 3], [4, 6])


def test_refused_records_are_listed_with_offset_stage_and_reason() -> None:
    part = [Record(0, 1, None, b"\xff"), Record(2, 1, None, b"boom a 1"), Record(3, 1, None, b"add a 1")]
    got = replayed([record_batch(0, part)], [0])
    assert [(each.offset, each.stage, each.error) for each in got.refused(0)] == [
        (0, "decode", "UnicodeDecodeError"),
        (2, "fold", "ValueError"),
    ]
    assert got.partitions[0].refused == 2
    assert [text_key(key) for key, _ in got.state(0)] == ["a"]


def test_timers_are_part_of_state_digest_and_tables() -> None:
    with_timer = replayed([record_batch(0, [Record(0, 5, None, b"wake a 70")])], [0])
    assert (with_timer.partitions[0].rows, with_timer.partitions[0].timers) == (0, 1)
    assert with_timer.digest != replayed([], [0]).digest
    assert with_timer.table("timers", PROCESSOR).to_pylist() == [{"partition": 0, "key": "a", "due_ms": 75}]


@pytest.mark.long
def test_results_come_in_batches_of_bounded_size() -> None:
    many = [Record(offset, 1, None, b"add k%d 1" % offset) for offset in range(2 * OUT_ROWS + 5)]
    batches = list(fold_batches(FoldPlan(processor=PROCESSOR, transitions=True), [record_batch(0, many)]))
    assert max(batch.num_rows for batch in batches) <= OUT_ROWS
    assert all(batch.schema.equals(RESULT) for batch in batches)
    assert sum(present(batch, "rows", PROCESSOR).num_rows for batch in batches) == len(many)


def test_only_the_transitions_of_one_key_are_returned_when_asked() -> None:
    part = [Record(0, 1, None, b"add a 1"), Record(1, 1, None, b"add b 1"), Record(2, 1, None, b"add a 2")]
    plan = FoldPlan(processor=PROCESSOR, rows=False, transitions=True, of_key=("", "a"))
    told = replayed([record_batch(0, part)], [0], plan).table("transitions", PROCESSOR).to_pylist()
    assert [(row["offset"], row["key"]) for row in told] == [(0, "a"), (2, "a")]


def test_the_local_form_takes_batches_as_they_come_from_kafka() -> None:
    part = [Record(0, 1, None, b"add a 1"), Record(1, 2, b"a", None)]
    got = pa.Table.from_batches(fold_partition(FoldPlan(processor=PROCESSOR), 4, [[(batch_of(part), 10)]]))
    assert got["kind"].to_pylist() == ["summary"], "the row was removed again"


@given(
    changes=st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 3))), max_size=30)
)
def test_a_dict_store_scans_in_key_order_whatever_came_and_went(
    changes: list[tuple[str, int | None]],
) -> None:
    store, model = DictStore(), dict[bytes, bytes]()
    codec = RowCodec[Account](Account)
    for key, total in changes:
        stored = row_key(key)
        value = None if total is None else codec.encode(Account(total=total))
        store.apply([(stored, value), (wake_key(key), value)])
        for each in (stored, wake_key(key)):
            model.pop(each, None) if value is None else model.update({each: value})
        assert list(store.scan(b"\x02")) == sorted((k, v) for k, v in model.items() if k[:1] == b"\x02")
        assert list(store.everything()) == sorted(model.items())
        assert store.get(stored) == model.get(stored)


def test_a_replay_waits_for_what_a_fold_needs_and_ends_when_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("holdfast.pipeline.folds.waiting.time.sleep", slept.append)

    def needy(away: int) -> Processor[bytes, int]:
        left = [away]

        def fold(rows: Rows[int], event: bytes, at_ms: int) -> None:
            rows["all"] = (rows.get("all") or 0) + 1
            if event == b"needs" and left[0]:
                left[0] -= 1
                raise Later("nobody answers", needs="registry http://r:8081")

        return Processor(name="needy", source="words", decode=bytes, fold=fold, row=int)

    def told(processor: Processor[bytes, int], timeout_s: float) -> Replayed:
        batch = Batch([0, 1, 2], [5, 6, 7], ([b"a", b"needs", b"b"],))
        plan = FoldPlan(processor=processor, transitions=True, later_timeout_s=timeout_s)
        summaries, results = gather(fold_partition(plan, 3, [[(batch, 10)]]), [3])
        return Replayed(processor="needy", version=1, engine="test", partitions=summaries, results=results)

    there, waited = told(needy(0), 60), told(needy(3), 60)
    assert slept == [0.1, 0.2, 0.4]
    assert waited.partitions == there.partitions
    assert waited.results is not None
    assert waited.results.equals(there.results), "no transition is told twice"
    with pytest.raises(
        StillWaitingError, match=r"replay of needy\.v1 partition 3: offset 1 has waited"
    ) as caught:
        told(needy(1 << 30), 0)
    assert caught.value.needs == "registry http://r:8081"
