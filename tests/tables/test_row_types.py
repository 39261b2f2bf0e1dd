"""A table whose row type changes between two workers, over the same store and changelog."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.codec import RowCodec, row_key
from holdfast.core.engine.state.evolution import ROW_TYPES
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError, FoldError
from holdfast.tables.partition import Partition
from tests.core.engine.state.test_row_schema import Spec, changes, specs
from tests.support.scale import scaled
from tests.tables.test_lost_heads import opened


class One(msgspec.Struct, frozen=True):
    count: int = 0


class More(msgspec.Struct, frozen=True):
    count: int = 0
    note: str = "-"


class Other(msgspec.Struct, frozen=True):
    count: str = ""


def counting(row: Any) -> Processor[Any, Any]:
    def fold(rows: Rows[Any], key: str, at_ms: int) -> None:
        before = rows.get(key) or row()
        rows[key] = msgspec.structs.replace(before, count=before.count + 1)

    return Processor(name="p", source="in", decode=bytes.decode, fold=fold, row=row)


def fold(part: Partition, offset: int, key: bytes) -> list[bytes]:
    """Fold a record as a runner does; return the keys that were written."""
    folder: Folder[Any] = part.owner.folder
    made = folder.fold([Batch([offset], [5], ([key],))])
    assert made is not None
    noted = part.owner.noted(made)
    part.owner.keep(noted, offset + 1)
    folder.commit()
    return [each for each, _ in noted.puts]


def taken_up(folder: Path, processor: Processor[Any, Any]) -> Partition:
    part = opened(folder, processor)
    part.activate()
    return part


def test_the_types_are_noted_once_and_a_compatible_one_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = taken_up(tmp_path, counting(One))
    assert [fold(part, 0, b"a"), fold(part, 1, b"a")] == [[row_key("a"), ROW_TYPES], [row_key("a")]]
    part.close()
    part = taken_up(tmp_path, counting(One))
    assert fold(part, 2, b"b") == [row_key("b")], "nothing has changed"
    part.close()
    with caplog.at_level(logging.WARNING):
        part = taken_up(tmp_path, counting(More))
    assert "the row type has changed" in caplog.text
    assert fold(part, 3, b"a") == [row_key("a"), ROW_TYPES]
    rows = dict(part.everything())
    codec: RowCodec[More] = RowCodec(More)
    assert codec.decode(rows[row_key("a")]) == More(3)
    assert codec.decode(rows[row_key("b")]) == More(1)
    assert rows[row_key("b")] == RowCodec[One](One).encode(One(1)), "its bytes are those that were written"
    part.close()


def test_a_note_that_could_not_be_written_is_due_until_it_is(tmp_path: Path) -> None:
    part = taken_up(tmp_path, counting(One))
    folder: Any = part.owner.folder
    assert ROW_TYPES in dict(part.owner.noted(folder.fold([Batch([0], [5], ([b"a"],))])).puts)
    folder.rollback()
    assert ROW_TYPES in fold(part, 0, b"a")
    assert ROW_TYPES not in fold(part, 1, b"a")
    part.close()


def test_an_incompatible_type_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    part = taken_up(tmp_path, counting(One))
    fold(part, 0, b"a")
    part.close()
    part = opened(tmp_path, counting(Other))
    with pytest.raises(ConfigError, match="field count was int and is str"):
        part.activate()
    part.close()
    part = taken_up(tmp_path, counting(One))
    assert fold(part, 1, b"a") == [row_key("a")], "changed back, it goes on"
    part.rebuild("it is to be built anew")
    part.close()
    part = taken_up(tmp_path, counting(Other))
    part.close()


def setting(row: Any, value: Any) -> Processor[Any, Any]:
    def fold(rows: Rows[Any], key: str, at_ms: int) -> None:
        rows[key] = value

    return Processor(name="p", source="in", decode=bytes.decode, fold=fold, row=row)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_is_refused_at_the_start_or_reads_every_row(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("evolving")
    spec: Spec = data.draw(specs())
    written: dict[str, Any] = {}
    for number in range(4):
        row = spec.struct()
        try:
            part = opened(folder, setting(row, data.draw(spec.rows())))
            part.activate()
        except ConfigError:
            part.close()
            return
        codec: RowCodec[Any] = RowCodec(row)
        for key, values in written.items():
            read = codec.decode(part.get(key) or b"")
            kept = {name: getattr(read, name) for name in values if name in row.__struct_fields__}
            assert {name: msgspec.to_builtins(value) for name, value in kept.items()} == {
                name: values[name] for name in kept
            }
            written[key] = {name: msgspec.to_builtins(getattr(read, name)) for name in row.__struct_fields__}
        key = f"k{number}"
        try:
            fold(part, number, key.encode())
        except FoldError:
            part.close()
            return
        read = codec.decode(part.get(key) or b"")
        written[key] = {name: msgspec.to_builtins(getattr(read, name)) for name in row.__struct_fields__}
        part.close()
        spec = data.draw(changes(spec))
