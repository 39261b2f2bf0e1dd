"""The table that a fold writes beside its state: of a processor's fold the history of its rows, of a derived
table the rows that its fold emits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from holdfast.core.engine.declared.processor import Processor
from holdfast.pipeline.folds.folding import FoldStore, Results
from holdfast.pipeline.histories.changes import RowChanges
from holdfast.pipeline.histories.fold_tables import FoldTableColumns


class ToldRows(Protocol):
    """What the fold of one partition tells, as rows of the output table."""

    @property
    def results(self) -> Results:
        """Return what the fold tells it to; its batches are the rows that are over."""
        ...

    def current(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are as of the end of the fold, and that the next one writes anew."""
        ...


class OutputTable(Protocol):
    """Which rows a fold writes beside its state. Can be pickled."""

    @property
    def name(self) -> str:
        """Return the folder of the table, beside that of the state."""
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
