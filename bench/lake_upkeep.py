"""What upkeep of a lake is worth: one partition as a follower leaves it (many small commits), the same after
`pipeline compact`, and as one bulk landing writes it, read by a replay's reader in this process.

    python -P -m bench.lake_upkeep [--rows 10000000] [--files 2000]

Each part is a process of its own; CPU seconds and peak memory are those of it. Tables are generated, without
a broker.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema

from bench.run import load_average
from holdfast.pipeline.bronze.columns import FILE_SCHEMA, HEADERS, PARTITIONED_BY, SCHEMA
from holdfast.pipeline.bronze.files import filesystem_of
from holdfast.pipeline.bronze.lake import PROPERTIES, Landed, bronze_path
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.topic import Span
from holdfast.pipeline.upkeep.compact import compact

TOPIC = "events"
BULK_ROWS = 500_000
STEP = 20_000


def _rows(first: int, end: int) -> Iterator[pa.RecordBatch]:
    for at in range(first, end, STEP):
        numbers = np.arange(at, min(end, at + STEP))
        count = len(numbers)
        key = pa.array([b"key-%d" % (number % 5_000) for number in numbers.tolist()], pa.binary())
        value = pa.array([b"%080d" % number for number in numbers.tolist()], pa.binary())
        ms = 1_700_000_000_000 + numbers
        arrays = [
            pa.array(numbers, pa.int64()),
            pa.array(ms * 1000, FILE_SCHEMA.field("timestamp").type),
            pa.array(np.zeros(count, np.int32)),
            key,
            value,
            pa.nulls(count, HEADERS),
            pa.array(ms, pa.int64()),
            pa.array(ms * 1000, FILE_SCHEMA.field("landed_at").type),
            pa.array((ms // 86_400_000).astype(np.int32), pa.date32()),
            pa.nulls(count, pa.int32()),
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


def generate(lake: str, rows: int, per_file: int) -> None:
    """Write a table of one partition in files of *per_file* rows, under one landing commit."""
    path = bronze_path(lake, TOPIC)
    table = DeltaTable.create(
        Path(path).as_uri(), Schema.from_arrow(SCHEMA), partition_by=PARTITIONED_BY, configuration=PROPERTIES
    )

    filesystem, files = filesystem_of(str(table.table_uri)), list[BronzeFile]()
    for first in range(0, rows, per_file):
        files.append(BronzeFile.new(TOPIC, 0))
        files[-1].write(filesystem, _rows(first, min(rows, first + per_file)))
    told = Landed(
        topic=TOPIC,
        topic_id="id",
        batch="b",
        start={0: 0},
        end={0: rows},
        begins={0: 0},
        rows={0: 0},
        added={0: rows},
    )
    properties = CommitProperties(custom_metadata={"userMetadata": told.encode()})
    table.create_write_transaction(
        [each.action(TOPIC) for each in files],
        "append",
        table.schema(),
        PARTITIONED_BY,
        commit_properties=properties,
    )


def read(lake: str, rows: int) -> None:
    files, _ = open_bronze(bronze_path(lake, TOPIC))
    span = Span(first=0, end=rows)
    found = sum(len(batch.offsets) for batch, _ in files.batches(("key", "value"), 0, span))
    assert found == rows, found


def part(name: str, lake: str, rows: str, per_file: str) -> None:
    match name:
        case "generate":
            generate(lake, int(rows), int(per_file))
        case "compact":
            compact(TOPIC, lake)
        case _:
            read(lake, int(rows))


def took(name: str, lake: Path, rows: int, per_file: int) -> tuple[float, float]:
    """Run a part in a process of its own, and return its CPU seconds and peak MB."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "bench.lake_upkeep",
        "--part",
        name,
        str(lake),
        str(rows),
        str(per_file),
    ]
    _, status, used = os.wait4(os.spawnve(os.P_NOWAIT, command[0], command, os.environ), 0)
    if status != 0:
        raise SystemExit(f"{name} ended with {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--part", nargs=4, metavar=("NAME", "LAKE", "ROWS", "PER_FILE"))
    given = parser.parse_args()
    if given.part:
        part(*given.part)
        return
    rows, small = given.rows, -(-given.rows // given.files)
    with TemporaryDirectory(prefix="holdfast-bench-") as folder:
        follower, bulk = Path(folder) / "follower", Path(folder) / "bulk"
        print(f"{rows:,} rows of one partition, {given.files:,} files; {load_average()}")
        took("generate", follower, rows, small)
        took("generate", bulk, rows, BULK_ROWS)
        found = {
            "read as followed": took("read", follower, rows, 0),
            "compact": took("compact", follower, rows, 0),
            "read compacted": took("read", follower, rows, 0),
            "read bulk": took("read", bulk, rows, 0),
        }
    for name, (cpu_s, peak_mb) in found.items():
        ratio = f"; of bulk: {cpu_s / found['read bulk'][0]:.2f}" if name.startswith("read") else ""
        print(f"{name:18s} {cpu_s:6.2f} s of processor time, {peak_mb:5.0f} MB{ratio}")


if __name__ == "__main__":
    main()
