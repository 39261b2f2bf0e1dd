"""Bronze tables and record batches made without Kafka or Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from holdfast.pipeline.bronze.lake import Landed, bronze_path
from tests.pipeline.accounts import Log, Record

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def record_batch(partition: int, records: Sequence[Record], unit: str = "us") -> pa.RecordBatch:
    """Return records as bronze columns; *unit* is that of the timestamps."""
    per_ms = {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    columns: dict[str, Any] = {
        "topic": pa.array(["t"] * len(records), pa.string()),
        "partition": pa.array([partition] * len(records), pa.int32()),
        "offset": pa.array([each.offset for each in records], pa.int64()),
        "timestamp": pa.array([each.at_ms * per_ms for each in records], pa.int64()).cast(
            pa.timestamp(unit, "UTC")
        ),
        "timestamp_type": pa.array([1] * len(records), pa.int32()),
        "key": pa.array([each.key for each in records], pa.binary()),
        "value": pa.array([each.value for each in records], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": content} for name, content in each.headers] or None for each in records],
            HEADERS,
        ),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def cut(log: Log, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the log's partitions in turn, *size* records at a time: as a task with several partitions
    would meet them.
    """
    longest = max((len(records) for records in log.values()), default=0)
    for start in range(0, longest, size):
        for partition, records in log.items():
            if records[start : start + size]:
                yield record_batch(partition, records[start : start + size])


def ends(log: Log) -> dict[int, int]:
    """Return the end offset of each partition."""
    return {partition: records[-1].offset + 1 if records else 0 for partition, records in log.items()}


def landed(log: Log, **more: Any) -> Landed:
    begins = dict.fromkeys(log, 0)
    return Landed(
        **(
            {
                "topic": "t",
                "topic_id": "id",
                "batch": "b",
                "start": begins,
                "end": ends(log),
                "begins": begins,
            }
            | more
        )
    )


def write_bronze(
    lake: Path, topic: str, log: Log, *, commits: int = 2, shuffled: bool = False, **more: Any
) -> str:
    """Write *log* as a bronze table of several commits, as a landing would; *shuffled* mixes the rows inside
    files as OPTIMIZE may, *more* replaces fields of the commits' metadata.
    """
    path = bronze_path(str(lake), topic)
    start: dict[int, int] = {}
    for commit in range(commits):
        parts = {
            partition: records[len(records) * commit // commits : len(records) * (commit + 1) // commits]
            for partition, records in log.items()
        }
        end = {partition: records[-1].offset + 1 for partition, records in parts.items() if records}
        reached = ends(log) if commit == commits - 1 else dict.fromkeys(log, 0) | start | end
        told = landed(
            log, **{"topic": topic, "batch": f"b{commit}", "start": start, "end": reached} | more
        ).encode()
        start = reached
        batches = [
            record_batch(partition, records[::-1] if shuffled else records)
            for partition, records in parts.items()
        ]
        write_deltalake(
            Path(path).as_uri(),
            pa.Table.from_batches(batches),
            mode="append",
            partition_by=["topic", "partition"],
            commit_properties=CommitProperties(custom_metadata={"userMetadata": told}),
        )
    assert json.loads(told)["holdfast_landing"] == 1
    return path
