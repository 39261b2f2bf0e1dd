"""What `pipeline fold` costs for a tail: tables of the state and history of a lake, then of the same lake
with one hundredth more, in this process's engine.

    python -P -m bench.fold_tail [--rows 4000000]

Each part is a process of its own; CPU seconds and peak memory are those of it, Python's start included. Lakes
are generated, without a broker: one partition, 5,000 keys.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lake_upkeep import BULK_ROWS, TOPIC, generate
from bench.run import load_average
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.pipeline.histories.fold import FoldOptions, fold


def decode(key: bytes, value: bytes) -> tuple[str, int]:
    return key.decode(), int(value)


def count(rows: Rows[int], event: tuple[str, int], at_ms: int) -> None:
    rows[event[0]] = rows.get(event[0], 0) + event[1]


def processor() -> Processor[Any, int]:
    return Processor(name="sums", source=TOPIC, decode=decode, fold=count, row=int, inputs=("key", "value"))


def part(name: str, folder: Path, rows: int) -> None:
    lake = folder / str(rows)
    if name == "generate":
        generate(str(lake), rows, BULK_ROWS)
        return
    options = FoldOptions(lake=str(lake), engine="local", into=str(folder / "tables"))
    report = fold(processor(), Settings(app="bench"), options)
    print(
        f"  {report.records:,} records in {report.commits} commits, {report.changes:,} changes that are over"
    )


def took(name: str, folder: Path, rows: int) -> tuple[float, float]:
    """Run a part in a process of its own, and return its CPU seconds and peak MB."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "bench.fold_tail",
        "--part",
        name,
        str(folder),
        "--rows",
        str(rows),
    ]
    _, status, used = os.wait4(os.spawnve(os.P_NOWAIT, command[0], command, os.environ), 0)
    if status != 0:
        raise SystemExit(f"{name} ended with {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--part", nargs=2, metavar=("NAME", "FOLDER"))
    given = parser.parse_args()
    if given.part:
        part(given.part[0], Path(given.part[1]), given.rows)
        return
    more = given.rows + given.rows // 100
    with TemporaryDirectory(prefix="holdfast-bench-") as name:
        for rows in (given.rows, more):
            took("generate", Path(name), rows)
        whole, tail = (took("fold", Path(name), rows) for rows in (given.rows, more))
    print(f"{given.rows:,} rows; load {load_average()}")
    print(f"whole {whole[0]:7.2f} s of processor time, {whole[1]:5.0f} MB")
    print(
        f"tail  {tail[0]:7.2f} s of processor time, {tail[1]:5.0f} MB: {tail[0] / whole[0]:.1%} of the whole"
    )


if __name__ == "__main__":
    main()
