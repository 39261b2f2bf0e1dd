"""`holdfast reset` of an application with agents of Faust's: what they have counted is not counted again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from holdfast import Emit, Source, Stream, Text
from holdfast.cli.__main__ import main
from holdfast.cli.topics.resetting import ApplicationReset
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import read_live, verify
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

ORDERS = 5
AGENT = """
mails = app.topic("orders")
sent = app.Table("sent", default=int)

@app.agent(mails)
async def send(stream):
    async for order in stream.group_by(lambda order: order, name="all"):
        sent[order] += 1
"""
PROCESSORS = """
from holdfast import Processor, create_app

totals = Processor(name="totals", source="orders", decode=bytes, fold=lambda *_: None, row=int)
app = create_app([totals])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the name of an empty module of a user's in the current folder."""
    name = f"shop_{ending()}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.long
@pytest.mark.parametrize(("declared", "stays"), [(PROCESSORS + AGENT, True), (PROCESSORS, False)])
def test_agents_continue_at_their_offsets_since_their_state_stays(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: str, stays: bool
) -> None:
    (tmp_path / f"{module}.py").write_text(declared)
    with EmbeddedKafka() as kafka:
        settings = Settings(app=module, kafka=kafka.client_config(), data_dir=tmp_path / "data")
        totals: Processor[Any, Any] = Processor(
            name="totals", source="orders", decode=bytes, fold=lambda *_: None, row=int
        )
        create_topics(settings, [totals], partitions=1)
        kafka.create_topic(base := f"{module}-totals.v1-base", partitions=1)
        producer = Producer(kafka.client_config())
        for _ in range(ORDERS):
            producer.produce("orders", b"{}")
        producer.flush(DEADLINE_S)
        committed = CommittedOffsets(settings, module, timeout_s=DEADLINE_S)
        committed.commit({("orders", 0): ORDERS})
        with pytest.raises(SystemExit) as ended:
            main(["-A", module, "--set", f"app={module}", "--bootstrap", kafka.bootstrap, "reset", "--yes"])
        assert ended.value.code == 0
        assert committed.committed([("orders", 0)]) == ({("orders", 0): ORDERS} if stays else {})
    told = capsys.readouterr()
    assert ("Faust's tables and repartition topics stay" in told.err) == stays
    assert ("delete  group" in told.out) != stays
    assert f"taken over from an earlier version or from Faust, go with {base}: " in told.err


@pytest.mark.long
def test_a_time_is_where_the_sources_are_folded_from(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{module}.py").write_text(PROCESSORS)
    totals: Processor[Any, Any] = Processor(
        name="totals", source="orders", decode=bytes, fold=lambda *_: None, row=int
    )
    with EmbeddedKafka() as kafka:
        settings = Settings(app=module, kafka=kafka.client_config(), data_dir=tmp_path / "data")
        kafka.create_topic("orders", partitions=3, config={"retention.ms": "-1"})
        create_topics(settings, [totals])
        producer = Producer(kafka.client_config())
        for partition, first_s in ((0, 1_000), (1, 1_003), (2, 900)):
            for second in range(ORDERS):
                producer.produce("orders", b"{}", partition=partition, timestamp=1_000 * (first_s + second))
        producer.flush(DEADLINE_S)

        def reset(*words: str) -> int:
            with pytest.raises(SystemExit) as ended:
                main(
                    ["-A", module, "--set", f"app={module}", "--bootstrap", kafka.bootstrap, "reset", *words]
                )
            return int(ended.value.code or 0)

        time = ("--to-datetime", "1970-01-01T00:16:43Z")
        assert reset(*time) == 0
        told = "totals.v1: orders/0 from offset 3, orders/2 from offset 5"
        assert f"place   table              {told}" in capsys.readouterr().out
        assert [each.base for each in read_live(totals, settings)] == [None] * 3, "a preview writes nothing"
        # the cut records are given again, and the second reset begins with deleting those it placed
        for _ in range(2):
            assert reset("--execute", *time) == 0
            assert [each.applied for each in read_live(totals, settings)] == [2, -1, 4]
        verdict = verify(totals, settings, ReplayOptions(engine="local"))
        assert (verdict.equal, verdict.partial) == (True, ())
        place = "0 rows and timers of no table, at the place of 1970-01-01T00:16:43+00:00 behind offset"
        assert verdict.bases == (f"partition 0 from base: {place} 2", f"partition 2 from base: {place} 4")
        assert replay(totals, settings, ReplayOptions(engine="local")).records == 2 + ORDERS
        assert reset("--yes") == 0
        assert [(each.applied, each.base) for each in read_live(totals, settings)] == [(-1, None)] * 3
        assert reset("--to-datetime", "yesterday") == 2
        assert "'yesterday' is not a valid time" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("retention", [None, "landed"])
def test_a_table_of_outputs_that_are_emptied_begins_after_them_and_lacks_nothing(
    tmp_path: Path, retention: str | None
) -> None:
    between = Stream("between", Text(), retention=retention)

    def send(rows: Any, event: str, at_ms: int) -> Iterator[Emit]:
        yield between.emit("all", event)

    def count(rows: Any, event: str, at_ms: int) -> None:
        rows["all"] = (rows.get("all") or 0) + 1

    first: Processor[Any, Any] = Processor(
        name="first", source="orders", decode=bytes.decode, fold=send, row=int, emits=(between,)
    )
    one: Processor[Any, Any] = Processor(name="one", source=between, decode=bytes.decode, fold=count, row=int)
    more: Processor[Any, Any] = Processor(
        name="more", on={Source("orders", Text()): count, Source(between, Text()): count}, row=int
    )
    chain, local = [first, one, more], ReplayOptions(engine="local")
    with EmbeddedKafka() as kafka:
        settings = Settings(app="shop", kafka=kafka.client_config(), data_dir=tmp_path / "data")
        create_topics(settings, chain, partitions=1)
        producer = Producer(kafka.client_config())
        for _ in range(ORDERS):
            producer.produce("orders", b"{}")
        producer.flush(DEADLINE_S)

        def fold() -> None:
            for each in (first, one):
                bootstrap(each, settings, BootstrapOptions(replay=local, emits="send"))

        fold()
        end = Admin(settings).offsets([("between", 0)])["between", 0][1]
        for _ in range(2):  # given again, it leaves them where they are
            reset = ApplicationReset(settings, chain, empty_outputs=True)
            reset.check()
            for step in reset.steps():
                step.do()
        assert [each.applied for each in read_live(one, settings)] == [end - 1]
        assert [each.marker.applied for each in read_live(more, settings)] == [(-1, end - 1)]
        fold()
        for each in chain:
            verdict = verify(each, settings, local)
            assert (verdict.equal, verdict.partial) == (True, ()), each.name
        assert replay(one, settings, local).records == ORDERS
        assert verify(one, settings, local).bases == (
            (
                "partition 0 from base: 0 rows and timers of no table, for a reset has emptied between"
                f" behind offset {end - 1}"
            ),
        )


GOES_ON = """
from holdfast import Processor, create_app

def fold(rows, event, at_ms):
    pass

totals = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=int, version=2, {how})
app = create_app([totals])
"""


@pytest.mark.parametrize(
    ("how", "cure"),
    [
        ('emits=("out",), emits_from="handover"', 'totals: write emits_from="beginning"'),
        ("migrate={1: lambda rows, key, row: None}", "totals: leave out migrate="),
    ],
)
def test_a_version_that_continues_an_earlier_one_is_not_reset_since_it_could_not_begin(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, cure: str
) -> None:
    (tmp_path / f"{module}.py").write_text(GOES_ON.format(how=how))
    with EmbeddedKafka() as kafka:
        for topic in ("orders", "out", f"{module}-totals.v1-changelog"):
            kafka.create_topic(topic, partitions=1, config={"retention.ms": "-1"})
        with pytest.raises(SystemExit) as ended:
            main(["-A", module, "--set", f"app={module}", "--bootstrap", kafka.bootstrap, "reset"])
        assert ended.value.code == 2
    told = capsys.readouterr().err
    assert (
        "a reset takes away all earlier versions, and a version that goes on from one could not begin" in told
    )
    assert cure in told


def test_a_bootstrap_that_is_frozen_while_its_application_is_reset_writes_nothing_when_it_thaws(
    tmp_path: Path,
) -> None:
    with EmbeddedKafka() as kafka:
        settings = Settings(app="thawed", kafka=kafka.client_config(), data_dir=tmp_path / "data")
        emitting: Processor[Any, Any] = Processor(
            name="totals",
            source="orders",
            decode=bytes,
            fold=lambda *_: None,
            row=int,
            version=2,
            emits=("out",),
        )
        create_topics(settings, [emitting], partitions=1)
        builder = {"transactional.id": emitting.builder_id(settings.app, 0)}
        frozen = Producer(kafka.client_config(**builder))
        frozen.init_transactions(DEADLINE_S)
        frozen.begin_transaction()
        frozen.produce("orders", b"{}")  # it stays: as would a changelog that is made again
        frozen.flush(DEADLINE_S)
        reset = ApplicationReset(settings, [emitting], empty_outputs=True)
        for step in reset.steps():
            step.do()
        with pytest.raises(KafkaException) as refused:
            frozen.commit_transaction(DEADLINE_S)
        assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
