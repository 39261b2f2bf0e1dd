"""The notes of a table that outlive `tables repair`: those that no replay of the source gives again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cli.tables.mending import Mender
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.state.base import BASE
from holdfast.core.engine.state.evolution import ROW_TYPES, decode_row_types, encode_row_types, evolved
from holdfast.core.engine.state.handover import HANDOVER
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.core.engine.state.passing_refusals import refusal_note
from holdfast.core.engine.state.row_schema import schema_of
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import PipelineError
from holdfast.pipeline.bootstrap.bootstrap import bootstrap
from holdfast.pipeline.bootstrap.fencing import fenced_writer
from holdfast.pipeline.verify.table import read_live, verify
from tests.pipeline.accounts import Account, Op, doubled
from tests.support.books_app import LOCAL, MIGRATE, SILENT, Books
from tests.support.patience import DEADLINE_S

STOOD = 119


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=31) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    return Books(kafka).begun()


def notes_of(books: Books, processor: Processor[Any, Any]) -> dict[bytes, bytes]:
    """Return the notes on the changelog's partition 0."""
    return asyncio.run(Mender(processor, books.settings).look(0)).notes()


def fold_on(books: Books, processor: Processor[Op, Account], *notes: tuple[bytes, bytes]) -> None:
    """Write *notes* as a worker does that has folded nothing of note since."""

    async def work() -> None:
        (live,) = read_live(processor, books.settings, partitions=[0])
        async with fenced_writer(processor, books.settings, 0) as writer:
            changes: Any = Changes(marker=live.marker, records=1, puts=[*notes])
            await writer.write(changes, [], DEADLINE_S)

    asyncio.run(work())


def mend(books: Books, processor: Processor[Any, Any], applied: int | None) -> None:
    mender = Mender(processor, books.settings)
    asyncio.run(mender.write(0, rebuild=applied is None, applied=applied))
    again = asyncio.run(mender.look(0))
    assert (again.strays, mender.plan(0, again, None).how) == ([], "nothing to repair")


@pytest.mark.long
def test_a_replayed_state_keeps_handover_lost_heads_and_refusals_up_to_there_and_is_of_the_type_of_now(
    books: Books,
) -> None:
    second = books.version(2, emits_from="handover")
    bootstrap(second, books.settings, SILENT)
    handover = notes_of(books, second)[HANDOVER]
    lost = encode_lost_heads({f"{books.name}-elsewhere": 7})
    before, behind = refusal_note(books.source, 40), refusal_note(books.source, 90)
    types = encode_row_types({"": [schema_of(int), schema_of(Account)]})
    fold_on(books, second, (LOST_HEADS, lost), before, behind, (ROW_TYPES, types))
    mend(books, second, 60)
    assert notes_of(books, second) == {
        HANDOVER: handover,
        LOST_HEADS: lost,
        before[0]: before[1],
        ROW_TYPES: encode_row_types(evolved(None, second)),
    }
    (live, _) = read_live(second, books.settings)
    assert (live.applied, live.handover is None, live.refused) == (60, False, frozenset({(books.source, 40)}))
    assert verify(second, books.settings, LOCAL).equal, "what the note says is refused by both"


@pytest.mark.long
def test_a_table_that_is_put_back_to_its_base_keeps_what_the_base_lacks_and_is_written_as(
    books: Books,
) -> None:
    second = books.version(2, emits_from="handover", migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    begun = notes_of(books, second)
    assert {BASE, HANDOVER, ROW_TYPES} == begun.keys()
    lost, refusal = encode_lost_heads({books.source: 7}), refusal_note(books.source, 125)
    types = encode_row_types({"": [schema_of(Account), schema_of(int)]})
    fold_on(books, second, (LOST_HEADS, lost), refusal, (ROW_TYPES, types))
    mend(books, second, None)
    assert notes_of(books, second) == {**begun, LOST_HEADS: lost, ROW_TYPES: types}
    found = decode_row_types(notes_of(books, second)[ROW_TYPES])
    assert found is not None
    assert len(found[""]) == 2, "rows of the base are of the first"


@pytest.mark.long
def test_a_table_with_a_base_is_not_mended_to_an_offset_before_it(books: Books) -> None:
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    for applied in (-1, STOOD - 1):
        with pytest.raises(PipelineError, match=f"behind offset {STOOD}, so it cannot be replayed"):
            mend(books, second, applied)
    mend(books, second, STOOD)
    assert verify(second, books.settings, LOCAL).equal


@pytest.mark.long
def test_an_emptied_table_has_no_notes(books: Books) -> None:
    second = books.version(2, emits_from="handover")
    bootstrap(second, books.settings, SILENT)
    fold_on(books, second, refusal_note(books.source, 40))
    mend(books, second, None)
    assert notes_of(books, second) == {}
    (live, _) = read_live(second, books.settings)
    assert not live.has_begun
