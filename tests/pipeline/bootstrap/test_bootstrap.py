"""A version's changelog written from history: whole or not at all, and the next record folded on it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.__main__ import main
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.quarantine.records import Quarantine
from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.state.codec import digest
from holdfast.core.engine.state.handover import Handover
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import (
    ConfigError,
    GroupError,
    LostRecordsError,
    StoppedError,
    TopicError,
)
from holdfast.kafka.transactions.transactional_client import TransactionalClient
from holdfast.kafka.transactions.transactional_producer import AbortableError
from holdfast.pipeline.bootstrap import sink as sink_module
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.bootstrap.sink import BootstrapOutcome, BootstrapStep, ChangelogSink
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import replay
from holdfast.pipeline.verify.emits import verify_emits
from holdfast.pipeline.verify.table import read_live, verify
from tests.pipeline.accounts import Account, Op, accounts
from tests.support.books_app import LOCAL, PARTITIONS, SEND, Books, Crash, outcomes
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=19) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    return Books(kafka)


@pytest.mark.long
def test_each_partition_begins_with_the_state_of_a_replay(books: Books) -> None:
    processor = books.version(2)
    done = bootstrap(processor, books.settings, SEND)
    assert outcomes(done) == [BootstrapOutcome.WRITTEN] * PARTITIONS
    replayed = replay(processor, books.settings, LOCAL)
    live = read_live(processor, books.settings)
    assert [each.digest for each in live] == [each.digest for each in replayed.partitions]
    assert [each.applied for each in live] == [119, 119]
    assert all(each.rows and each.timers and each.refused for each in done.partitions), "a toy"
    assert all(each.marker.version == 2 and each.row_types == 1 for each in live)
    books.write(10, first=120)  # a producer continues
    assert verify(processor, books.settings, LOCAL).equal


@pytest.mark.long
def test_refused_records_are_in_the_quarantine(books: Books) -> None:
    processor = books.version(2)
    done = bootstrap(processor, books.settings, SEND)
    quarantined = Quarantine(books.settings).records(lambda each: True, values=True)
    places = {(each.partition, each.offset) for each in quarantined}
    assert {
        (at, offset) for at in range(PARTITIONS) for offset in range(3, 120, 6) if offset % 17 != 16
    } <= places
    assert len(quarantined) <= sum(each.refused for each in done.partitions)  # a record with two timers
    assert all(each.value for each in quarantined if each.offset % 17 != 16), "the records are whole"


@pytest.mark.long
def test_the_records_sent_are_those_a_replay_emits(books: Books) -> None:
    done = bootstrap(books.first, books.settings, SEND)
    assert sum(each.emits for each in done.partitions) > 10
    verdict = verify_emits(books.first, books.settings)
    assert verdict.equal, verdict
    assert sum(each.found for each in verdict.topics) == sum(each.emits for each in done.partitions)


@pytest.mark.long
def test_a_partition_with_a_state_is_left_alone(books: Books) -> None:
    bootstrap(books.first, books.settings, SEND)
    before = books.messages(books.first.changelog(books.name))
    books.write(10, first=120)
    done = bootstrap(books.first, books.settings, SEND)
    assert [(each.outcome, each.applied) for each in done.partitions] == [
        (BootstrapOutcome.KEPT, 119)
    ] * PARTITIONS
    assert books.messages(books.first.changelog(books.name)) == before


def steps_of(books: Books, processor: Processor[Any, Any]) -> list[tuple[int, BootstrapStep]]:
    found: list[tuple[int, BootstrapStep]] = []
    bootstrap(processor, books.settings, SEND, told=lambda at, step: found.append((at, step)))
    return found


@pytest.mark.variant
@pytest.mark.long
def test_a_kill_at_any_step_leaves_a_partition_whole_or_empty(books: Books) -> None:
    steps = steps_of(books, books.first)
    whole = {each.partition: each.digest for each in read_live(books.first, books.settings)}
    large = f"{books.name}-large"
    sent = books.messages(large)
    assert {step for _, step in steps} == set(BootstrapStep)
    for number, last in enumerate(dict.fromkeys(steps)):
        version = books.version(number + 2)

        def die(partition: int, step: BootstrapStep, last: tuple[int, BootstrapStep] = last) -> None:
            if (partition, step) == last:
                raise Crash

        with pytest.raises(Crash):
            bootstrap(version, books.settings, SEND, told=die)
        for live in read_live(version, books.settings):
            found = (live.digest, live.applied)
            assert found in ((whole[live.partition], 119), (digest(()), -1)), last
        bootstrap(version, books.settings, SEND)
        assert {each.partition: each.digest for each in read_live(version, books.settings)} == whole
        assert sorted(books.messages(large)) == sorted(sent * (number + 2)), last


@pytest.mark.long
def test_a_transaction_that_is_made_again_has_everything_once(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, calls = TransactionalClient.end, list[bool]()

    async def end(self: TransactionalClient, *, commit: bool) -> None:
        calls.append(commit)
        if calls == [True]:
            raise AbortableError("once")
        await ended(self, commit=commit)

    monkeypatch.setattr(TransactionalClient, "end", end)
    bootstrap(books.first, books.settings, SEND)
    assert calls[:3] == [True, False, True]
    assert verify(books.first, books.settings, LOCAL).equal
    assert verify_emits(books.first, books.settings).equal


@pytest.mark.long
def test_another_owner_in_between_is_not_written_over(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[int]()

    def meanwhile(processor: Processor[Any, Any], settings: Settings, partition: int) -> bool:
        looked.append(partition)
        return partition == 0

    monkeypatch.setattr(sink_module, "has_state", meanwhile)
    assert outcomes(bootstrap(books.first, books.settings, SEND)) == [
        BootstrapOutcome.KEPT,
        BootstrapOutcome.WRITTEN,
    ]
    assert looked == [0, 1]
    assert books.messages(books.first.changelog(books.name))[0][0] is not None
    assert [each.applied for each in read_live(books.first, books.settings)] == [-1, 119]


@pytest.mark.variant
def test_spark_writes_the_same_as_this_process(books: Books, spark: SparkSession, lake: Path) -> None:
    here = bootstrap(books.first, books.settings, SEND)
    sent = sorted(books.messages(f"{books.name}-large"))
    land(books.settings, books.source, str(lake))
    on_spark = (
        replace(LOCAL, engine="spark"),
        replace(LOCAL, engine="spark", source="bronze", lake=str(lake)),
    )
    for number, options in enumerate(on_spark, 2):
        processor = books.version(number)
        done = bootstrap(processor, books.settings, BootstrapOptions(replay=options, emits="send"))
        assert done.engine == "spark"
        assert done.partitions == here.partitions
        live = read_live(processor, books.settings)
        assert [each.digest for each in live] == [each.digest for each in here.partitions]
        assert sorted(books.messages(f"{books.name}-large")) == sorted(sent * number)


# -- end offsets, and silent versions


@pytest.mark.long
def test_a_silent_version_ends_at_the_previous_versions_offset(books: Books) -> None:
    upto = replace(LOCAL, until=Until(offsets={0: 70, 1: -1}))
    bootstrap(books.first, books.settings, BootstrapOptions(replay=upto, emits="send"))
    sent = books.messages(f"{books.name}-large")
    second = books.version(2, emits_from="handover")
    done = bootstrap(second, books.settings, BootstrapOptions(replay=LOCAL))
    assert [(each.outcome, each.applied) for each in done.partitions] == [
        (BootstrapOutcome.WRITTEN, 70),
        (BootstrapOutcome.EMPTY, -1),
    ]
    assert books.messages(f"{books.name}-large") == sent
    live = read_live(second, books.settings)[0]
    assert live.handover == Handover(1, (70,))
    assert verify(second, books.settings, LOCAL).equal
    assert verify_emits(second, books.settings).equal


@pytest.mark.long
def test_a_lost_changelog_comes_back_up_to_where_its_group_had_come(books: Books) -> None:
    with pytest.raises(ConfigError, match="nothing tells up to where"):
        bootstrap(books.first, books.settings, BootstrapOptions(replay=LOCAL))
    CommittedOffsets(books.settings, books.name, timeout_s=DEADLINE_S).commit(
        {(books.source, 0): 50, (books.source, 1): 120}
    )
    done = bootstrap(books.first, books.settings, BootstrapOptions(replay=LOCAL))
    assert [each.applied for each in done.partitions] == [49, 119]
    assert books.messages(f"{books.name}-large") == []
    assert verify(books.first, books.settings, LOCAL).equal


@pytest.mark.long
def test_a_table_that_emits_nothing_goes_to_the_end(books: Books) -> None:
    quiet = replace(quiet_accounts(books.source), name="quiet")
    create_topics(books.settings, [quiet], partitions=PARTITIONS)
    done = bootstrap(quiet, books.settings, BootstrapOptions(replay=LOCAL))
    assert [each.applied for each in done.partitions] == [119, 119]
    assert [each.handover for each in read_live(quiet, books.settings)] == [None, None]


def quiet_accounts(source: str) -> Processor[Op, Account]:
    """Return the processor of accounts, which emits nothing."""
    loud = accounts(source)
    return replace(loud, emits=(), fold=_without_emits(loud.fold), on_wake=_without_emits(loud.on_wake))


def _without_emits(call: Any) -> Any:
    def quiet(*arguments: Any) -> None:
        for _ in call(*arguments) or ():
            pass

    return quiet


# -- refusals


def test_history_that_does_not_reach_the_topic_is_refused(books: Books) -> None:
    heads = {books.source: dict.fromkeys(range(PARTITIONS), 200)}
    told = ChangelogSink(processor=books.first, settings=books.settings, heads=heads)
    options = replace(LOCAL, rows=True, through=told)
    with pytest.raises(LostRecordsError, match="begins at offset 200, and history ends at 119"):
        replay(books.first, books.settings, options)
    assert books.messages(books.first.changelog(books.name)) == []


def test_a_record_that_would_stop_a_worker_stops_it(books: Books) -> None:
    strict = books.version(2, on_error="stop")
    with pytest.raises(StoppedError, match="boom k3"):
        bootstrap(strict, books.settings, SEND)
    assert books.messages(strict.changelog(books.name)) == []


@pytest.mark.long
def test_workers_that_share_its_writers_must_have_stopped(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: BrokerGroups, app: str) -> None:
        raise GroupError(f"workers of {app} run")

    monkeypatch.setattr(BrokerGroups, "require_stopped", run)
    with pytest.raises(GroupError):
        bootstrap(books.version(2), books.settings, SEND)
    alone = replace(books.first, name="alone", version=2, emits=())
    create_topics(books.settings, [alone], partitions=PARTITIONS)
    assert outcomes(bootstrap(alone, books.settings, SEND)) == [BootstrapOutcome.WRITTEN] * PARTITIONS


def test_a_changelog_of_other_partitions_is_refused(books: Books, kafka: EmbeddedKafka) -> None:
    other = replace(books.first, version=7)
    kafka.create_topic(other.changelog(books.name), partitions=3, config={"cleanup.policy": "compact"})
    with pytest.raises(TopicError, match="has 3 partitions"):
        bootstrap(other, books.settings, SEND)


def test_options_that_make_no_sense_are_refused(books: Books) -> None:
    for options in (replace(LOCAL, allow_holes=True), replace(LOCAL, out="/nowhere")):
        with pytest.raises(ConfigError):
            bootstrap(books.first, books.settings, BootstrapOptions(replay=options))


def test_the_callback_for_steps_is_not_sent_to_executors(books: Books) -> None:
    plain: Processor[Any, Any] = Processor(name="plain", source="s", decode=bytes, fold=print, row=Account)
    sink = ChangelogSink(processor=plain, settings=books.settings, heads={}, told=lambda at, step: None)
    sent = pickle.loads(pickle.dumps(sink))
    assert (sent.settings.app, sent.told) == (books.name, sink_module.silent)


@pytest.mark.long
def test_the_command_reports_the_outcome_of_each_partition(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / f"app_{books.name.replace('-', '_')}.py"
    module.write_text(
        "from dataclasses import replace\nfrom tests.pipeline.bootstrap.test_bootstrap import"
        f" quiet_accounts\nprocessors = [replace(quiet_accounts({books.source!r}), version=2)]\n"
    )
    create_topics(books.settings, [replace(quiet_accounts(books.source), version=2)], partitions=PARTITIONS)
    kafka = [
        part for name, value in books.settings.kafka.items() for part in ("--set", f"kafka.{name}={value}")
    ]
    words = ["bootstrap", "accounts", "--set", f"app={books.name}", *kafka, "-A", module.stem]
    assert run(*words, "--version", "3") == 2
    assert "accounts is declared as version 2" in capsys.readouterr().err
    assert run(*words, "--version", "2", "--engine", "local", "--output", "json") == 0
    said = capsys.readouterr()
    assert [each["applied"] for each in json.loads(said.out)["partitions"]] == [119, 119]
    assert "partition 1: committed" in said.err
    assert run(*words) == 0
    said = capsys.readouterr()
    assert said.out.count("kept") == PARTITIONS
    assert "every partition of accounts.v2 has a state" in said.err


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


@pytest.mark.long
def test_an_earlier_versions_offset_in_another_internal_topic_is_none_in_this_one(
    books: Books,
) -> None:
    def loud(version: int) -> Processor[Any, int]:
        words = Internal(f"{books.name}-words", Text(), version=version)
        made: Processor[Any, int] = Processor(
            name="loud",
            source=words,
            decode=bytes,
            fold=lambda *_: None,
            row=int,
            version=version,
            emits=(f"{books.name}-loud",),
        )
        create_topics(books.settings, [made], partitions=PARTITIONS)
        return made

    loud(1)
    with pytest.raises(
        ConfigError, match=r"words\.v2, an internal topic: its earlier version stood in another"
    ):
        bootstrap(loud(2), books.settings, BootstrapOptions(replay=LOCAL))
    assert outcomes(bootstrap(loud(2), books.settings, SEND)) == [BootstrapOutcome.EMPTY] * PARTITIONS
