"""The output table of a fold, in addition to its state: of a processor's fold the history of its rows, of a
derived table the rows that its fold emits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from holdfast.core.engine.declared.processor import Processor
from holdfast.pipeline.folds.result_rows import Results
from holdfast.pipeline.folds.spilling import FoldStore
from holdfast.pipeline.histories.changes import RowChanges
from holdfast.pipeline.histories.fold_tables import FoldTableColumns


class ToldRows(Protocol):
    """The output of the fold of one partition, as rows of the output table."""

    @property
    def results(self) -> Results:
        """Return the fold's results; their batches are the rows that are over."""
        ...

    def current(self) -> Iterator[pa.RecordBatch]:
        """Yield provisional rows, which the next fold replaces."""
        ...


class OutputTable(Protocol):
    """The rows that a fold writes in addition to its state. It can be pickled."""

    @property
    def name(self) -> str:
        """Return the folder of the table, next to that of the state."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of its files, without those that it is partitioned by."""
        ...

    @property
    def takes_emits(self) -> bool:
        """Return whether its rows are made of what the fold emits, rather than of each change of a row."""
        ...

    def told(self, store: FoldStore) -> ToldRows: ...


@dataclass(frozen=True, slots=True)
class HistoryOutput:
    """The history of the rows of *processor*."""

    processor: Processor[Any, Any]
    name: str = "history"
    takes_emits: bool = False

    @property
    def schema(self) -> pa.Schema:
        return FoldTableColumns.of(self.processor).history

    def told(self, store: FoldStore) -> ToldRows:
        return RowChanges(self.processor, store, FoldTableColumns.of(self.processor))
