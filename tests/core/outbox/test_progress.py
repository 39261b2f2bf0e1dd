"""The progress that outboxes report of themselves, kept with the progress that readers find."""

from __future__ import annotations

from holdfast.agents.services import bookkeeper
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.outbox import harvest, progress
from holdfast.core.producers import stamps
from tests.models.leading import NoStore


def test_outboxes_stamp_with_the_same_headers() -> None:
    assert (harvest.PRODUCER_HEADER, harvest.EPOCH_HEADER, harvest.SEQUENCE_HEADER) == (
        stamps.PRODUCER,
        stamps.EPOCH,
        stamps.SEQUENCE,
    )


def test_an_outboxs_own_progress_is_kept_with_the_progress_that_readers_find() -> None:
    processor = bookkeeper.outbox_progress("outbox.progress")
    said = harvest.ProducerProgress("orders-0")
    said.begin()
    records: list[tuple[bytes, bytes | None]] = []
    for _ in range(3):
        _, ahead = said.number([("paid", 0), ("paid", 1), ("paid", 0)])
        records += said.records([1, 2], ahead)
        said.commit([1, 2], ahead)
    old = records[1]
    said.begin()
    records += said.records([], {("paid", 0): 9})
    records.append(old)
    records.append((old[0], None))
    folder = Folder(processor, NoStore())
    keys, values = [key for key, _ in records], [value for _, value in records]
    changes = folder.fold(
        [Batch(range(len(records)), [7] * len(records), (keys, values, list(range(len(records)))))]
    )
    assert changes is not None
    assert changes.refused == []
    first = folder.rows.get(progress.reached_key("orders-0", "paid", 0))
    second = folder.rows.get(progress.reached_key("orders-0", "paid", 1))
    assert first is not None
    assert second is not None
    assert (first.epoch, first.last_sequence, first.zombies, first.backward) == (2, 9, 1, 0)
    assert (second.last_sequence, second.zombies) == (2, 1)
