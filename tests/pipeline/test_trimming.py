"""A source's landed records may be deleted, and no record that any reader still needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast import Global, Source
from holdfast.clients.topics.admin import Admin
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.state.rows import Rows
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError, LakeError, TopicError
from holdfast.pipeline import trimming
from holdfast.pipeline.bootstrap.bootstrap import bootstrap
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import replay
from holdfast.pipeline.trimming import LandedTrim, PartitionTrim
from holdfast.pipeline.verify.table import verify
from tests.support.books_app import LOCAL, PARTITIONS, SEND, Books


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=29) as running:
        yield running


class LandedBooks(Books):
    """Books of which version 1 has folded all records, and the lake has them too."""

    def __init__(self, kafka: EmbeddedKafka, lake: Path) -> None:
        super().__init__(kafka)
        self._kafka, self.lake = kafka, str(lake)
        bootstrap(self.first, self.settings, SEND)
        self.land()

    def land(self) -> None:
        land(self.settings, self.source, self.lake)

    def trimming(self, *processors: Processor[Any, Any], **options: Any) -> LandedTrim:
        return LandedTrim(self.settings, processors or [self.first], self.lake, **options)

    def firsts(self) -> list[int]:
        """Return where each partition of the source begins now."""
        places = [(self.source, at) for at in range(PARTITIONS)]
        return [first for first, _ in Admin(self.settings).offsets(places).values()]

    def commit(self, group: str, offset: int) -> None:
        consumer = Consumer(self._kafka.client_config(**{"group.id": group}))
        consumer.commit(
            offsets=[TopicPartition(self.source, at, offset) for at in range(PARTITIONS)], asynchronous=False
        )
        consumer.close()


@pytest.fixture
def books(kafka: EmbeddedKafka, tmp_path: Path) -> LandedBooks:
    return LandedBooks(kafka, tmp_path / "lake")


def told(plan: list[PartitionTrim]) -> set[tuple[int, int, str]]:
    return {(each.first, each.before, each.held_by) for each in plan}


@pytest.mark.long
def test_landed_and_folded_records_go_and_the_lake_gives_the_same_afterwards(books: LandedBooks) -> None:
    found = books.trimming()
    plan = found.plan()
    assert told(plan) == {(0, 120, "")}
    assert books.firsts() == [0] * PARTITIONS, "a plan deletes nothing"
    found.trim(plan)
    assert books.firsts() == [120] * PARTITIONS
    assert told(books.trimming().plan()) == {(120, 120, "")}
    found.trim(books.trimming().plan())
    books.write(20, first=120)
    whole = replace(LOCAL, source="history", lake=books.lake)
    verdict = verify(books.first, books.settings, whole)
    assert (verdict.equal, verdict.partial, verdict.records) == (True, (), 120 * PARTITIONS)
    assert replay(books.first, books.settings, whole).records == 140 * PARTITIONS


@pytest.mark.long
def test_the_first_that_needs_a_record_keeps_it(books: LandedBooks) -> None:
    changelog = books.first.changelog(books.settings.app)
    books.write(20, first=120)
    books.land()
    assert told(books.trimming().plan()) == {(0, 120, changelog)}
    books.commit("readers", 70)
    assert told(books.trimming(groups=["readers"]).plan()) == {(0, 70, "group readers")}
    assert told(books.trimming(groups=["nobody"]).plan()) == {(0, 0, "group nobody")}
    books.commit(books.settings.app, 60)
    own = {(0, 60, f"group {books.settings.app}")}
    assert told(books.trimming(agents_read=[books.source]).plan()) == own
    second = books.version(2)
    assert told(books.trimming(second).plan()) == {(0, 0, second.changelog(books.settings.app))}
    assert told(books.trimming().plan()) == {(0, 0, second.changelog(books.settings.app))}, (
        "a version that begins is another worker's"
    )
    bootstrap(second, books.settings, SEND)
    assert told(books.trimming(second).plan()) == {(0, 120, changelog)}
    books.write(5, first=140)
    Admin(books.settings).delete([changelog])
    bootstrap(books.version(3), books.settings, SEND)
    Admin(books.settings).delete([second.changelog(books.settings.app)])
    assert told(books.trimming(books.version(3)).plan()) == {(0, 140, "lake")}


@pytest.mark.long
def test_a_trim_that_was_cut_continues(books: LandedBooks) -> None:
    found = books.trimming()
    plan = found.plan()
    found.trim(plan[:1])
    assert books.firsts() == [120, *[0] * (PARTITIONS - 1)]
    found.trim(books.trimming().plan())
    assert books.firsts() == [120] * PARTITIONS


@pytest.mark.long
def test_nothing_goes_where_the_lake_is_not_of_this_topic(books: LandedBooks, kafka: EmbeddedKafka) -> None:
    Admin(books.settings).delete([books.source])
    kafka.create_topic(books.source, partitions=PARTITIONS, config={"retention.ms": "-1"})
    books.write(120)
    with pytest.raises(LakeError, match=r"nothing of .* is deleted.*deleted and made again"):
        books.trimming().plan()


@pytest.mark.long
def test_nothing_goes_where_the_lake_lacks_a_row(books: LandedBooks) -> None:
    min(Path(books.lake).rglob("*.parquet")).unlink()
    with pytest.raises(LakeError, match=r"offsets 0 to 119: file .* is gone: it was removed by hand"):
        books.trimming().plan()
    assert books.firsts() == [0] * PARTITIONS


@pytest.mark.long
def test_records_not_landed_from_the_beginning_are_kept(
    books: LandedBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = trimming._landed

    def later(*arguments: Any) -> Any:
        return msgspec.structs.replace(landed(*arguments), begins={0: 10}, left_out={1: [(30, 34)]})

    monkeypatch.setattr(trimming, "_landed", later)
    plan = books.trimming().plan()
    assert [(each.before, each.held_by) for each in plan] == [
        (0, "lake, which begins later"),
        (30, "lake, which lacks a batch that is skipped"),
    ]


@pytest.mark.long
def test_an_impossible_trim_is_refused(books: LandedBooks) -> None:
    with pytest.raises(ConfigError, match="topic others is no source of this application: it folds"):
        books.trimming(topics=["others"])

    def fold(rows: Rows[int], event: Any, at_ms: int) -> None:
        """Nothing."""

    rates: Global[int] = Global("rates", Source(books.source, Text()), fold=fold, row=int)
    reads: Processor[Any, int] = Processor(
        name="reads", on={Source(f"{books.source}-other", Text()): fold}, row=int, reads=(rates,)
    )
    with pytest.raises(ConfigError, match="is read whole, as a global table, by processor reads"):
        books.trimming(books.first, reads)
    books.version(1)
    Admin(books.settings).delete([books.first.changelog(books.settings.app)])
    with pytest.raises(TopicError, match="does not exist"):
        books.trimming().plan()
