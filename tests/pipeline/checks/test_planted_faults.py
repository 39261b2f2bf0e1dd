"""Faults of every kind that a lake can have, planted one at a time: reported by a check, and never folded."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from holdfast.config import Settings
from holdfast.errors import LakeError
from holdfast.pipeline.bronze import landed_notes
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.landed_notes import LandedNote, LandedNotes
from holdfast.pipeline.bronze.sealed import check_seal, sealed
from holdfast.pipeline.checks.check import check_table
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.topic import Span
from holdfast.pipeline.upkeep.compact import compact
from tests.pipeline.checks.test_check import against_topic, file_of, rewritten, value_at
from tests.pipeline.topics_in_memory import TopicInMemory, land, landing_of, topic

__all__ = ["topic"]

DAYS = timedelta(days=400)
Tree = dict[str, Any]


@pytest.fixture
def path(topic: TopicInMemory, tmp_path: Path) -> str:
    """Give a table of three commits: offsets 0 to 9, 12 to 21 and 24 to 33 of two partitions."""
    for _ in range(3):
        for partition in (0, 1):
            topic.append(partition, [b"v%d" % at for at in range(10)], gap=2)
        made = land(topic, tmp_path)
    return made


def deep(lake: Path, topic: str = "t") -> tuple[LakeFault, ...]:
    return check_table(Settings(), topic, str(lake), deep=True).faults


def values_of(path: str, partition: int = 1) -> list[Any]:
    """Return the values of a partition of the table; LakeError where one cannot be read."""
    files, landed = open_bronze(path)
    assert landed is not None
    span = Span(first=landed.begins[partition], end=landed.end[partition])
    return [each for batch, _ in files.batches(("value",), partition, span) for each in batch.columns[0]]


def in_log(path: str, named: str, change: Callable[[Tree], None]) -> None:
    """Change the newest action called *named* in a table's log."""
    for log in sorted(Path(path).glob("_delta_log/*.json"), reverse=True):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        if found := [each[named] for each in actions if named in each]:
            change(found[0])
            log.write_text("\n".join(map(json.dumps, actions)))
            return
    raise AssertionError(named)


def in_stats(path: str, change: Callable[[Tree], None]) -> None:
    def changed(add: Tree) -> None:
        stats = json.loads(add["stats"])
        change(stats)
        add["stats"] = json.dumps(stats)

    in_log(path, "add", changed)


def shifted(table: pa.Table, name: str, by: Any) -> pa.Table:
    at = table.schema.get_field_index(name)
    values = [None if each is None else each + by for each in table.column(name).to_pylist()]
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("timestamp", DAYS),
        ("date", DAYS),
        ("landed_at", DAYS),
        ("timestamp_ms", 1),
        ("timestamp_type", 1),
        ("leader_epoch", 3),
    ],
)
def test_a_column_that_was_changed_alone_is_reported(path: str, tmp_path: Path, name: str, by: Any) -> None:
    rewritten(path, lambda table: shifted(table, name, by))
    faults = [each for each in deep(tmp_path) if each.kind != "file"]
    assert faults, name
    assert {(each.partition, each.first) for each in faults} == {(1, 12)}
    told = "digest" if name in ("timestamp_type",) else name
    assert any(told in each.told for each in faults)


@pytest.mark.parametrize("name", ["timestamp", "date", "leader_epoch", "key", "headers"])
def test_each_column_is_compared_with_the_topic(
    topic: TopicInMemory, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def changed(table: pa.Table) -> pa.Table:
        if name in ("key", "headers"):
            at = table.schema.get_field_index(name)
            return table.set_column(
                at, table.schema.field(at), pa.nulls(len(table), table.schema.field(at).type)
            )
        return shifted(table, name, 3 if name == "leader_epoch" else DAYS)

    rewritten(path, changed)
    faults = against_topic(topic, tmp_path, monkeypatch).faults
    assert {(each.kind, each.partition) for each in faults} == {("changed", 1)}
    assert {each.first for each in faults} <= set(range(12, 22))


def lied(values: str, name: str, value: Any) -> Callable[[Tree], None]:
    return lambda stats: stats[values].update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lied("minValues", "date", "1999-01-01"), id="least date"),
        pytest.param(lied("maxValues", "date", "2999-01-01"), id="greatest date"),
        pytest.param(lied("maxValues", "timestamp", "1969-01-01T00:00:00.000Z"), id="greatest timestamp"),
        pytest.param(lied("minValues", "timestamp_ms", 5), id="least timestamp_ms"),
        pytest.param(lied("maxValues", "leader_epoch", 9), id="greatest epoch"),
        pytest.param(lied("minValues", "landed_at", "1999-01-01T00:00:00.000Z"), id="least landed_at"),
        pytest.param(lied("nullCount", "date", 3), id="nulls"),
        pytest.param(lambda stats: stats["minValues"].pop("date"), id="none"),
    ],
)
def test_false_statistics_of_the_log_are_reported(
    path: str, tmp_path: Path, change: Callable[[Tree], None]
) -> None:
    in_stats(path, change)
    assert "statistics" in {each.kind for each in deep(tmp_path)}


def test_dates_that_contradict_timestamps_are_found_in_the_log_alone(path: str, tmp_path: Path) -> None:
    in_stats(path, lied("minValues", "date", "1999-01-01"))
    (fault,) = check_table(Settings(), "t", str(tmp_path)).faults
    assert (fault.kind, "another least date" in fault.told) == ("statistics", True)


def test_false_statistics_of_a_footer_are_reported(path: str, tmp_path: Path) -> None:
    """The column chunk's least date, as Spark and Polars read it."""
    file = file_of(path, 1, 12)
    metadata = parquet.ParquetFile(file).metadata
    column = metadata.row_group(0).column(_place(metadata, "timestamp_ms"))
    least = column.statistics.min_raw.to_bytes(8, "little")
    content = bytearray(file.read_bytes())
    footer = len(content) - 8 - metadata.serialized_size
    assert least in content[footer:]
    content[footer:] = bytes(content[footer:]).replace(least, (1).to_bytes(8, "little"))
    file.write_bytes(content)
    assert [(each.kind, "its footer says of timestamp_ms" in each.told) for each in deep(tmp_path)] == [
        ("statistics", True)
    ]


def _place(metadata: Any, name: str) -> int:
    return [metadata.schema.column(at).path for at in range(metadata.num_columns)].index(name)


def test_a_replay_refuses_a_file_with_a_wrong_time_in_the_log(path: str, tmp_path: Path) -> None:
    """Such a file would be passed by where a replay ends at a time, and expire too early."""
    in_stats(path, lied("maxValues", "timestamp", "1969-01-01T00:00:00.000Z"))
    with pytest.raises(LakeError, match=r"has records up to .* where the table's log says otherwise"):
        [*values_of(path, 0), *values_of(path, 1)]


# -- bits


@pytest.mark.long
@pytest.mark.parametrize("step", [1_999, pytest.param(97, marks=pytest.mark.variant)])
def test_no_flipped_bit_of_the_pages_is_folded(path: str, tmp_path: Path, step: int) -> None:
    """Every so many bits: a test of all takes minutes, and was made."""
    file, want = file_of(path, 1, 12), values_of(path)
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), step):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            assert values_of(path) == want, f"bit {bit} gives other rows"
        except LakeError as error:
            assert file.name in str(error)  # noqa: PT017  some bits change nothing that is read
        prefix = 8 * (len(content) - 8 - int.from_bytes(content[-8:-4], "little"))
        if bit < prefix:
            assert deep(tmp_path), f"bit {bit} is not seen"


def test_a_flipped_bit_in_a_file_without_checksums_is_refused_by_the_digest(
    path: str, tmp_path: Path
) -> None:
    """As landings before page checksums wrote it, or another program."""
    rewritten(path, lambda table: value_at(table, 4, b"w4"))
    with pytest.raises(
        LakeError, match=r"offsets 12 to 23 have as many rows as were landed, but not the same"
    ):
        values_of(path)
    with pytest.raises(LakeError, match="but not the same"):
        compact("t", str(tmp_path))  # which would give the changed row checksums of its own


# -- the same rows otherwise


OTHERS: Mapping[str, Callable[[pa.Table], pa.Table]] = {
    "views": lambda t: cast_all(t, {"key": pa.binary_view(), "value": pa.binary_view()}),
    "large": lambda t: cast_all(t, {"key": pa.large_binary(), "value": pa.large_binary()}),
    "dictionary": lambda t: t.set_column(
        t.schema.get_field_index("value"), "value", t.column("value").dictionary_encode()
    ),
    "order": lambda t: t.select(t.schema.names[::-1]),
    "more columns": lambda t: t.append_column("mine", pa.array(range(len(t)))),
}


def cast_all(table: pa.Table, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    for name, kind in kinds.items():
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(kind))
    return table


@pytest.mark.parametrize("kind", OTHERS)
def test_the_same_rows_in_other_types_and_orders_are_the_same(path: str, tmp_path: Path, kind: str) -> None:
    want = values_of(path)
    rewritten(path, OTHERS[kind])
    assert values_of(path) == want
    assert {each.kind for each in deep(tmp_path)} <= {"file"}, "its bytes are others, its rows are not"
    compact("t", str(tmp_path))
    assert values_of(path) == want
    assert deep(tmp_path) == ()


def rebuilt(topic: TopicInMemory, lake: Path) -> Landing:
    table = LocalTable(Settings(), str(lake / "bronze" / "t"))
    made = Landing(table, Settings(), topic, LandOptions(rebuild=True))  # type: ignore[arg-type]
    made.step(made.ends())
    return made


def test_the_rebuild_that_an_error_advises_leads_to_a_table_that_is_read(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    """A row with headers is taken out and put back, so that files have lists of views, and overlap."""
    want = values_of(path)
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    row = DeltaTable(path).to_pyarrow_table(filters=[("offset", "=", 15), ("partition", "=", 1)])
    DeltaTable(path).delete("offset = 15 AND partition = 1")
    write_deltalake(path, row, mode="append")
    with pytest.raises(LakeError, match="land --rebuild"):
        landing_of(topic, tmp_path)
    rebuilt(topic, tmp_path)
    assert values_of(path) == want
    assert deep(tmp_path) == ()
    topic.append(1, [b"more"])
    land(topic, tmp_path)
    compact("t", str(tmp_path))
    assert values_of(path) == [*want, b"more"]


def test_rows_that_a_rebuild_accepted_have_a_digest_again(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(path).delete("offset = 15 AND partition = 1")
    rebuilt(topic, tmp_path)
    assert check_table(Settings(), "t", str(tmp_path), deep=True).undigested == {}
    file = file_of(path, 0, 12)
    parquet.write_table(value_at(parquet.ParquetFile(file).read(), 3, b"x"), file)
    assert "changed" in {each.kind for each in deep(tmp_path)}


# -- the log


def enabled(
    path: str, protocol: Tree, configuration: Tree, physical: Mapping[str, str] | None = None
) -> None:
    """Enable a feature as Spark does, by a commit of its own."""
    logs = sorted(Path(path).glob("_delta_log/*.json"))
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    meta = [line["metaData"] for line in lines if "metaData" in line][-1]
    schema = json.loads(meta["schemaString"])
    inside = [each for field in schema["fields"] if field["name"] == "headers" for each in _struct_of(field)]
    for number, field in enumerate([*inside, *schema["fields"]] if physical is not None else ()):
        stored = field["name"] if number < len(inside) else (physical or {}).get(field["name"], field["name"])
        field["metadata"] = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": stored}
    meta |= {
        "configuration": {**meta["configuration"], **configuration},
        "schemaString": json.dumps(schema),
    }
    told = [{"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}, {"protocol": protocol}]
    next_ = Path(path) / "_delta_log" / f"{len(logs):020d}.json"
    next_.write_text("\n".join(map(json.dumps, [*told, {"metaData": meta}])))


def _struct_of(field: Tree) -> list[Tree]:
    fields: list[Tree] = field["type"]["elementType"]["fields"]
    return fields


VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
}
MAPPING = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["columnMapping"],
    "writerFeatures": ["columnMapping", "appendOnly", "invariants"],
}


def test_deletion_vectors_that_are_only_enabled_change_nothing(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    want = values_of(path)
    enabled(path, VECTORS, {"delta.enableDeletionVectors": "true"})
    topic.append(1, [b"more"])
    land(topic, tmp_path)
    assert values_of(path) == [*want, b"more"]
    assert deep(tmp_path) == ()
    compact("t", str(tmp_path))
    assert deep(tmp_path) == ()


def with_vector(path: str, *rows: int) -> None:
    """Delete *rows* of the first file as another program does that has deletion vectors: by their numbers, in
    a bitmap in the log.
    """
    enabled(path, VECTORS, {"delta.enableDeletionVectors": "true"})
    numbers = struct.pack(f"<{len(rows)}H", *rows)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + numbers
    data = struct.pack("<IqI", 1681511377, 1, 0) + bitmap
    data += bytes(-len(data) % 4)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }
    logs = sorted((Path(path) / "_delta_log").glob("*.json"))
    (add, *_) = [
        action["add"]
        for log in logs
        for action in map(json.loads, log.read_text().splitlines())
        if "add" in action
    ]
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
        {"remove": remove},
        {"add": {**add, "deletionVector": vector}},
    ]
    next_ = Path(path) / "_delta_log" / f"{len(logs):020d}.json"
    next_.write_text("\n".join(map(json.dumps, actions)))


def z85(data: bytes) -> str:
    """Return *data* in the alphabet of ZeroMQ, which Delta uses."""
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(letters[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def test_rows_that_are_deleted_by_a_vector_are_refused_by_all_alike(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    want = values_of(path)
    with_vector(path, 0, 2)
    topic.append(1, [b"more"])
    for attempt in (
        lambda: values_of(path),
        lambda: land(topic, tmp_path),
        lambda: compact("t", str(tmp_path)),
    ):
        with pytest.raises(LakeError, match=r"another program deleted rows of .* by deletion vectors"):
            attempt()
    assert {each.kind for each in deep(tmp_path)} >= {"unreadable"}
    assert {each.kind for each in check_table(Settings(), "t", str(tmp_path)).faults} >= {"unreadable"}
    DeltaTable(path).restore(DeltaTable(path).version() - 1)
    rebuilt(topic, tmp_path)  # as the message advises
    land(topic, tmp_path)
    assert values_of(path) == [*want, b"more"]
    assert deep(tmp_path) == ()


def test_column_mapping_that_maps_nothing_changes_nothing(path: str, tmp_path: Path) -> None:
    want = values_of(path)
    enabled(path, MAPPING, {"delta.columnMapping.mode": "name"}, {})
    assert values_of(path) == want
    assert deep(tmp_path) == ()


def test_a_column_that_is_stored_by_another_name_is_refused_by_all_alike(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    enabled(path, MAPPING, {"delta.columnMapping.mode": "name"}, {"value": "col-7"})
    topic.append(1, [b"more"])
    for attempt in (
        lambda: values_of(path),
        lambda: land(topic, tmp_path),
        lambda: compact("t", str(tmp_path)),
    ):
        with pytest.raises(LakeError, match="column mapping stores column value as col-7"):
            attempt()
    assert {each.kind for each in deep(tmp_path)} >= {"unreadable"}


@pytest.mark.parametrize(
    "field", ["end", "begins", "rows", "added_digests", "topic_id", "cut", "landed_at_ms"]
)
def test_a_landings_metadata_is_sealed(path: str, tmp_path: Path, field: str) -> None:
    def changed(info: Tree) -> None:
        told = json.loads(info["userMetadata"])
        told[field] = {"0": 7, "1": 7} if isinstance(told[field], dict) else "other"
        info["userMetadata"] = json.dumps(told, separators=(",", ":"))

    in_log(path, "commitInfo", changed)
    with pytest.raises(LakeError, match="metadata is malformed"):
        values_of(path)
    assert "chain" in {each.kind for each in check_table(Settings(), "t", str(tmp_path)).faults}


def test_a_seal_that_was_cut_is_no_seal() -> None:
    text = sealed('{"end":{"0":5}}')
    check_seal(text)
    check_seal('{"end":{"0":5}}')
    for wrong in (text.replace("5", "6", 1), re.sub('"seal":"..', '"seal":"', text)):
        with pytest.raises(LakeError, match="checksum is another"):
            check_seal(wrong)


def test_the_rebuild_after_metadata_that_was_changed_by_hand_works(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    want = values_of(path)
    in_log(
        path, "commitInfo", lambda info: info.update(userMetadata=info["userMetadata"].replace("id", "ix"))
    )
    rebuilt(topic, tmp_path)
    assert values_of(path) == want
    assert deep(tmp_path) == ()


def test_a_file_of_another_topic_by_the_log_is_reported(path: str, tmp_path: Path) -> None:
    in_log(path, "add", lambda add: add["partitionValues"].update(topic="other"))
    assert ("file", True) in {(each.kind, "is of topic other" in each.told) for each in deep(tmp_path)}


def test_a_schema_of_other_types_is_reported(path: str, tmp_path: Path) -> None:
    def changed(meta: Tree) -> None:
        meta["schemaString"] = meta["schemaString"].replace(
            '"name":"value","type":"binary"', '"name":"value","type":"string"'
        )

    in_log(path, "metaData", changed)
    faults = check_table(Settings(), "t", str(tmp_path)).faults
    told = [each.told for each in faults if each.kind == "schema"]
    assert any("value as string" in each for each in told)


def test_a_damaged_file_hides_no_other_fault(
    topic: TopicInMemory, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(path, lambda table: value_at(table, 4, b"w4"))
    file_of(path, 1, 24).write_bytes(b"PAR1")
    file_of(path, 0, 0).unlink()
    places = {(each.kind, each.partition, each.first) for each in deep(tmp_path)}
    assert places >= {("unreadable", 1, 24), ("file", 0, 0), ("unreadable", 0, 0), ("changed", 1, 12)}
    told = against_topic(topic, tmp_path, monkeypatch).faults
    assert {(each.kind, each.partition) for each in told} >= {("unreadable", 0), ("changed", 1)}


# -- the newest commits


class NotesInMemory(LandedNotes):
    """The notes of a Kafka that is not there."""

    def __init__(self) -> None:
        self.kept = dict[str, dict[int, LandedNote]]()
        self._rests_until_s = 0.0

    def read(self, path: str, table_id: str, topic: str) -> dict[int, LandedNote]:
        return self.kept.get(landed_notes.group_of(path, table_id), {})

    def write(self, path: str, table_id: str, topic: str, notes: Mapping[int, LandedNote]) -> None:
        self.kept[landed_notes.group_of(path, table_id)] = dict(notes)


def test_a_newest_commit_that_is_gone_is_found_by_the_note_in_kafka(
    topic: TopicInMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = NotesInMemory()

    def landed() -> str:
        table = LocalTable(Settings(), str(tmp_path / "bronze" / "t"))
        made = Landing(table, Settings(), topic, LandOptions(), notes)  # type: ignore[arg-type]
        made.step(made.ends())
        return made.path

    for _ in range(3):
        topic.append(0, [b"v"] * 10)
        path = landed()

    def check() -> list[tuple[str, int | None, int | None, int | None]]:
        found = check_table(Settings(), "t", str(tmp_path), notes=notes).faults
        return [(each.kind, each.partition, each.first, each.last) for each in found]

    assert check() == []
    max(Path(path).glob("_delta_log/*.json")).unlink()
    assert check_table(Settings(), "t", str(tmp_path), deep=True).sound, "as the log alone has it"
    assert check() == [("chain", 0, 20, 29)]
    landed()  # the cure that it names
    assert "landings had come to 30" in caplog.text
    assert check() == []
    (group,) = notes.kept
    notes.kept[group] = {0: LandedNote(99, "of a topic before")}
    assert check() == [], "a note of another topic tells nothing"
