"""An application's notes of a topic's offsets are for that topic alone, not for one that is made again under
its name: skips, records that operators allow, and refused records.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from holdfast.agents.partitions.upkeep.skipping import Skipping
from holdfast.clients.quarantine.copies import quarantine_record, topic_id_of
from holdfast.clients.quarantine.records import Quarantine
from holdfast.clients.quarantine.skips import AllowancePlan, SkipPlan, SkipRequests
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import ClusterIds
from holdfast.config import Settings
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.fold.skips import Skip, encode_skip
from holdfast.core.engine.state.source_ids import SOURCE_IDS_FORMAT, SourceIds
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import QuarantineError
from holdfast.kafka.fetching.records import FetchedRecord
from holdfast.kafka.reading.skip_log import read_skips
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

FOUND = Unreadable("orders", 0, 3, 5, "unpacks to more", "TooLargeError", "zstd", 99, -1, 17, 3, 1_000)


class Shop:
    """An application on an embedded broker, with the topic `orders`."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.kafka = kafka
        self.settings = Settings(app=f"shop-{ending()}", kafka={"bootstrap.servers": kafka.bootstrap})
        self.requests = SkipRequests(self.settings, ["orders"], timeout_s=DEADLINE_S)
        kafka.create_topic(self.settings.skips_topic, config={"cleanup.policy": "compact"})
        kafka.create_topic(self.settings.quarantine_topic)
        kafka.create_topic("orders")

    @property
    def ids(self) -> ClusterIds:
        return Admin(self.settings).topic_ids(["orders"])

    def delete(self) -> None:
        admin = AdminClient(self.kafka.client_config())
        admin.delete_topics(["orders"])["orders"].result(DEADLINE_S)

    def make_again(self) -> None:
        self.delete()
        self.kafka.create_topic("orders")

    def send(self, topic: str, *sent: dict[str, Any]) -> None:
        producer = Producer(self.kafka.client_config())
        for each in sent:
            producer.produce(topic, partition=0, **each)
        assert producer.flush(DEADLINE_S) == 0

    def note(self, *skips: Skip) -> None:
        self.send(
            self.settings.skips_topic, *({"value": encode_skip(each), "key": each.key} for each in skips)
        )

    def made(self, first: int, last: int, **named: Any) -> Skip:
        return Skip(topic="orders", partition=0, first=first, last=last, made=True, **named)

    def values(self) -> list[bytes | None]:
        consumer = Consumer(self.kafka.client_config() | {"group.id": "reader", "enable.partition.eof": True})
        consumer.assign([TopicPartition("orders", 0, 0)])
        found = []
        while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
            found.append(message.value())
        consumer.close()
        return found

    def refuse(self, offset: int, value: bytes, at_ms: int, *, copy_bytes: int = 1_000) -> None:
        """Set a record of `orders` aside as a worker does."""
        ids, refused = self.ids, Refused(offset=offset, stage="decode", error="DecodeError", reason="unfit")
        record = FetchedRecord(value, b"key", (), at_ms)
        named = topic_id_of(ids.cluster_id, ids.topics["orders"])
        emit = quarantine_record(
            self.settings.quarantine_topic, "totals", ("orders", 0), refused, record, copy_bytes, named
        )
        self.send(emit.topic, {"value": emit.value, "key": emit.key, "headers": list(emit.headers)})


@pytest.fixture
def shop() -> Iterator[Shop]:
    with EmbeddedKafka() as kafka:
        yield Shop(kafka)


def test_skips_of_a_topic_that_was_made_again_leave_nothing_out(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    old = shop.ids
    named = {"topic_id": old.topics["orders"], "cluster_id": old.cluster_id}
    shop.note(
        shop.made(10, 14, **named),
        shop.made(20, 24, **{**named, "cluster_id": "the one it was copied from"}),
        shop.made(30, 34),
        replace(shop.made(40, 44, **named), made=False),
        replace(shop.made(50, 50, **named), made=False, allowed=True),
    )
    found = read_skips(shop.settings)
    assert found.of_topic("orders") == {0: ((10, 14), (20, 24), (30, 34))}
    assert (found.asked("orders", 0, 40, 44) is not None, found.of_others) == (True, ())
    shop.make_again()
    with caplog.at_level(logging.WARNING, "holdfast"):
        for _ in range(3):
            found = read_skips(shop.settings)
    assert found.of_topic("orders") == {0: ((20, 24), (30, 34))}, (
        "of another cluster, and of an older release"
    )
    assert (found.asked("orders", 0, 40, 44), found.allows("orders", 0, 50)) == (None, False)
    assert [each.first for each in found.of_others] == [10, 40, 50]
    (warning,) = (each.getMessage() for each in caplog.records if "made again" in each.getMessage())
    assert warning == (
        f"topic orders was deleted and made again (its id is {shop.ids.topics['orders']}): 3 skips in"
        f" {shop.settings.skips_topic} are of the old one and leave out nothing"
    )


def test_skips_of_a_topic_that_is_not_there_wait_for_it(shop: Shop) -> None:
    old = shop.ids
    shop.note(shop.made(10, 14, topic_id=old.topics["orders"], cluster_id=old.cluster_id))
    shop.delete()
    assert read_skips(shop.settings).of_others == ()


def test_what_operators_ask_for_and_allow_names_the_topic(shop: Shop) -> None:
    ids = shop.requests._ids("orders")
    assert ids == shop.ids
    shop.requests.ask(SkipPlan(FOUND, 0, None, ids), by="ada")
    shop.requests.allow(AllowancePlan("orders", 0, 9, ("totals",), False, ids), by="ada")
    assert len(shop.requests.skips().all()) == 2
    shop.make_again()
    found = shop.requests.skips()
    assert (len(found.of_others), found.all()) == (2, [])


def test_a_worker_skips_nothing_of_a_topic_that_it_did_not_begin_to_read(shop: Shop) -> None:
    async def thread(call: Any, *given: Any) -> Any:
        return call(*given)

    settings = Settings(app=shop.settings.app, kafka=shop.settings.kafka, unreadable="quarantine")
    sources = SourceIds(SOURCE_IDS_FORMAT, shop.ids.cluster_id, dict(shop.ids.topics))
    processor = SimpleNamespace(table="totals", name="totals")
    part = SimpleNamespace(owner=SimpleNamespace(sources=sources), offsets={"orders": 2}, processor=processor)
    written: list[Any] = []

    class Runner:
        async def append(self, records: Any, what: str, epoch: int) -> None:
            written.append(records)

    feed = SimpleNamespace(unreadable={("orders", 0): FOUND}, skip=lambda place, last: None)
    skipping = Skipping(
        settings, thread, None,  # type: ignore[arg-type]
        gate=SimpleNamespace(epoch=1), feed=feed,  # type: ignore[arg-type]
        holdings=SimpleNamespace(owners=lambda place: [SimpleNamespace(part=part, runner=Runner())]),  # type: ignore[arg-type]
        metrics=SimpleNamespace(skipped={("orders", 0): 0}),  # type: ignore[arg-type]
    )  # fmt: skip
    shop.make_again()
    asyncio.run(skipping._consider(("orders", 0), FOUND))
    assert written == []
    assert "was deleted and made again" in skipping.why["orders", 0]
    part.owner.sources = None  # as before the ids were known
    asyncio.run(skipping._consider(("orders", 0), FOUND))
    (records,) = written
    assert f'"topic_id":"{shop.ids.topics["orders"]}"'.encode() in (records[0].value or b"")


def test_an_id_is_read_as_it_was_written_whatever_letters_it_has(shop: Shop) -> None:
    shop.refuse(0, b"old", 1_000)
    (record,) = Quarantine(shop.settings, timeout_s=DEADLINE_S).records(lambda each: True)
    for slashes in ("ab/cd", "/", "a/"):
        of_another = dataclasses.replace(record, topic_id=topic_id_of("c/d", slashes))
        assert of_another.is_of_another(ClusterIds("c/d", {"orders": "other"}))
        assert not of_another.is_of_another(ClusterIds("c/d", {"orders": slashes}))
        assert not of_another.is_of_another(ClusterIds("c", {"orders": "other"}))


def test_a_refused_record_is_not_sent_to_a_topic_that_was_made_again_unless_asked_for(shop: Shop) -> None:
    quarantine = Quarantine(shop.settings, timeout_s=DEADLINE_S)
    shop.refuse(0, b"old", 1_000)
    (old,) = quarantine.records(lambda each: True)
    ((_, copy),) = quarantine.retry([old])
    assert copy == "orders/0/0"
    shop.make_again()
    shop.refuse(0, b"new", 2_000)
    (new,) = quarantine.records(lambda each: True)
    assert new.retried_to is None, "the note is of the record that was there before"
    assert [set(quarantine.of_others([each])) for each in (old, new)] == [{old.coordinates}, set()]
    with pytest.raises(QuarantineError, match="deleted and made again"):
        next(quarantine.retry([old]))
    assert shop.values() == []
    assert len(list(quarantine.retry([new]))) == 1
    assert shop.values() == [b"new"], "and not the older one of these coordinates"
    assert len(list(quarantine.retry([old], made_again=True))) == 1
    assert shop.values() == [b"new", b"old"]


@pytest.mark.parametrize(
    "other", [{"value": b"o" * 5_000, "timestamp": 8_888}, {"value": b"tiny", "timestamp": 7_777}]
)
def test_a_record_too_large_to_be_kept_is_not_taken_from_another_topic(
    shop: Shop, other: dict[str, Any]
) -> None:
    """An earlier release notes no id; time and size decide."""
    quarantine = Quarantine(shop.settings, timeout_s=DEADLINE_S)
    shop.send("orders", {"value": b"x" * 5_000, "key": b"key", "timestamp": 7_777})
    shop.refuse(0, b"x" * 5_000, 7_777)
    (record,) = quarantine.records(lambda each: True)
    assert quarantine.original(record).value == b"x" * 5_000
    shop.make_again()
    shop.send("orders", {"key": b"key", **other})
    with pytest.raises(QuarantineError, match="another record at offset 0"):
        quarantine.original(record)
