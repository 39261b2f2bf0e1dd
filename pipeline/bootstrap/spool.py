"""The results of the fold of one partition, in a temporary file: they are read as often as its transaction is
repeated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Refused
from holdfast.errors import PipelineError
from holdfast.pipeline.folds.result_rows import EMITTED, REFUSED, RESULT, STATE, emit_of
from holdfast.tables.changelog import ChangelogPart


class Spool:
    """Results of one partition (schema RESULT). Close it when done, which removes the file.

    PipelineError when the file cannot be written or read.
    """

    def __init__(self) -> None:
        try:
            # closed by close
            self._file = tempfile.NamedTemporaryFile(prefix="holdfast-bootstrap-")  # noqa: SIM115
        except OSError as error:
            raise _failed(error) from error
        self._writer: Any = pa.ipc.new_stream(self._file, RESULT)
        self.refused: list[Refused] = []
        self.emits = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take results that are no summary."""
        import pyarrow.compute as pc

        kinds = batch.column("kind")
        self.emits += pc.sum(pc.equal(kinds, EMITTED)).as_py() or 0
        refused = batch.filter(pc.equal(kinds, REFUSED))
        for row in refused.to_pylist() if refused.num_rows else ():
            self.refused.append(
                Refused(
                    offset=row["offset"],
                    stage=row["name"],
                    error=row["before"],
                    reason=row["after"],
                    topic=(row["key"] or b"").decode(),
                )
            )
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            raise _failed(error) from error

    def reader(self, *last: ChangelogPart) -> Callable[[], Iterator[ChangelogPart]]:
        """Return a function that yields rows, timers and emits from the beginning, and *last* after them.
        Nothing may be added any more.
        """
        self._end()
        self._file.flush()

        def parts() -> Iterator[ChangelogPart]:
            yield from self._parts()
            yield from last

        return parts

    def _parts(self) -> Iterator[ChangelogPart]:
        import pyarrow.compute as pc

        with pa.memory_map(self._file.name) as mapped, pa.ipc.open_stream(mapped) as reader:
            for batch in reader:
                kinds = batch.column("kind")
                state = batch.filter(pc.equal(kinds, STATE))
                sent = batch.filter(pc.equal(kinds, EMITTED))
                emits: list[Emit] = [emit_of(row) for row in sent.to_pylist()] if sent.num_rows else []
                if state.num_rows or emits:
                    columns = (state.column(each).to_pylist() for each in ("key", "value"))
                    yield ChangelogPart(list(zip(*columns, strict=True)), emits)

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def close(self) -> None:
        """Remove the file; once is enough."""
        if not self._file.closed:
            self._end()
            self._file.close()


def _failed(error: OSError) -> PipelineError:
    return PipelineError(
        f"a partition's state cannot be kept in a file in {tempfile.gettempdir()}: {error}; give it room, or"
        " set TMPDIR to a folder with more"
    )
