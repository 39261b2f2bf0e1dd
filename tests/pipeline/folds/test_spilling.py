"""Copies of global tables in a replay: the same rows in memory and in a file, which is removed afterwards."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.merge.global_copies import GlobalLog, GlobalReplay
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import LakeError, PipelineError
from holdfast.pipeline.folds import spilling
from holdfast.pipeline.folds.spilling import SpillingStore
from tests.support.scale import scaled

KEYS = st.sampled_from(
    [b"\x00\x00\x02a", b"\x00\x00\x02ab", b"\x00\x00\x02b", b"\x00\x01\x02a", b"\x00\x00\x02\xff"]
)
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=9)), max_size=8)


@settings(deadline=None, max_examples=scaled(60))
@given(
    changes=CHANGES,
    limit=st.sampled_from([0, 300, 700, 1 << 20]),
    page=st.sampled_from([1, 2, 1_000]),
    page_bytes=st.sampled_from([0, 10, 1 << 20]),
)
def test_rows_are_the_same_wherever_they_lie(
    changes: list[dict[bytes, bytes | None]], limit: int, page: int, page_bytes: int
) -> None:
    held, wanted = SpillingStore(limit), DictStore()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spilling, "PAGE_ROWS", page)
        patched.setattr(spilling, "PAGE_BYTES", page_bytes)
        for each in changes:
            held.apply(each.items())
            wanted.apply(each.items())
            for prefix in (b"", b"\x00\x00", b"\x00\x00\x02a", b"\x00\x01", b"\x07"):
                assert [*held.scan(prefix)] == [*wanted.scan(prefix)]
                assert [*held.scan(prefix, b"a\x01")] == [*wanted.scan(prefix, b"a\x01")]
            for key in each:
                assert held.get(key) == wanted.get(key)
        held.close()


def test_rows_move_to_a_file_that_goes_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = SpillingStore(10_000)
    store.apply([(b"a", b"x" * 5_000)])
    store.apply([(b"a", b"y" * 5_000)])
    assert [*tmp_path.iterdir()] == [], "a row that is replaced counts once"
    store.apply([(b"b", b"x" * 5_000)])
    assert [*(each.name[:14] for each in tmp_path.iterdir())] == ["holdfast-rows-"]
    assert (store.get(b"a"), store.get(b"c")) == (b"y" * 5_000, None)
    store.close()
    assert [*tmp_path.iterdir()] == []


def test_of_large_rows_in_a_file_few_are_read_at_once() -> None:
    with closing(SpillingStore(0)) as store:
        store.apply((b"%03d" % at, b"v" * (1 << 18)) for at in range(40))
        tracemalloc.start()
        try:
            assert sum(len(value) for _, value in store.scan(b"")) == 40 << 18
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 << 20, "all of them are 10 MiB"


def test_of_changes_that_end_with_an_error_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the iterator of changes comes through as it is."""

    def changes() -> Iterator[tuple[bytes, bytes | None]]:
        yield b"a", b"x"
        raise LakeError("where they come from")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with closing(SpillingStore(0)) as store:
        store.apply([(b"b", b"y")])
        with pytest.raises(LakeError, match="where they come from"):
            store.apply(changes())
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_cannot_be_made_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(
        PipelineError, match=r"cannot be kept in a file in .*set TMPDIR to a folder with more"
    ):
        SpillingStore(0).apply([(b"a", b"x")])


def keep(rows: Rows[str], event: str, at_ms: int, key: str) -> None:
    rows[key] = event


@settings(deadline=None, max_examples=scaled(20))
@given(ends=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), min_size=1, max_size=6))
def test_positions_of_a_replay_show_the_same_rows(ends: list[tuple[int, int]]) -> None:
    table: Global[str] = Global("rates", Source("rates", Text()), FoldWith(keep, ("key",)), row=str)
    records = [(b"v%d" % at, b"k%d" % (at % 5)) for at in range(30)]

    def logs(number: int) -> dict[int, GlobalLog]:
        return {
            partition: GlobalLog(
                [
                    Batch([at], [at], ([value], [b"%d" % partition + key]))
                    for at, (value, key) in enumerate(records)
                ],
                30,
            )
            for partition in range(2)
        }

    store = SpillingStore(0)
    replays = GlobalReplay([table], logs), GlobalReplay([table], logs, [store])
    first, second = sorted(one for one, _ in ends), sorted(other for _, other in ends)
    for vector in zip(first, second, strict=True):
        found = []
        for replay in replays:
            replay.move(0, vector)
            found.append([*replay.view(0, vector).scan(b"\x02")])
            replay.settle(0, vector)
        assert found[0] == found[1]
    store.close()
