"""Writing what a replay gives to a folder: one table each of rows, timers, transitions, refused records,
and a summary.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
import pyarrow as pa

from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.result_rows import SUMMARY, FoldSummary
from holdfast.pipeline.folds.results import SUMMARIES, decode_summary, present, schema_of, summaries_of
from holdfast.pipeline.run import ddl_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["parquet", "delta", "ndjson"]


def tables_of(plan: FoldPlan) -> list[str]:
    """Return the names of the tables of a plan's results."""
    return [
        *(["rows", "timers"] if plan.rows else []),
        *(["transitions"] if plan.transitions else []),
        "refused",
    ]


class Writer:
    """Writes results to a new local folder as they come; the folder appears under its name when all is in it.

    A context manager: a folder that was begun and not finished is removed.
    """

    def __init__(self, out: str, form: Format, plan: FoldPlan) -> None:
        if "://" in out and not out.startswith("file://"):
            raise ConfigError(
                f"--out {out}: the local engine writes to local folders; use --engine spark for object"
                " storage"
            )
        self._target, self._form, self._plan = Path(out.removeprefix("file://")).absolute(), form, plan
        if self._target.exists():
            raise ConfigError(f"--out {out}: exists already; name a folder that does not")
        self._partial = self._target.with_name(f".{self._target.name}.{os.getpid()}.partial")
        self._open = ExitStack()
        self._finished = False

    def __enter__(self) -> Self:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._sinks: dict[str, _Sink] = {}
        for name in [*tables_of(self._plan), "summary"]:
            schema = SUMMARIES if name == "summary" else schema_of(name, self._plan.processor)
            self._sinks[name] = self._open.enter_context(_sink(self._partial / name, self._form, schema))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if not self._finished:
            shutil.rmtree(self._partial, ignore_errors=True)

    def write(self, batches: Iterable[pa.RecordBatch], partitions: Iterable[int]) -> tuple[FoldSummary, ...]:
        """Write all results and move the folder to its final path; return the summaries."""
        names, found = tables_of(self._plan), list[FoldSummary]()
        for batch in batches:
            found.extend(summaries_in(batch))
            for name in names:
                shown = present(batch, name, self._plan.processor)
                if shown.num_rows:
                    self._sinks[name].write(shown)
        summaries = summaries_of(found, partitions)
        self._sinks["summary"].write(
            pa.RecordBatch.from_pylist([msgspec.to_builtins(each) for each in summaries], SUMMARIES)
        )
        self._open.close()
        if self._form == "delta":
            from deltalake import convert_to_deltalake

            for name in self._sinks:
                convert_to_deltalake(str(self._partial / name))
        self._partial.rename(self._target)
        self._finished = True
        return summaries


def summaries_in(batch: pa.RecordBatch) -> list[FoldSummary]:
    """Return the summaries in a batch of results."""
    import pyarrow.compute as pc

    return [
        decode_summary(text)
        for text in batch.filter(pc.equal(batch.column("kind"), SUMMARY)).column("after").to_pylist()
    ]


class _Sink(ABC):
    """One table's file. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class _Parquet(_Sink):
    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder)
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(folder / "part-00000.parquet", schema, compression="snappy")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Ndjson(_Sink):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file = (folder / "part-00000.json").open("w", encoding="utf-8")

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            # As Spark writes JSON: bytes in base64, nulls left out.
            shown = {
                name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                for name, value in row.items()
            }
            self._file.write(
                json.dumps(
                    {name: value for name, value in shown.items() if value is not None},
                    ensure_ascii=False,
                    separators=(",", ":"),
                )
                + "\n"
            )

    def close(self) -> None:
        self._file.close()


def _sink(folder: Path, form: Format, schema: pa.Schema) -> _Sink:
    return _Ndjson(folder) if form == "ndjson" else _Parquet(folder, schema)


# -- by Spark


def written_by_spark(
    results: DataFrame, out: str, form: Format, plan: FoldPlan, partitions: Iterable[int]
) -> tuple[FoldSummary, ...]:
    """Write the tables below *out* by the executors, the summary last; return the summaries.

    The results are kept on the executors' disks in the meantime, so that the fold runs once.
    """
    from pyspark import StorageLevel

    if "://" not in out and Path(out).exists():
        raise ConfigError(f"--out {out}: exists already; name a folder that does not")
    results.persist(StorageLevel.DISK_ONLY)
    try:
        told = results.where(f"kind = '{SUMMARY}'").select("after").collect()
        summaries = summaries_of((decode_summary(row[0]) for row in told), partitions)
        for name in tables_of(plan):
            ddl = ddl_of(schema_of(name, plan.processor))
            shown = results.mapInArrow(partial(present_all, name, plan.processor), ddl)
            _save(shown, f"{out}/{name}", form)
        rows = [tuple(msgspec.to_builtins(each)[name] for name in SUMMARIES.names) for each in summaries]
        _save(
            results.sparkSession.createDataFrame(rows, ddl_of(SUMMARIES)).coalesce(1), f"{out}/summary", form
        )
    finally:
        results.unpersist()
    return summaries


def present_all(
    name: str, processor: Processor[Any, Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield *batches* of results as one of TABLES; runs on executors."""
    for batch in batches:
        yield present(batch, name, processor)


def _save(table: DataFrame, path: str, form: Format) -> None:
    table.write.format("json" if form == "ndjson" else form).save(path)
