"""The global tables of a test: one copy, as a worker has, and their logs, as a replay reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.engine.declared.global_tables import Global, globals_by_name
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.merge.global_copies import GlobalCopy, GlobalLog, GlobalView, OpenLogs, key_in_part
from holdfast.core.engine.state.codec import ROW, RowCodec, text_key
from holdfast.core.engine.state.global_rows import Vector
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.testing.logs import TopicLogs, TopicRecord, batch_of, batches_of
from holdfast.testing.notes import Notes

REPLAY_RECORDS = 3
"""The number of records of a global's log that a replay reads at once."""


class _LastPuts(DictStore):
    """The rows of a copy, and what the last record has changed."""

    last: Sequence[tuple[bytes, bytes | None]] = ()

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.last = [*puts]
        super().apply(self.last)


class KitGlobals:
    """The globals that the processors of a test read, by name; each record piped to their topics moves them
    at once.
    """

    def __init__(self, reads: Iterable[Global[Any]], logs: TopicLogs) -> None:
        self._logs = logs
        self.refused: list[Refused] = []
        self.copies = {
            name: GlobalCopy(each, _LastPuts(), self._note) for name, each in globals_by_name(reads).items()
        }

    def _note(self, partition: int, refused: Refused) -> None:
        self.refused.append(refused)

    @property
    def topics(self) -> set[str]:
        """Return the topics that globals are folded from."""
        return {each.table.topic for each in self.copies.values()}

    def named(self, topic: str) -> str:
        """Return the name of a global that is folded from *topic*."""
        return next(name for name, each in self.copies.items() if each.table.topic == topic)

    def apply(self, record: TopicRecord, notes: Notes | None = None) -> list[tuple[str, Refused]]:
        """Fold a record into the globals of its topic; return the refused records, by the name of the
        global.
        """
        refused: list[tuple[str, Refused]] = []
        for name, copy in self.copies.items():
            if copy.table.topic == record.topic:
                self.refused.clear()
                copy.apply(record.partition, batch_of(copy.inputs, [record]))
                refused += [(name, each) for each in self.refused]
                if notes is not None:
                    assert isinstance(copy.store, _LastPuts)
                    puts = [(key_in_part(key), value) for key, value in copy.store.last]
                    notes.of_global(name, record, puts, self.refused)
        return refused

    def rows(self, name: str) -> dict[str, Any]:
        """Return the rows of a global by key."""
        copy = self.copies[name]
        codec: RowCodec[Any] = RowCodec(copy.table.row)
        return {text_key(key): codec.decode(value) for key, value in copy.view().scan(ROW)}

    def views(self, reads: Sequence[Global[Any]]) -> KitViews:
        """Return the globals as they are, for the folds of a worker."""
        return KitViews([self.copies[each.name] for each in reads])

    def logs_of(self, reads: Sequence[Global[Any]]) -> OpenLogs:
        """Return a function that opens the logs of globals for a replay."""

        def opened(number: int) -> Mapping[int, GlobalLog]:
            copy = self.copies[reads[number].name]
            logs = self._logs.of(copy.table.topic)
            return {
                at: GlobalLog(batches_of(copy.inputs, log, REPLAY_RECORDS), len(log))
                for at, log in enumerate(logs)
            }

        return opened


class KitViews:
    """Globals as of now; a test folds one record at a time, so nothing else is asked for."""

    def __init__(self, copies: Sequence[GlobalCopy]) -> None:
        self._copies = copies

    @property
    def vectors(self) -> tuple[Vector, ...]:
        return tuple(copy.vector for copy in self._copies)

    def move(self, number: int, vector: Vector) -> None:
        pass

    def view(self, number: int, vector: Vector) -> GlobalView:
        found = self._copies[number].view()
        assert found.vector == vector, "a transaction sees the copy as it is when it begins"
        return found

    def settle(self, number: int, vector: Vector) -> None:
        pass
