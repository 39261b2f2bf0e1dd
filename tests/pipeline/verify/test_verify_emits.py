"""Emitted topics compared with the emits of a replay: equal, or the first record that differs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package does not declare what it re-exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from holdfast.cli.__main__ import main
from holdfast.clients.topics.chain_state import last_positions
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import decode_position
from holdfast.core.engine.state.handover import HANDOVER, HANDOVER_FORMAT, Handover, encode_handover
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, ConfigError, LostRecordsError, TopicError
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import Span, TopicLog, TopicReader, is_compacted, settle
from holdfast.pipeline.verify import emits as verifying
from holdfast.pipeline.verify.emits import EmitDifference, EmitsVerdict, verify_emits
from holdfast.pipeline.verify.stored_emits import EmitContent, told_apart
from holdfast.pipeline.verify.table import verify
from holdfast.tables.changelog import ChangelogWriter
from tests.pipeline.accounts import Log, Record
from tests.pipeline.conftest import MakeTopic
from tests.support.harness import wait_for, wait_for_ends
from tests.support.joining_app import JoinApplication
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG: Log = {
    number: [Record(at, 1_000 + at, None, b"k%d-%d" % (number, at % 3)) for at in range(12)]
    for number in (0, 1)
}


ENGINES: tuple[Literal["local", "spark"], ...] = ("local", "spark")


class Live:
    """A table whose folds have emitted to `out`, in either version."""

    def __init__(self, settings: Settings, broker: SessionBroker, source: str, out: str) -> None:
        self.broker, self.source, self.out = broker, source, out
        self.settings = Settings(app=source, kafka=dict(settings.kafka))

    def processor(self, version: int = 1, **more: Any) -> Processor[Any, int]:
        out = self.out

        def fold(rows: Any, event: str, at_ms: int) -> Iterator[Emit]:
            count = rows.get(event) or 0
            rows[event] = count + 1
            yield Emit(out, event, b"v%d %d" % (version, count), (("at", b"%d" % at_ms),))
            yield Emit(out, "both", b"of %s" % event.encode())
            yield Emit(out, value=b"nobody's")

        declared: dict[str, Any] = {"source": self.source, "decode": bytes.decode, "fold": fold, "row": int}
        return Processor(name="told", version=version, emits=(self.out,), **{**declared, **more})

    def folded(
        self,
        version: int = 1,
        upto: int = 11,
        handover: Handover | None = None,
        drop: Callable[[Emit], bool] = lambda emit: False,
    ) -> Processor[Any, int]:
        """Fold both partitions up to an offset as a worker does, without the emits that are to be dropped."""
        processor = self.processor(version)
        self.broker.create_topic(
            processor.changelog(self.settings.app),
            partitions=2,
            config={"cleanup.policy": "compact"},
            exact=True,
        )
        for partition in (0, 1):
            asyncio.run(self._fold(processor, partition, upto, handover, drop))
        for topic in (processor.changelog(self.settings.app), self.out):
            wait_for_ends(self.settings, topic)
        return processor

    async def _fold(
        self,
        processor: Processor[Any, int],
        partition: int,
        upto: int,
        handover: Handover | None,
        drop: Callable[[Emit], bool],
    ) -> None:
        settings, store = self.settings, DictStore()
        folder = Folder(processor, store, handover=handover)
        make = producers(connector(settings, timeout_s=DEADLINE_S), transaction_timeout_s=DEADLINE_S)
        writer = ChangelogWriter(
            make(processor.transactional_id(settings.app, partition)),
            changelog=processor.changelog(settings.app),
            partition=partition,
        )
        try:
            await writer.fence(DEADLINE_S)
            with TopicReader(settings, processor.source) as reader:
                for batch, _ in reader.batches(partition, Span(first=0, end=upto + 1), processor.columns):
                    while (changes := folder.fold([batch])) is not None:
                        changes.emits = [each for each in changes.emits if not drop(each)]
                        notes = [] if handover is None else [(HANDOVER, encode_handover(handover))]
                        changes.puts += notes
                        await writer.write(changes, [], DEADLINE_S)
                        store.apply(changes.puts)
                        folder.commit()
        finally:
            await writer.close()

    def verify(self, processor: Processor[Any, int]) -> EmitsVerdict:
        return verify_emits(processor, self.settings)

    def difference(self, processor: Processor[Any, int]) -> EmitDifference:
        (topic,) = self.verify(processor).topics
        assert topic.difference is not None
        return topic.difference

    def cut(self, topic: str, before: int) -> None:
        """Delete the records of partition 0 before an offset."""
        admin = AdminClient(self.broker.client_config())
        for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
            future.result(DEADLINE_S)

    def write(self, key: bytes | None, value: bytes, partition: int = -1) -> None:
        producer = Producer(self.broker.client_config(partitioner="murmur2_random"))
        producer.produce(self.out, value, key, partition)
        assert producer.flush(DEADLINE_S) == 0


@pytest.fixture
def live(settings: Settings, broker: SessionBroker, make_topic: MakeTopic, fresh_topic: FreshTopic) -> Live:
    return Live(settings, broker, make_topic(LOG), fresh_topic("told", partitions=2))


def test_a_replay_emits_the_same_records(live: Live) -> None:
    verdict = live.verify(live.folded())
    assert verdict.equal, verdict
    (topic,) = verdict.topics
    assert (topic.expected, topic.found, topic.earlier, verdict.records) == (72, 72, 0, 24)


@pytest.mark.parametrize("memory_bytes", [256 << 20, 1])
def test_compared_emits_lie_in_a_file_where_they_exceed_the_memory(
    live: Live, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotedStore(SpillingStore):
        def close(self) -> None:
            spilled.append(self.has_spilled)
            super().close()

    def noted(*arguments: Any) -> Replayed:
        replayed = replay(*arguments)
        assert replayed.results is not None
        held.append(replayed.results.num_rows)
        return replayed

    spilled, held = list[bool](), list[int]()
    monkeypatch.setattr(verifying, "SpillingStore", NotedStore)
    monkeypatch.setattr(verifying, "replay", noted)
    processor, options = live.folded(), ReplayOptions(memory_bytes=memory_bytes)
    live.write(b"k0-1", b"forged")
    live.write(None, b"nobody's")
    (topic,) = verify_emits(processor, live.settings, options).topics
    assert (topic.expected, topic.found, topic.earlier) == (72, 74, 1)
    assert topic.difference is not None
    assert (topic.difference.key, topic.difference.found) in (("k0-1", "b'forged'"), (None, 'b"nobody\'s"'))
    assert spilled == [memory_bytes == 1]
    assert held == [0], "what a replay emits is taken as it comes"


def test_a_record_that_no_fold_emits_is_named(live: Live) -> None:
    processor = live.folded()
    live.write(b"k0-1", b"forged")
    found = live.difference(processor)
    assert (found.topic, found.key, found.expected, found.found) == (live.out, "k0-1", None, "b'forged'")
    assert found.offset is not None
    assert found.offset >= 0
    assert live.verify(processor).document()["topics"][0]["difference"]["found"] == "b'forged'"


def test_of_several_the_first_of_a_partition_is_named_also_where_it_is_at_its_beginning(live: Live) -> None:
    live.write(b"first", b"forged", 0)
    processor = live.folded()
    live.write(b"last", b"forged", 0)
    found = live.difference(processor)
    assert (found.partition, found.offset, found.key) == (0, 0, "first")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("k1-2", b"v1 2", "v1 2"),
        ("k1-2", b"v1 3", "v1 3"),
        ("both", b"of k0-0", "of k0-0"),
        (None, b"nobody's", "nobody's"),
    ],
)
def test_a_record_that_is_missing_is_named(live: Live, key: str | None, value: bytes, expected: str) -> None:
    dropped: list[Emit] = []

    def drop(emit: Emit) -> bool:
        if not dropped and (emit.key, emit.value) == (key, value):
            dropped.append(emit)
            return True
        return False

    found = live.difference(live.folded(drop=drop))
    assert found.key == key
    assert expected in str(found.expected)
    assert found.explain().startswith(f"{live.out} {'any ' if key is None else ''}partition")


def test_a_version_after_a_handover_is_compared_with_its_own_emits(live: Live) -> None:
    live.folded(1, upto=5)
    second = live.folded(2, handover=Handover(HANDOVER_FORMAT, (5,)))
    (topic,) = (verdict := live.verify(second)).topics
    assert verdict.equal, verdict
    assert (topic.expected, topic.found, topic.earlier) == (36, 72, 36)


def test_a_version_that_lost_its_handover_is_found_to_have_emitted_too_little(live: Live) -> None:
    live.folded(1, upto=5)
    second = live.folded(2, handover=Handover(HANDOVER_FORMAT, (5,)), drop=lambda emit: emit.key == "k0-1")
    found = live.difference(second)
    assert (found.key, "v2" in str(found.expected)) == ("k0-1", True)


def test_a_topic_that_has_lost_its_head_is_compared_as_far_as_it_goes(live: Live) -> None:
    processor = live.folded()
    live.cut(live.out, 4)
    verdict = live.verify(processor)
    assert (verdict.equal, verdict.cut) == (True, (live.out,))
    live.cut(live.source, 2)
    with pytest.raises(LostRecordsError, match="begins at offset 2, and the table was folded from 0 on"):
        live.verify(processor)


def test_of_a_topic_that_lost_the_head_of_one_partition_the_others_are_compared_whole(live: Live) -> None:
    keys = [f"k{number}-{at}" for number in LOG for at in range(3)]
    key = next(each for each in keys if of_key(each.encode(), 2) == 1)
    processor = live.folded(drop=lambda emit: emit.key == key and emit.value == b"v1 0")
    live.cut(live.out, 4)
    found = live.difference(processor)
    assert (found.partition, found.key, "v1 0" in str(found.expected)) == (1, key, True)


def test_emits_that_cannot_be_read_yet_are_waited_for(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers of a transaction are written to each partition in its own time: here a stranger's is open
    in the topic alone.
    """
    stranger = Producer(live.broker.client_config(**{"transactional.id": live.out}))
    stranger.init_transactions(DEADLINE_S)
    stranger.begin_transaction()
    for partition in (0, 1):
        stranger.produce(live.out, b"open", b"k", partition)
    assert stranger.flush(DEADLINE_S) == 0
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "wait_for_ends", lambda settings, topic: None)
        processor = live.folded()
    wait_for_ends(live.settings, processor.changelog(live.settings.app))
    with monkeypatch.context() as patch:
        patch.setattr(verifying, "_settle_s", lambda settings: 0.2)
        with pytest.raises(
            BrokerError, match=rf"topic {live.out}: a transaction is open for more than 0.2 s"
        ):
            live.verify(processor)
    stranger.abort_transaction(DEADLINE_S)
    settled = list[str]()

    def noted(settings: Settings, topic: str, timeout_s: float) -> None:
        settled.append(topic)
        settle(settings, topic, timeout_s)

    monkeypatch.setattr(verifying, "settle", noted)
    verdict = live.verify(processor)
    assert verdict.equal, verdict
    assert settled == [live.out, processor.changelog(live.settings.app)]
    assert [(each.expected, each.found) for each in verdict.topics] == [(72, 72)]


def test_of_a_topic_that_is_compacted_the_rest_of_each_key_is_compared(live: Live) -> None:
    processor = live.folded(drop=lambda emit: emit.key == "k0-1" and emit.value in (b"v1 0", b"v1 2"))
    assert live.difference(processor).expected == "b'v1 0', headers {'at': b'1001'}"
    admin = AdminClient(live.broker.client_config())
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, live.out, incremental_configs=[compact])
    for future in admin.incremental_alter_configs([asked]).values():
        future.result(DEADLINE_S)
    wait_for("it is compacted", lambda: is_compacted(live.settings, live.out), DEADLINE_S)
    verdict = live.verify(processor)
    assert (verdict.equal, verdict.compacted, verdict.cut) == (True, (live.out,), ()), verdict
    live.write(b"k0-1", b"v1 3")
    found = live.difference(processor)
    assert (found.key, found.found) == ("k0-1", "b'v1 3'"), "its headers are others"


def test_a_source_with_other_partitions_than_the_changelog_is_named(live: Live) -> None:
    processor = live.folded()
    admin = AdminClient(live.broker.client_config())
    for future in admin.create_partitions([NewPartitions(live.source, 3)]).values():
        future.result(DEADLINE_S)
    wait_for("partitions", lambda: partitions_of(live.settings, live.source) == 3, DEADLINE_S)
    with pytest.raises(TopicError, match=rf"has 2 partitions, the source {live.source} has 3: they must be"):
        live.verify(processor)


def partitions_of(settings: Settings, topic: str) -> int:
    with TopicLog(settings, topic) as log:
        return len(log.partitions())


def test_a_table_that_has_not_begun_emits_nothing(live: Live) -> None:
    processor = live.processor()
    with pytest.raises(TopicError, match=r"told.*changelog"):
        live.verify(processor)
    live.broker.create_topic(processor.changelog(live.settings.app), partitions=2, exact=True)
    verdict = live.verify(processor)
    assert (verdict.equal, [(each.expected, each.found) for each in verdict.topics]) == (True, [(0, 0)])
    live.write(b"k", b"forged")
    assert live.difference(processor).found == "b'forged'"


def test_emits_before_an_error_are_not_expected_and_tombstones_differ_from_empty_values(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = live.out

    def fold(rows: Any, event: str, at_ms: int) -> Iterator[Emit]:
        rows[event] = (rows.get(event) or 0) + 1
        yield Emit(out, event, None if rows[event] % 2 else b"", (("h", b"1"), ("h", None), ("h", b"1")))
        yield Emit(out, "both", b"same")
        yield Emit(out, None, None)
        if event.endswith("-2"):
            raise ValueError(event)

    monkeypatch.setattr(live, "processor", partial(live.processor, fold=fold))
    processor = live.folded()
    (topic,) = (verdict := live.verify(processor)).topics
    assert (verdict.equal, topic.expected, topic.found) == (True, 48, 48), verdict
    live.write(b"k0-0", b"")
    assert live.difference(processor).found == "b''"


def test_records_that_differ_after_the_part_shown_are_distinguished() -> None:
    one, other = (EmitContent(b"k", b"v" * 300 + each, (("h", b"1"), ("h", b"2"))) for each in (b"1", b"2"))
    told = told_apart(one, other)
    assert told[0] == told[1]
    assert told[0] is not None
    assert told[0].endswith("headers [('h', b'1'), ('h', b'2')] (301 bytes, they differ from 300)")
    assert told_apart(one, None) == (str(one), None)


def test_the_command_names_the_difference_and_exits_with_1(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "told_app", SimpleNamespace(processors=[live.folded()]))
    kafka = [
        part for name, value in live.settings.kafka.items() for part in ("--set", f"kafka.{name}={value}")
    ]

    def command(*more: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "--set",
                    f"app={live.settings.app}",
                    *kafka,
                    "-A",
                    "told_app",
                    "verify",
                    "told",
                    "--emits",
                    *more,
                ]
            )
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    code, out, said = command()
    assert (code, "what was emitted is what a replay emits, after 24 records" in said) == (0, True), said
    assert out.split()[:5] == ["TOPIC", "EXPECTED", "FOUND", "EARLIER", "EQUAL"]
    live.write(b"k0-1", b"forged")
    code, _, said = command()
    assert code == 1
    assert f"{live.out} partition " in said
    assert "key 'k0-1': expected none, found b'forged'" in said
    code, out, _ = command("--output", "json")
    assert (code, json.loads(out)["equal"]) == (1, False)
    code, _, said = command("--store")
    assert (code, "ask for one of them" in said) == (2, True)


@pytest.mark.variant
def test_spark_finds_the_same(spark: SparkSession, live: Live, handed_over: JoinApplication) -> None:
    assert_emits(handed_over, "spark")
    live.folded(1, upto=5)
    second = live.folded(2, handover=Handover(HANDOVER_FORMAT, (5,)))
    options = [ReplayOptions(engine=engine, memory_bytes=1) for engine in ENGINES]
    told = [verify_emits(second, live.settings, each) for each in options]
    assert [each.engine for each in told] == ["local", "spark"]
    assert told[0].topics == told[1].topics
    assert told[0].equal


@pytest.mark.variant
def test_of_several_sources_whose_versions_change_hands_a_replay_emits_the_same_records(
    handed_over: JoinApplication,
) -> None:
    app = handed_over
    assert_emits(app, "local")
    producer = Producer(app.broker.client_config())
    producer.produce(app.out, b"forged", b"k1")
    assert producer.flush(DEADLINE_S) == 0
    (topic,) = verify_emits(app.joined, app.settings).topics
    assert topic.difference is not None
    assert topic.difference.found == "b'forged'"


def assert_emits(app: JoinApplication, engine: Literal["local", "spark"]) -> None:
    verdict = verify_emits(app.joined, app.settings, ReplayOptions(engine=engine))
    assert (verdict.equal, verdict.engine) == (True, engine), verdict
    (topic,) = verdict.topics
    assert topic.earlier
    assert topic.expected == topic.found - topic.earlier > 0
    assert verify(app.joined, app.settings, ReplayOptions(engine=engine)).equal


@pytest.fixture(scope="module")
def handed_over(broker: SessionBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinApplication]:
    """Give a join of which version 2 has continued from version 1's position, in the middle of a guess that
    no record has shown to be wrong; it dies in the transaction that records that, and version 1 continues
    once more.
    """
    app = JoinApplication(broker, tmp_path_factory.mktemp("join"), partitions=1, instance_id="only")
    try:
        app.create_topics()
        old = app.worker("old").start(JOIN_LIE="1", JOIN_LATE_S="600")  # not while it runs
        for at in range(300):  # without timers, whose ticks would be choices
            app.send(app.joined.topics[at % 2], f"add k{at % 20} {at}")
        app.flush()
        wait_for("a guess", lambda: stood(app, 1)[1] > 50, DEADLINE_S, app.tails)
        old.kill()
        customers, orders = stood(app, 1)
        assert customers < orders, "what comes late of the customers should have come first"
        app.raise_version(2, handover=True)
        new = app.worker("new").start(CHAOS_FAULT="produced:1")
        assert new.wait_exit(DEADLINE_S) == -9
        old.start().wait_ready()
        app.write(100, seed=2)
        wait_for("it goes on", lambda: sum(stood(app, 1)) > 300, DEADLINE_S, app.tails)
        old.kill()
        place = tuple(count - 1 for count in stood(app, 1))
        new.start()
        app.write(100, seed=3)
        (outcome,) = app.prove().values()  # both together emit the same as one alone
        assert place in [choice.applied for choice in outcome.choices], "all come through there"
        new.stop()
        yield app
    finally:
        app.close()


def stood(app: JoinApplication, version: int) -> list[int]:
    """Return how many records of each source a version has folded."""
    place = f"{app.name}-joined.v{version}-changelog", 0
    value = last_positions(app.settings, [place])[place]
    return [0, 0] if value is None else [offset + 1 for offset in decode_position(value).applied]


def test_emits_that_cannot_be_compared_are_reported(live: Live) -> None:
    with pytest.raises(ConfigError, match="emits nothing"):
        live.verify(
            live.processor().__class__(
                name="n", source="s", decode=bytes, fold=lambda rows, event, at_ms: None, row=int
            )
        )
