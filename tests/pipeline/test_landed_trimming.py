"""Topics that are declared with retention "landed": a landing of the application deletes the records that the
lake and all tables have.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.agents.cluster import survey
from holdfast.cli.__main__ import main
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import LakeError
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.landed_trimming import LandedTopics
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.trimming import PartitionTrim
from holdfast.pipeline.verify.table import verify
from tests.support.patience import DEADLINE_S

ORDERS = 7
SHOP = """
from holdfast import Emit, Processor, Source, Stream, Text

news = Stream("news", Text(), retention="landed")

def fold(rows, event, at_ms):
    rows["all"] = (rows.get("all") or 0) + 1
    yield news.emit("all", event)

def keep(rows, event, at_ms):
    rows["all"] = event

def declared(version):
    orders = Source("orders", Text(), retention="landed")
    totals = Processor(name="totals", on={orders: fold}, row=int, emits=(news,), version=version)
    kept = Processor(name="kept", on={Source("notes", Text()): keep}, row=str)
    return [totals, kept]

processors = declared(1)
"""
LOCAL = ReplayOptions(engine="local")


class Shop:
    """The application, with orders, notes and news that one version of its table has made."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.module = f"shop_{uuid.uuid4().hex[:8]}"
        (folder / f"{self.module}.py").write_text(SHOP)
        self.declared: Callable[[int], list[Processor[Any, Any]]] = __import__(self.module).declared
        self.kafka, self.lake, self.processors = kafka, str(folder / "lake"), self.declared(1)
        self.settings = Settings(app=self.module, kafka=kafka.client_config(), data_dir=folder / "data")
        create_topics(self.settings, self.processors, partitions=1)
        self.write()
        for each in self.processors:
            self.begin(each)

    def write(self) -> None:
        producer = Producer(self.kafka.client_config())
        for _ in range(ORDERS):
            producer.produce("orders", b"an order", partition=0)
            producer.produce("notes", b"a note", partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def begin(self, processor: Processor[Any, Any], replay: ReplayOptions = LOCAL) -> None:
        bootstrap(processor, self.settings, BootstrapOptions(replay=replay, emits="send"))

    def land(self, *topics: str) -> None:
        for topic in topics:
            land(self.settings, topic, self.lake)

    def topics(self, *processors: Processor[Any, Any], **options: Any) -> LandedTopics:
        return LandedTopics(self.settings, list(processors) or self.processors, self.lake, **options)

    def begins(self, *topics: str) -> list[int]:
        found = Admin(self.settings).offsets([(topic, 0) for topic in topics])
        return [first for first, _ in found.values()]

    def run(self, *words: str) -> int:
        known = ("-A", self.module, "--set", f"app={self.module}", "--bootstrap", self.kafka.bootstrap)
        with pytest.raises(SystemExit) as ended:
            main([*known, "pipeline", "land", "--lake", self.lake, *words])
        return int(ended.value.code or 0)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with EmbeddedKafka(seed=29) as kafka:
        found = Shop(kafka, tmp_path)
        yield found
    sys.modules.pop(found.module)


@pytest.mark.long
def test_a_landing_deletes_landed_records_of_topics_declared_so(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shop.run("--topics", "orders,news,notes") == 0
    end = ORDERS + 1  # the transaction's marker comes after its records
    assert shop.begins("orders", "notes") == [ORDERS, 0]
    assert shop.begins("news") == [end], "nobody folds it here: what is landed may go"
    told = capsys.readouterr().err
    assert f"deleted from orders partition 0 what has landed: offsets 0 to {ORDERS - 1}" in told
    assert "deleted from notes" not in told
    shop.write()
    shop.land("orders")
    assert shop.begins("orders") == [ORDERS], "who lands without the application knows of no declaration"


@pytest.mark.long
def test_records_a_group_or_another_version_needs_are_kept_and_versions_begin_from_the_lake(
    shop: Shop,
) -> None:
    shop.land("orders")
    assert list(shop.topics(groups=["late"]).trim(["orders"])) == []
    assert shop.run("--processor", "totals", "--group", "late") == 0
    assert shop.begins("orders") == [0]
    (trimmed,) = shop.topics().trim(["orders", "notes"])
    assert (trimmed.topic, trimmed.before) == ("orders", ORDERS)
    assert survey(shop.settings, shop.processors).environment.landed == {"orders", "news"}, "workers know"
    second, kept = shop.declared(2)
    shop.write()
    shop.land("orders")
    create_topics(shop.settings, [second, kept], partitions=1)
    assert list(shop.topics(second, kept).trim(["orders"])) == [], "a version that is to begin needs all"
    shop.begin(second, replace(LOCAL, source="history", lake=shop.lake))
    assert list(shop.topics(second, kept).trim(["orders"])) == [], "version 1 has not folded these"
    Admin(shop.settings).delete([shop.processors[0].changelog(shop.settings.app)])
    assert [each.before for each in shop.topics(second, kept).trim(["orders"])] == [2 * ORDERS]
    verdict = verify(second, shop.settings, replace(LOCAL, source="history", lake=shop.lake))
    assert (verdict.equal, verdict.partial, verdict.records) == (True, (), 2 * ORDERS)


@pytest.mark.variant
@pytest.mark.long
def test_a_landing_that_follows_trims_again_and_again_and_logs_refusals(shop: Shop) -> None:
    said, came = [], threading.Condition()

    def told(line: str) -> None:
        with came:
            said.append(line)
            came.notify_all()

    def heard(what: str) -> bool:
        with came:
            return came.wait_for(lambda: any(what in line for line in said), DEADLINE_S)

    with shop.topics().trimmed(lambda: ["orders", "news"], told, every_s=0.01):
        assert heard("orders is not trimmed, and grows: ")
        shop.land("orders")
        assert heard(f"offsets 0 to {ORDERS - 1}"), "news, which has not landed, keeps no other topic"
        shop.land("news")
        assert heard("deleted from news")
    count = len(said)
    assert not any(each.name == "holdfast-trim" for each in threading.enumerate())
    assert len(said) == count


def test_a_store_that_fails_ends_no_trimming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trims = LandedTopics(Settings(app="shop", data_dir=tmp_path), [], str(tmp_path / "lake"))
    answers, told, went = iter([OSError("store is away"), ValueError("odd")]), list[str](), threading.Event()

    def trim(topics: Iterable[str]) -> list[PartitionTrim]:
        if (error := next(answers, None)) is not None:
            raise error
        went.set()
        return []

    monkeypatch.setattr(trims, "trim", trim)
    with trims.trimmed(lambda: ["orders"], told.append, every_s=0.001):
        assert went.wait(DEADLINE_S)
    assert told == [
        "orders is not trimmed, and grows: OSError('store is away')",
        "orders is not trimmed, and grows: ValueError('odd')",
    ]


@pytest.mark.long
def test_nothing_is_compared_where_nothing_may_go_and_all_is_before_anything_goes(shop: Shop) -> None:
    shop.land("orders")
    min(Path(shop.lake).rglob("*.parquet")).unlink()
    assert list(shop.topics(groups=["late"]).trim(["orders"])) == []
    with pytest.raises(LakeError, match=r"part-.* is gone"):
        list(shop.topics().trim(["orders"]))
    assert shop.begins("orders") == [0]
