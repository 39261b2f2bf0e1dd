"""The quarantine's copy of a refused record names the lines of users' code that refused it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.clients.quarantine.copies import QUARANTINE_COPY_BYTES, quarantine_record
from holdfast.clients.quarantine.records import QuarantinedRecord, read_copy
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.folding import Folder, Refused
from holdfast.core.engine.fold.user_frames import LIMIT_CALLS
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.kafka.fetching.records import FetchedRecord


def fee(cents: int) -> int:
    return cents // 0


def fold(rows: Rows[int], cents: int, at_ms: int) -> None:
    rows["all"] = fee(cents)


def deep(rows: Rows[int], cents: int, at_ms: int) -> None:
    def a_function_with_quite_a_long_name_so_that_few_fit(depth: int) -> int:
        return a_function_with_quite_a_long_name_so_that_few_fit(depth - 1) if depth else fee(cents)

    rows["all"] = a_function_with_quite_a_long_name_so_that_few_fit(20)


def copied(folds: Any, copy_bytes: int) -> QuarantinedRecord:
    """Fold a record that is refused; return what a reader of the quarantine finds of it."""
    processor = Processor(name="fees", on={Source("in", Json(int)): folds}, row=int)
    folder = Folder(processor, DictStore())
    merger = Merger(folder.marker)
    merger.offer(0, Batch([0], [5], ([b"7"],)))
    changes = folder.fold(iter(lambda: merger.take(ends=(1,)), None))
    assert changes is not None
    (refused,) = changes.refused
    record = FetchedRecord(b"7", None, (("holdfast-calls", b"its own"),), 5)
    emit = quarantine_record("quarantine", "fees", ("in", 0), refused, record, copy_bytes)
    found = read_copy(emit.headers or (), emit.value, 9)
    assert found is not None
    return found


@pytest.mark.parametrize("copy_bytes", QUARANTINE_COPY_BYTES)
def test_a_copy_names_the_calls_that_its_error_left(copy_bytes: int) -> None:
    found = copied(fold, copy_bytes)
    line = fee.__code__.co_firstlineno + 1
    called = fold.__code__.co_firstlineno + 1
    assert found.calls == f"test_copies.py:{line} in fee, called from test_copies.py:{called} in fold"
    assert found.reason == "integer division or modulo by zero"
    assert found.headers == ((("holdfast-calls", b"its own"),) if copy_bytes else ())


def test_calls_are_cut_at_their_limit() -> None:
    calls = copied(deep, 1_000).calls
    assert calls.startswith("test_copies.py:")
    assert len(calls) == LIMIT_CALLS
    assert calls.endswith("…")


def test_a_record_without_calls_has_none() -> None:
    refused = Refused(offset=1, stage="decode", error="DecodeError", reason="no", topic="in")
    emit = quarantine_record("quarantine", "fees", ("in", 0), refused, FetchedRecord(b"", None, (), 5), 1_000)
    found = read_copy(emit.headers or (), emit.value, 9)
    assert found is not None
    assert found.calls == ""
