"""A version that begins with the rows of an earlier one: whole or not at all, and a function of these and its
source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.tables.mending import Mender
from holdfast.clients.topics.admin import Admin
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Bytes
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.base import BASE
from holdfast.core.engine.state.codec import digest
from holdfast.core.engine.state.rows import Rows
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import (
    ChangelogError,
    ConfigError,
    LostRecordsError,
    MigrationError,
    SparkError,
    TopicError,
)
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.bootstrap.migration import read_earlier
from holdfast.pipeline.bootstrap.sink import BootstrapOutcome, BootstrapStep
from holdfast.pipeline.replay import replay
from holdfast.pipeline.verify.emits import verify_emits
from holdfast.pipeline.verify.table import read_live, verify
from tests.pipeline.accounts import Account, Op, doubled, failing_sums
from tests.support.books_app import LOCAL, MIGRATE, PARTITIONS, Books, Crash, outcomes
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=23) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    return Books(kafka).begun()


@pytest.mark.long
def test_it_begins_with_the_migrated_rows_and_is_verified_from_there(books: Books) -> None:
    second = books.version(2, migrate={1: doubled})
    books.write(20, first=120)  # version 1 has folded up to 119, producers continue
    done = bootstrap(second, books.settings, MIGRATE)
    assert [(each.outcome, each.applied) for each in done.partitions] == [
        (BootstrapOutcome.WRITTEN, 119)
    ] * PARTITIONS
    assert all(each.rows and each.timers for each in done.partitions), "a toy"
    before, after = read_live(books.first, books.settings)[0], read_live(second, books.settings)[0]
    assert before.stored.keys() == after.stored.keys()
    assert before.digest != after.digest
    verdict = verify(second, books.settings, LOCAL)
    assert verdict.equal, verdict
    assert verdict.records == 0
    assert "version 1 behind offset 119" in verdict.bases[0]
    onward = replay(second, books.settings, LOCAL)
    assert (onward.records, onward.applied) == (20 * PARTITIONS, {0: 139, 1: 139})


@pytest.mark.long
def test_the_source_is_needed_from_the_base_on_alone(books: Books) -> None:
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    books.write(5, first=120)
    admin = Admin(books.settings)
    admin.delete_before({(books.source, at): 120 for at in range(PARTITIONS)})
    assert replay(second, books.settings, LOCAL).records == 5 * PARTITIONS
    assert verify_emits(second, books.settings, LOCAL).equal
    admin.delete_before({(books.source, at): 121 for at in range(PARTITIONS)})
    with pytest.raises(LostRecordsError, match="begins at offset 121"):
        replay(second, books.settings, LOCAL)


@pytest.mark.long
def test_a_declaration_that_loses_its_migration_later_is_verified_from_the_base(books: Books) -> None:
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    verdict = verify(replace(second, migrate={}), books.settings, LOCAL)
    assert verdict.equal, verdict
    assert len(verdict.bases) == PARTITIONS


@pytest.mark.long
def test_a_partition_that_the_earlier_version_never_had_begins_with_nothing(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = books.version(2, migrate={1: doubled})
    earlier = read_earlier(second, books.settings)
    fewer = replace(earlier, partitions={0: earlier.partitions[0]})
    monkeypatch.setattr("holdfast.pipeline.bootstrap.migration.read_earlier", lambda *_: fewer)
    done = bootstrap(second, books.settings, MIGRATE)
    assert [(each.outcome, each.applied, bool(each.rows)) for each in done.partitions] == [
        (BootstrapOutcome.WRITTEN, 119, True),
        (BootstrapOutcome.WRITTEN, -1, False),
    ]
    assert outcomes(bootstrap(second, books.settings, MIGRATE)) == [BootstrapOutcome.KEPT] * PARTITIONS
    assert verify(second, books.settings, LOCAL).equal


@pytest.mark.long
def test_a_function_that_raises_names_the_row_and_nothing_is_written(books: Books) -> None:
    second = books.version(2, migrate={1: failing_sums})
    with pytest.raises(MigrationError, match=r"accounts version 2 migrates from version 1.*'sum/.*no sums"):
        bootstrap(second, books.settings, MIGRATE)
    assert books.messages(second.changelog(books.name)) == []
    assert books.messages(second.base(books.name)) == []


@pytest.mark.long
def test_a_kill_at_any_step_leaves_the_whole_or_nothing(books: Books) -> None:
    steps: list[tuple[int, BootstrapStep]] = []
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE, told=lambda at, step: steps.append((at, step)))
    whole = {each.partition: each.digest for each in read_live(second, books.settings)}
    assert {step for _, step in steps} == set(BootstrapStep)
    for number, last in enumerate(dict.fromkeys(steps)):
        version = books.version(number + 3, migrate={1: doubled})

        def die(partition: int, step: BootstrapStep, last: tuple[int, BootstrapStep] = last) -> None:
            if (partition, step) == last:
                raise Crash

        with pytest.raises(Crash):
            bootstrap(version, books.settings, MIGRATE, told=die)
        for live in read_live(version, books.settings):
            assert (live.digest, live.applied) in ((whole[live.partition], 119), (digest(()), -1)), last
        bootstrap(version, books.settings, MIGRATE)
        assert {each.partition: each.digest for each in read_live(version, books.settings)} == whole
        assert verify(version, books.settings, LOCAL).equal, last
        assert sum(key == BASE for key, _ in books.messages(version.base(books.name))) == PARTITIONS
    assert outcomes(bootstrap(second, books.settings, MIGRATE)) == [BootstrapOutcome.KEPT] * PARTITIONS


@pytest.mark.long
def test_a_base_that_was_altered_or_is_gone_is_reported(books: Books, kafka: EmbeddedKafka) -> None:
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    base = second.base(books.name)
    kept = books.messages(base)
    rows = kept[: 1 + next(at for at, (key, _) in enumerate(kept) if key == BASE)]
    producer = Producer(kafka.client_config())
    for key, value in rows:  # a beginning again, one row of it another's
        producer.produce(base, rows[1][1] if key == rows[0][0] else value, key, 0)
    assert producer.flush(DEADLINE_S) == 0
    with pytest.raises(ChangelogError, match="has changed"):
        verify(second, books.settings, LOCAL)
    third = books.version(3, migrate={1: doubled})
    bootstrap(third, books.settings, MIGRATE)
    producer.produce(third.base(books.name), b"x", b"stray", 1)
    assert producer.flush(DEADLINE_S) == 0
    with pytest.raises(ChangelogError, match="no note closes"):
        verify(third, books.settings, LOCAL)


@pytest.mark.long
def test_without_a_migration_or_its_base_it_is_refused(books: Books) -> None:
    with pytest.raises(ConfigError, match="declares no migrate="):
        bootstrap(books.version(2), books.settings, MIGRATE)
    later: Processor[Op, Account] = books.version(9, migrate={8: doubled})
    with pytest.raises(TopicError, match="no changelog of that"):
        bootstrap(later, books.settings, MIGRATE)


@pytest.mark.long
def test_a_version_that_had_one_source_where_this_has_several_is_not_read(books: Books) -> None:
    def folded(rows: Rows[Account], event: bytes, at_ms: int) -> None: ...

    several: Processor[Any, Account] = Processor(
        name="accounts",
        on={Source(books.source, Bytes()): folded, Source(f"{books.name}-large", Bytes()): folded},
        row=Account,
        version=2,
        migrate={1: doubled},
    )
    with pytest.raises(MigrationError, match=r"had other sources, or another time, leave out migrate="):
        read_earlier(several, books.settings)


@pytest.mark.long
def test_a_row_that_fails_in_one_partition_leaves_all_as_they_are(books: Books) -> None:
    def failing_later(rows: Rows[Account], key: str, row: Account) -> None:
        if key in seen:
            raise ValueError("once more")
        seen.add(key)

    seen: set[str] = set()  # the partitions have the same keys, so the second fails
    with pytest.raises(MigrationError, match="once more"):
        bootstrap(books.version(2, migrate={1: failing_later}), books.settings, MIGRATE)
    assert books.messages(books.version(2).changelog(books.name)) == []


@pytest.mark.variant
def test_spark_migrates_and_verifies_as_this_process_does(books: Books, spark: SparkSession) -> None:
    on_spark = replace(LOCAL, engine="spark")
    second, third = (books.version(number, migrate={1: doubled}) for number in (2, 3))
    here = bootstrap(second, books.settings, MIGRATE)
    there = bootstrap(third, books.settings, BootstrapOptions(replay=on_spark, migrate=True))
    assert there.engine == "spark"
    assert there.partitions == here.partitions
    live = read_live(third, books.settings)
    assert [each.digest for each in live] == [each.digest for each in here.partitions]
    verdict = verify(third, books.settings, on_spark)
    assert (verdict.equal, verdict.engine, verdict.records) == (True, "spark", 0), "and of no record"
    assert verify_emits(third, books.settings, on_spark).equal
    assert outcomes(bootstrap(third, books.settings, BootstrapOptions(replay=on_spark, migrate=True))) == (
        [BootstrapOutcome.KEPT] * PARTITIONS
    )
    books.write(20, first=120)
    onward = [replay(third, books.settings, options) for options in (LOCAL, on_spark)]
    assert onward[0].partitions == onward[1].partitions
    assert onward[0].records == 20 * PARTITIONS
    failed = books.version(4, migrate={1: failing_sums})
    with pytest.raises(SparkError, match="no sums"):
        bootstrap(failed, books.settings, BootstrapOptions(replay=on_spark, migrate=True))
    assert books.messages(failed.changelog(books.name)) == []


@pytest.mark.long
@pytest.mark.parametrize("applied", [None, 130])
def test_a_table_that_is_repaired_keeps_its_base(books: Books, applied: int | None) -> None:
    second = books.version(2, migrate={1: doubled})
    bootstrap(second, books.settings, MIGRATE)
    before = read_live(second, books.settings)
    books.write(20, first=120)
    mender = Mender(second, books.settings)
    for at in range(PARTITIONS):
        step = asyncio.run(mender.write(at, rebuild=applied is None, applied=applied))
        assert step.changes is not None
    after = read_live(second, books.settings)
    assert [each.base for each in after] == [each.base for each in before]
    assert [each.applied for each in after] == [applied or 119] * PARTITIONS
    verdict = verify(second, books.settings, LOCAL)
    assert (verdict.equal, len(verdict.bases)) == (True, PARTITIONS), verdict
    if applied is None:
        assert [each.stored for each in after] == [each.stored for each in before]
