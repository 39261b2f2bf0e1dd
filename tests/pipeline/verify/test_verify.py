"""A live table against a replay: equal, or the first key that differs and the offset that last changed it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED, RowCodec, encode_due, row_key, wake_key
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import ChangelogError, PipelineError
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.topic import Span, TopicReader
from holdfast.pipeline.verify import differing
from holdfast.pipeline.verify import table as verifying
from holdfast.pipeline.verify.table import TableVerdict, verify
from holdfast.tables.changelog import ChangelogWriter
from tests.pipeline.accounts import Account, Log, Op, Record, accounts
from tests.pipeline.conftest import MakeTopic
from tests.support.harness import wait_for_ends
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG: Log = {
    0: [Record(at, 1_000 + 10 * at, None, b"add k%d %d" % (at % 5, at % 97)) for at in range(60)],
    1: [
        Record(at, 1_000 + 10 * at, b"k", b"wake k%d 5000" % (at % 3) if at % 2 else b"boom x 1")
        for at in range(40)
    ],
}
LOCAL = ReplayOptions(engine="local")
Live = tuple[Processor[Op, Account], Settings]
MakeLive = Callable[[dict[int, int]], Live]
CODEC = RowCodec[Account](Account)


@pytest.fixture
def make_live(settings: Settings, make_topic: MakeTopic, broker: SessionBroker) -> Any:
    """Give a maker of live tables: the log folded up to given offsets and written by the worker's own
    transactional writer.
    """
    changelogs: list[str] = []

    def make(applied: dict[int, int]) -> Live:
        processor = accounts(make_topic(LOG))
        own = Settings(app=processor.source, kafka=dict(settings.kafka))
        changelog = processor.changelog(own.app)
        broker.create_topic(changelog, partitions=2, config={"cleanup.policy": "compact"}, exact=True)
        changelogs.append(changelog)
        for partition, last in applied.items():
            fold_live(processor, own, partition, last)
        wait_for_ends(own, changelog)
        return processor, own

    yield make
    broker.delete_topics(changelogs)


def fold_live(processor: Processor[Op, Account], settings: Settings, partition: int, last: int) -> None:
    asyncio.run(_fold_live(processor, settings, partition, last))


async def _fold_live(
    processor: Processor[Op, Account], settings: Settings, partition: int, last: int
) -> None:
    store = DictStore()
    folder = Folder(processor, store)
    writer = ChangelogWriter(
        producers(connector(settings, timeout_s=DEADLINE_S), transaction_timeout_s=DEADLINE_S)(
            processor.transactional_id(settings.app, partition)
        ),
        changelog=processor.changelog(settings.app),
        partition=partition,
    )
    try:
        await writer.fence(DEADLINE_S)
        with TopicReader(settings, processor.source) as reader:
            for batch, _ in reader.batches(partition, Span(first=0, end=last + 1), processor.columns):
                for start in range(0, len(batch.offsets), 7):
                    changes = folder.fold([batch.slice(start, start + 7)])
                    assert changes is not None
                    changes.emits = []  # their topics are not part of this test
                    await writer.write(changes, [], DEADLINE_S)
                    store.apply(changes.puts)
                    folder.commit()
    finally:
        await writer.close()


def tamper(live: Live, partition: int, puts: dict[bytes, bytes | None], marker: Position) -> None:
    """Write records to a changelog that no fold has written, closed by *marker*."""
    processor, settings = live
    producer = Producer(settings.producer(**{"transactional.id": f"tamper-{settings.app}"}))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for key, value in {**puts, APPLIED: encode_position(marker)}.items():
        producer.produce(processor.changelog(settings.app), value, key, partition)
    producer.commit_transaction(DEADLINE_S)
    wait_for_ends(settings, processor.changelog(settings.app))


def difference(verdict: TableVerdict, partition: int) -> tuple[object, ...]:
    found = verdict.partitions[partition].difference
    assert found is not None
    return found.kind, found.key, found.live, found.replayed, found.changed_at


def test_a_live_table_is_equal_to_its_replay_at_its_own_position(make_live: MakeLive) -> None:
    verdict = verify(*make_live({0: 37, 1: 20}), LOCAL)
    assert verdict.equal
    assert verdict.live_digest == verdict.replayed_digest
    assert [each.applied for each in verdict.partitions] == [37, 20], "not at the topic's end"
    assert verdict.records == 38 + 21


def test_a_table_that_nothing_was_folded_into_is_equal(make_live: MakeLive) -> None:
    verdict = verify(*make_live({}), LOCAL)
    assert verdict.equal
    assert [each.applied for each in verdict.partitions] == [-1, -1]


@pytest.mark.parametrize("memory_bytes", [256 << 20, 1])
def test_a_planted_row_is_found_with_the_offset_that_last_changed_it(
    make_live: MakeLive, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotedStore(SpillingStore):
        def close(self) -> None:
            spilled.append(self.has_spilled)
            super().close()

    spilled: list[bool] = []
    monkeypatch.setattr(verifying, "SpillingStore", NotedStore)
    monkeypatch.setattr(differing, "RANGE_ROWS", 2)
    live = make_live({0: 49, 1: 10})
    wrong = Account(total=999, seen_ms=1)
    tamper(
        live,
        0,
        {row_key("k3"): CODEC.encode(wrong), row_key("k4"): CODEC.encode(wrong)},
        Position((49,), 1_490, 1),
    )
    verdict = verify(*live, replace(LOCAL, memory_bytes=memory_bytes))
    assert spilled == [memory_bytes == 1], (
        "the live rows lie in a file where there are more than may be in memory"
    )
    assert not verdict.equal
    assert [each.equal for each in verdict.partitions] == [False, True]
    kind, key, shown, replayed, changed_at = difference(verdict, 0)
    assert (kind, key, changed_at) == ("row", "k3", 48), (
        "the first in key order; offset 48 is the last of k3 up to 49"
    )
    assert json.loads(str(shown)) == {"total": 999, "seen_ms": 1, "fired": 0, "tags": []}
    assert json.loads(str(replayed))["total"] == sum(at % 97 for at in range(50) if at % 5 == 3)
    assert "row 'k3' differs: live {\"total\":999" in verdict.partitions[0].explain()
    assert "last changed at source offset 48" in verdict.partitions[0].explain()


def test_a_missing_row_a_foreign_row_and_a_timer_are_found(make_live: MakeLive) -> None:
    live = make_live({0: 49, 1: 39})
    tamper(live, 0, {row_key("k0"): None}, Position((49,), 1_490, 1))
    tamper(live, 1, {row_key("ghost"): CODEC.encode(Account(1))}, Position((39,), 1_390, 1))
    verdict = verify(*live, LOCAL)
    kind, key, shown, replayed, changed_at = difference(verdict, 0)
    assert (kind, key, shown, replayed is not None, changed_at) == ("row", "k0", None, True, 45)
    assert difference(verdict, 1)[:4] == ("row", "ghost", '{"total":1,"seen_ms":0,"fired":0,"tags":[]}', None)
    tamper(live, 1, {wake_key("k1"): encode_due(77), row_key("ghost"): None}, Position((39,), 1_390, 1))
    kind, key, shown, replayed, changed_at = difference(verify(*live, LOCAL), 1)
    assert (kind, key, shown, changed_at) == ("timer", "k1", "77", None)
    assert replayed == str(1_000 + 10 * 37 + 5_000)


def test_a_marker_at_an_offset_that_holds_no_record_is_reported(make_live: MakeLive) -> None:
    live = make_live({0: 10, 1: 10})
    tamper(live, 0, {}, Position((10,), 5, 1))
    assert "live stream time is 5, replayed 1100" in verify(*live, LOCAL).partitions[0].explain()
    tamper(live, 0, {}, Position((99,), 5, 1))
    with pytest.raises(PipelineError, match="ends at offset 60, so it cannot be replayed up to and with 99"):
        verify(*live, LOCAL)


def test_a_changelog_of_another_version_or_writer_is_refused(
    make_live: MakeLive, broker: SessionBroker
) -> None:
    live = make_live({0: 10, 1: 10})
    tamper(live, 1, {}, Position((10,), 1_100, 2))
    with pytest.raises(ChangelogError, match="holds version 2 of accounts, the code is version 1"):
        verify(*live, LOCAL)
    tamper(live, 1, {}, Position((10,), 1_100, 1))
    producer = Producer(broker.client_config())
    producer.produce(live[0].changelog(live[1].app), b"x", b"stray", 0)
    producer.flush(DEADLINE_S)
    with pytest.raises(ChangelogError, match="ends with 1 records that no marker closes"):
        verify(*live, LOCAL)


@pytest.mark.variant
def test_spark_and_the_lake_give_the_same_verdict(
    spark: SparkSession, make_live: MakeLive, lake: Path
) -> None:
    processor, settings = live = make_live({0: 49, 1: 39})
    tamper(live, 0, {row_key("k3"): None}, Position((49,), 1_490, 1))
    want = verify(processor, settings, LOCAL)
    assert not want.equal
    got = verify(processor, settings, ReplayOptions(engine="spark"))
    assert (got.partitions, got.engine) == (want.partitions, "spark")
    land(settings, processor.source, str(lake))
    assert (
        verify(processor, settings, ReplayOptions(engine="local", source="bronze", lake=str(lake))).partitions
        == want.partitions
    )


# -- from the command line


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def options(live: Live, tmp_path: Path) -> list[str]:
    """Return the global options that name the application, as a user's module would."""
    processor, settings = live
    module = tmp_path / f"app_{processor.source.replace('-', '_')}.py"
    module.write_text(
        f"from tests.pipeline.accounts import accounts\nprocessors = [accounts({processor.source!r})]\n"
    )
    kafka = [part for name, value in settings.kafka.items() for part in ("--set", f"kafka.{name}={value}")]
    return ["--set", f"app={settings.app}", *kafka, "-A", module.stem]


def test_the_exit_code_shows_whether_they_are_equal(
    make_live: MakeLive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = make_live({0: 49, 1: 39})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("verify", "accounts", "--engine", "local", *options(live, tmp_path)) == 0
    said = capsys.readouterr()
    assert "accounts: equal after 90 records on local" in said.err
    lost = encode_lost_heads({live[0].source: 5})
    tamper(live, 0, {LOST_HEADS: lost}, Position((49,), 1_490, 1))
    assert run("verify", "accounts", "--engine", "local", *options(live, tmp_path)) == 0
    said = capsys.readouterr()
    assert "accounts: equal but PARTIAL" in said.err
    assert f"partial: partition 0 began behind a hole: {live[0].source} before offset 5" in said.err
    assert run("verify", "accounts", "--engine", "local", "--strict", *options(live, tmp_path)) == 1
    capsys.readouterr()
    tamper(live, 0, {row_key("k3"): None}, Position((49,), 1_490, 1))
    assert run("verify", "accounts", "--engine", "local", "--output", "json", *options(live, tmp_path)) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["equal"] is False
    assert document["partitions"][0]["difference"]["key"] == "k3"
    assert document["partitions"][0]["difference"]["changed_at"] == 48


def test_replay_prints_digests_and_writes_tables(
    make_live: MakeLive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = make_live({})
    monkeypatch.syspath_prepend(str(tmp_path))
    application = options(live, tmp_path)
    out = tmp_path / "out"
    arguments = [
        "replay",
        "accounts",
        "--engine",
        "local",
        "--until",
        "0:9,1:5",
        "--out",
        str(out),
        "--format",
        "ndjson",
        "--transitions",
    ]
    assert run(*arguments, "--output", "json", *application) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["applied"], each["records"]) for each in document["partitions"]] == [(9, 10), (5, 6)]
    assert sorted(each.name for each in out.iterdir()) == [
        "refused",
        "rows",
        "summary",
        "timers",
        "transitions",
    ]
    assert run(*arguments, *application) == 2, "the folder exists"
    assert "exists already" in capsys.readouterr().err
    assert run("replay", "accounts", "--transitions", *application) == 2
    assert run("replay", "accounts", "--until", "yesterday", *application) == 2
    assert run("replay", "accounts", "--from", "bronze", *application) == 2
    assert "--lake" in capsys.readouterr().err
