"""Small logs recorded by the test kit, and how one task of Spark folds those of many processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.global_copies import GlobalLog, folded_by
from holdfast.core.engine.state.codec import digest
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.run import PartitionWork
from holdfast.testing import Topology
from holdfast.testing.logs import batch_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A partition that a processor has folded in the test kit: its sources, its choices, and the digest of
    its state.
    """

    processor: Processor[Any, Any]
    sources: tuple[Batch, ...]
    choices: tuple[Choice, ...]
    digest: str
    tables: tuple[Mapping[int, Batch], ...] = ()
    """For each global that it reads, the records of each partition."""

    def fold(self, number: int) -> Iterator[pa.RecordBatch]:
        """Fold it again as partition *number* and yield the results."""
        plan = FoldPlan(processor=self.processor)
        logs = [[(batch, 1)] if batch.offsets else [] for batch in self.sources]
        ends = [len(batch.offsets) for batch in self.sources]
        return fold_partition(plan, number, logs, self.choices, ends, open_global=self._open_global)

    def _open_global(self, table: Global[Any]) -> dict[int, GlobalLog]:
        number = [each.name for each in self.processor.reads].index(table.name)
        return {at: GlobalLog([batch], len(batch.offsets)) for at, batch in self.tables[number].items()}


def recorded_runs(topology: Topology) -> Iterator[RecordedRun]:
    """Yield the partitions that each processor of *topology* has folded so far."""
    for (name, partition), run in sorted(topology._runs.items()):
        processor = topology.processors[name]
        inputs = [source.inputs for source in processor.folds]
        logs = [topology._logs.of(topic)[partition] for topic in processor.topics]
        yield RecordedRun(
            processor=processor,
            sources=tuple(batch_of(names, log) for names, log in zip(inputs, logs, strict=True)),
            choices=tuple(topology.choices(name, partition)),
            digest=digest(run.outcome.store.everything()),
            tables=tuple(
                {
                    at: batch_of(folded_by(table).folds[0].inputs, log)
                    for at, log in enumerate(topology._logs.of(table.topic))
                }
                for table in processor.reads
            ),
        )


def in_tasks(runs: list[RecordedRun], tasks: int) -> PartitionWork:
    """Return a function that folds an equal share of *runs* for the number of a task, each run as the
    partition of its index.
    """

    def fold(task: int) -> Iterator[pa.RecordBatch]:
        for number in range(task, len(runs), tasks):
            yield from runs[number].fold(number)

    return fold
