"""A partition whose changelog has lost its records: how it notices, and how it begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.partitions.ownership.recovering import SentResults, how_to_begin, sent_before
from holdfast.core.engine.commit_notes import CommitNote, TableSent, decode_commit_note, encode_commit_note
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.state.codec import APPLIED, row_key
from holdfast.core.engine.state.recovery import RECOVERY, Recovery, decode_recovery, encode_recovery
from holdfast.core.engine.state.source_ids import SourceIds
from holdfast.errors import ChangelogError
from holdfast.tables.changelog import ChangelogPart
from holdfast.tables.partition import Partition
from tests.tables.test_lost_heads import ONE, changes, opened

NOW = SourceIds(1, "c", {"in": "id of in"})


class Writer:
    """Keeps what a transaction would hold."""

    def __init__(self) -> None:
        self.parts: list[ChangelogPart] = []

    async def write_parts(self, parts: Callable[[], Iterable[ChangelogPart]], timeout_s: float) -> int:
        self.parts = [*parts()]
        return 9


def part_of(folder: Path, applied: int | None = None) -> Partition:
    """Return a partition at offset *applied*, or with a changelog without any position."""
    part = opened(folder)
    part.owner.sources, part.owner.out = NOW, {"big": "id of big", "quarantine": "id of quarantine"}
    if applied is not None:
        part.owner.keep(changes(applied), applied + 2)
    return part


def noted(applied: int, topic: str = "id of in", changelog: str = "") -> dict[Any, CommitNote]:
    out = {"big": "id of bi", "other": "x"}
    note = CommitNote(topic=topic, tables={ONE.table: TableSent(applied, 0, changelog)}, out=out)
    return {("in", 0): note}


def test_the_note_of_a_commit_is_read_as_it_was_written() -> None:
    (note,) = noted(7).values()
    text = encode_commit_note(note)
    assert decode_commit_note(text) == note
    for foreign in ("", "leader=7", "{}", '{"holdfast":2,"topic":"a","tables":{}}', "[1]"):
        assert decode_commit_note(foreign) is None
    many = CommitNote(topic="a", tables={f"table-{at}.v1": TableSent(at) for at in range(500)})
    assert encode_commit_note(many) is None, "more than brokers keep"


def test_what_a_group_knows_counts_for_the_same_log_and_table_alone(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    known = sent_before(part, noted(7))
    assert known == SentResults(applied=(7,), choices=0, topics=("big",), is_current=True)
    assert sent_before(part, noted(7, topic="id of an older one")) is None
    assert sent_before(part, {}) is None
    part.close()


def test_a_blank_table_begins_again_and_is_silent_up_to_its_sent_results(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    begin = how_to_begin(part, sent_before(part, noted(7)), {("in", 0): 0}, partly=False)
    assert begin is not None
    assert (begin.emptied, begin.recovery.applied, begin.recovery.topics) == (True, (7,), ("big",))
    assert how_to_begin(part, None, {}, partly=False) is None, "nothing says that it is not new"
    assert how_to_begin(part, sent_before(part, noted(-1)), {}, partly=False) is None
    with pytest.raises(ChangelogError, match=r"in begins at offset 3.*Restore.*--accept-partial.*reset"):
        how_to_begin(part, sent_before(part, noted(7)), {("in", 0): 3}, partly=False)
    assert how_to_begin(part, sent_before(part, noted(7)), {("in", 0): 3}, partly=True) is not None
    part.close()


def test_a_log_that_was_emptied_without_a_committed_position_is_refused(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.reads_from(40)
    with pytest.raises(ChangelogError, match=r"begins at offset 40, and its group has no committed position"):
        how_to_begin(part, None, {("in", 0): 0}, partly=False)
    part.close()
    again = part_of(tmp_path)  # the finding outlasts the refusal
    assert again.cut_at == 40
    again.close()


def test_a_log_without_its_beginning_is_written_again_and_known_from_then_on(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.reads_from(40)
    part.owner.keep(changes(9), 44)
    part.store.write([(WATERMARKS, b"those of a step")], part.store.marker, 44)
    begin = how_to_begin(part, None, {("in", 0): 0}, partly=False)
    assert begin is not None
    assert begin.emptied
    writer: Any = Writer()
    part.owner._writer = writer
    asyncio.run(part.owner.begin_again(begin.recovery, 1, emptied=True))
    written = [put for each in writer.parts for put in each.puts]
    assert {(row_key("a"), None), (WATERMARKS, None)} <= {*written}
    assert written[-1][0] == APPLIED
    note = dict(written)[RECOVERY]
    assert decode_recovery(note) == Recovery(1, 40, (9,), 0, ("big", "quarantine"))
    part.store.write([(RECOVERY, note)], part.positions.start, 45)
    assert part.cut_at == 0
    assert part.owner.sent("in").applied == 9, "also while it is folded a second time"
    part.owner._writer = None
    part.close()


def test_a_state_that_went_back_is_silent_up_to_its_sent_results(tmp_path: Path) -> None:
    part = part_of(tmp_path, applied=5)
    begin = how_to_begin(part, sent_before(part, noted(8)), {}, partly=False)
    assert begin is not None
    assert (begin.emptied, begin.recovery.applied) == (False, (8,))
    assert how_to_begin(part, sent_before(part, noted(5)), {}, partly=False) is None
    part.close()


def test_a_store_of_another_changelog_is_remembered_until_there_is_a_state(tmp_path: Path) -> None:
    part = part_of(tmp_path, applied=5)
    part.rebuild("its changelog was made again")
    assert part.owner.lost_before() == (5,)
    with pytest.raises(ChangelogError, match="is empty, though the table was folded before"):
        how_to_begin(part, None, {("in", 0): 0}, partly=False)
    known = sent_before(part, noted(3, changelog="another"))
    begin = how_to_begin(part, known, {("in", 0): 0}, partly=False)
    assert begin is not None
    assert begin.recovery.applied == (5,), "the store knows of more than the last commit"
    part.close()


def test_a_transaction_ends_where_results_begin_to_be_sent() -> None:
    from holdfast.core.engine.declared.processor import Emit, Processor

    def echo(rows: Any, event: bytes, at_ms: int) -> Any:
        return [Emit("big", value=event), Emit("other", value=event)]

    class Nothing(dict[bytes, bytes]):
        def scan(self, prefix: bytes, start: bytes = b"") -> Any:
            return iter(())

    processor: Processor[Any, int] = Processor(
        name="p", source="in", decode=bytes, fold=echo, row=int, emits=("big", "other")
    )
    folder: Folder[int] = Folder(processor, Nothing(), recovery=Recovery(1, 0, (1,), 0, ("big",)))
    batch = Batch([0, 1, 2], [1, 1, 1], ([b"a", b"b", b"c"],))
    first = folder.fold([batch])
    assert first is not None
    assert (first.marker.applied[0], [each.topic for each in first.emits]) == (1, ["other", "other"])
    assert first.repeated == {"big"}
    folder.commit()
    second = folder.fold([batch])
    assert second is not None
    assert [each.topic for each in second.emits] == ["big", "other"]
    assert second.repeated == frozenset()


def test_a_note_that_no_worker_wrote_is_refused() -> None:
    with pytest.raises(ChangelogError, match="malformed"):
        decode_recovery(b"\x93\x01")
    with pytest.raises(ChangelogError, match="format 2"):
        decode_recovery(encode_recovery(Recovery(2, 0, (1,))))
    assert decode_recovery(None) is None
