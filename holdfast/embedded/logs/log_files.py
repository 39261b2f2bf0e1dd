"""The files of a partition's log, as the log uses them; a log in memory has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import AbortedTransaction, LeaderRow
from holdfast.core.kafka.record_batch import BatchHeader
from holdfast.embedded.logs.stored_batch import LogBatch, StoredBatch


class LoadedBatch(NamedTuple):
    """A batch as it was found in a segment when the log was opened."""

    header: BatchHeader
    batch: LogBatch


class LogFiles(Protocol):
    """Segments of one partition, with what else is kept about it."""

    def load(self, rows: Rows[LeaderRow]) -> Iterator[LoadedBatch]:
        """Put into *rows* the state at the log's beginning, and yield the log's batches; to be exhausted
        before anything else.
        """

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""

    @property
    def compacted_to(self) -> int:
        """The offset from which on nothing was compacted yet."""

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, its first offset), as they were written last."""

    def make_room(
        self, size: int, at_ms: int, now_ms: int, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Begin another segment, if one is due before a batch of *size* bytes and time *at_ms*."""

    def append(self, batch: StoredBatch) -> LogBatch:
        """Write a batch at the end."""

    def read(self, batches: Sequence[LogBatch]) -> list[bytes]:
        """Return the bytes of batches that follow one another."""

    def damage(self, batch: LogBatch) -> None:
        """Flip the last bit of a batch."""

    def kept_from(self, *, since_ms: int | None, size: int | None, stable: int) -> int:
        """Return from which offset on whole segments stay that have a record of *since_ms* or later, or are
        among the last *size* bytes; None keeps all. What reaches to *stable* stays too.
        """

    def delete_before(
        self, offset: int, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Have the log begin at *offset*, and delete segments that are wholly before it."""

    def compactable(self, offset: int) -> int:
        """Return where the last segment ends that is complete, and wholly before *offset*."""

    def replace(
        self, upper: int, kept: Iterable[LogBatch], aborted: Sequence[AbortedTransaction]
    ) -> list[LogBatch]:
        """Have *kept* be all that is left before *upper*, where a segment ends; return them as they lie
        now.
        """

    def keep_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Write the leader epochs."""

    def complete(self, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]) -> None:
        """Write the additional files of a completed segment, for a broker that ends in order."""
