"""Features of Delta under which a file's rows are not what the file holds: deletion vectors, and names that
are mapped to others. Enabled alone they change nothing; in use they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deltalake.exceptions import DeltaError

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.lake import COLUMNS

_MODE = "delta.columnMapping.mode"
_PHYSICAL = "delta.columnMapping.physicalName"
_TYPES = {"bigint": "long", "int": "integer"}
_OLDEST = 8
"""So many columns have tables of every version."""


def refuse_features(path: str, table: Any, *, writes: bool = False) -> None:
    """Raise LakeError where the files of a delta-rs table do not hold its rows as they are: with deletion
    vectors, or columns that are stored under other names; with *writes* also where a file that is written
    as usual would not be read.
    """
    vectors = _files_with_vectors(path, table)
    if vectors:
        raise LakeError(
            f"{path}: another program deleted rows of {vectors[0]}"
            + (f" and {len(vectors) - 1} more files" if len(vectors) > 1 else "")
            + " by deletion vectors, which replays and landings do not read. Put the table back to the"
            " version before (RESTORE), or have Spark write the files without these rows (REORG TABLE"
            f" delta.`{path}` APPLY (PURGE)); then `holdfast pipeline land --rebuild` notes what is missing"
        )
    mode = str((table.metadata().configuration or {}).get(_MODE, "none"))
    if mode == "none":
        return
    if renamed := [f"{name} as {stored}" for name, stored in _renamed(_fields(table)) if name in COLUMNS]:
        raise LakeError(
            f"{path}: column mapping stores column {renamed[0]}, and replays and landings read the files by"
            " their own names. Land the topic in another lake"
        )
    if writes and mode != "name":
        raise LakeError(
            f"{path}: {_MODE} is {mode}, so Spark would not find the columns of files that are landed. Land"
            " the topic in another lake"
        )


def _files_with_vectors(path: str, table: Any) -> list[str]:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return []
    import pyarrow as pa

    try:
        found = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    except (DeltaError, OSError) as error:
        raise LakeError(
            f"{path}: its deletion vectors cannot be read: {error}. Put the table back to a version without"
            " them (RESTORE), then `holdfast pipeline land --rebuild`"
        ) from error
    return [str(each).rpartition("/")[2] for each in found.column("filepath").to_pylist()]


def _fields(table: Any) -> list[Mapping[str, Any]]:
    fields: list[Mapping[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def _renamed(fields: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for field in fields:
        stored = str(field.get("metadata", {}).get(_PHYSICAL, field["name"]))
        if stored != field["name"]:
            yield str(field["name"]), stored


def schema_faults(table: Any, columns: int) -> Iterator[str]:
    """Yield in what a table's columns are not those of a bronze table with rows of version *columns*."""
    there = {str(field["name"]): _told(field["type"]) for field in _fields(table)}
    for at, (name, kind) in enumerate(COLUMNS.items()):
        if name not in there:
            if at < _OLDEST or columns > 1:
                yield f"its schema has no column {name}"
        elif there[name] != _TYPES.get(kind, kind):
            yield f"its schema has column {name} as {there[name]}, where {_TYPES.get(kind, kind)} was landed"


def _told(kind: Any) -> str:
    """Return a type of a Delta schema as `COLUMNS` has it."""
    if not isinstance(kind, Mapping):
        return str(kind)
    if kind.get("type") == "array":
        return f"array<{_told(kind['elementType'])}>"
    if kind.get("type") == "struct":
        inside = (f"{each['name']}:{_told(each['type'])}" for each in kind["fields"])
        return f"struct<{','.join(inside)}>"
    return str(kind.get("type"))
