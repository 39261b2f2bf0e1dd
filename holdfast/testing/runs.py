"""One partition of one processor, folded in each way in which a worker or a replay may come to fold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.core.engine.codec import NOTHING_APPLIED, ROW, WAKE, RowCodec, decode_due, digest, text_key
from holdfast.core.engine.folding import Changes, Folder, Refused
from holdfast.core.engine.memory_store import DictStore
from holdfast.core.engine.processor import Emit, Processor
from holdfast.errors import ImpureFoldError
from holdfast.testing.logs import TopicRecord, batch_of, batches_of

REPLAY_CUTS = (7, 1 << 30)
"""How many records each transaction of a replay holds: a few, and all of them."""


@dataclass(slots=True)
class FoldOutcome:
    """What one way of folding a partition has made of it."""

    emits: list[Emit] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def take(self, changes: Changes) -> None:
        self.emits += changes.emits
        self.refused += changes.refused


class PartitionRun:
    """A partition's state, kept twice: by a worker that goes on, and by one that restarts before each record.

    Both fold each record; `replay` folds the whole log again. Where two differ, the fold looked at something
    that is not in the log, and ImpureFoldError says at which record.
    """

    def __init__(self, processor: Processor[Any, Any], partition: int) -> None:
        self.processor, self.partition = processor, partition
        self._store, self._restored = DictStore(), DictStore()
        self._folder: Folder[Any] = Folder(processor, self._store)
        self._position = NOTHING_APPLIED, -1
        self._log: list[TopicRecord] = []
        self._replayed = 0
        self.outcome = FoldOutcome()

    def fold(self, record: TopicRecord) -> Changes:
        """Fold one record and return what it changed; ImpureFoldError when a restart before it would have
        changed something else.
        """
        self._log.append(record)
        changes = self._one(self._folder, record)
        self._store.apply(changes.puts)
        again = self._after_restart(record)
        for what in ("puts", "emits", "refused"):
            if (one := getattr(changes, what)) != (other := getattr(again, what)):
                raise self._impure(f"record {record}, folded after a restart, {_TOLD[what]}", one, other)
        self.outcome.take(changes)
        return changes

    def _after_restart(self, record: TopicRecord) -> Changes:
        applied, stream_ms = self._position
        changes = self._one(
            Folder(self.processor, self._restored, applied=applied, stream_ms=stream_ms), record
        )
        self._restored.apply(changes.puts)
        self._position = changes.marker.applied, changes.marker.stream_ms
        return changes

    def _one(self, folder: Folder[Any], record: TopicRecord) -> Changes:
        changes = folder.fold([batch_of(self.processor, [record])])
        assert changes is not None, "offsets ascend"
        folder.commit()
        return changes

    def replay(self) -> None:
        """Fold the whole log again in transactions of other sizes; ImpureFoldError when anything differs."""
        if self._replayed == len(self._log):
            return
        for cut in REPLAY_CUTS:
            store, outcome = DictStore(), FoldOutcome()
            folder: Folder[Any] = Folder(self.processor, store)
            for batch in batches_of(self.processor, self._log, cut):
                changes = folder.fold([batch])
                assert changes is not None, "offsets ascend"
                store.apply(changes.puts)
                outcome.take(changes)
                folder.commit()
            where = f"replay of {len(self._log)} records"
            if outcome.emits != self.outcome.emits:
                raise self._impure(f"{where} {_TOLD['emits']}", self.outcome.emits, outcome.emits)
            if outcome.refused != self.outcome.refused:
                raise self._impure(f"{where} {_TOLD['refused']}", self.outcome.refused, outcome.refused)
            if digest(store.everything()) != digest(self._store.everything()):
                raise self._impure(
                    f"{where} {_TOLD['puts']}", [*self._store.everything()], [*store.everything()]
                )
        self._replayed = len(self._log)

    def _impure(self, where: str, one: list[Any], other: list[Any]) -> ImpureFoldError:
        at, (had, has) = next(
            ((at, pair) for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
            (min(len(one), len(other)), (f"{len(one)} of them", f"{len(other)} of them")),
        )
        return ImpureFoldError(
            f"{self.processor.name} partition {self.partition}: {where}: number {at} was {had!r:.300}, is {has!r:.300}; "
            "a fold may use its arguments alone: no clock, no randomness, no global, nothing kept from one call to the next"
        )

    # -- what a test looks at

    def rows(self) -> dict[str, Any]:
        """Return the rows by key."""
        codec: RowCodec[Any] = RowCodec(self.processor.row)
        return {text_key(key): codec.decode(value) for key, value in self._store.scan(ROW)}

    def timers(self) -> dict[str, int]:
        """Return when each timer is due, in ms, by key."""
        return {text_key(key): decode_due(value) for key, value in self._store.scan(WAKE)}


_TOLD = {
    "puts": "gives other rows or timers",
    "emits": "emits other records",
    "refused": "refuses other records",
}
