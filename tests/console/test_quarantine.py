"""The quarantine's pages read the end of a long topic, and say what they left out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from html import unescape

import pytest
from confluent_kafka import Producer

from holdfast.clients.quarantine.records import RETRIED_TO, Quarantine
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console.showing import depths
from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from tests.agents.web.test_server import scenario
from tests.console.opened import console_settings, opened
from tests.support.patience import DEADLINE_S

LONG, SHORT = 10, 2
"""The number of records in the two partitions of the quarantine."""


@pytest.fixture
def settings(embedded_kafka: EmbeddedKafka) -> Iterator[Settings]:
    """Give the settings of an application with refused records: orders/0/0 to 9 in one partition of its
    quarantine, orders/1/0 and 1 in the other.
    """
    broker = SessionBroker(config={"bootstrap.servers": embedded_kafka.bootstrap})
    found = console_settings(
        app=f"shop-{uuid.uuid4().hex[:6]}", kafka={"bootstrap.servers": broker.bootstrap}
    )
    topic = broker.create_topic(found.quarantine_topic, partitions=2, exact=True)
    producer = Producer(broker.client_config())
    for partition, count in ((0, LONG), (1, SHORT)):
        for offset in range(count):
            producer.produce(
                topic,
                b"<img>",
                f"orders/{partition}/{offset}/p".encode(),
                partition=partition,
                headers=list(notes(partition, offset).items()),
            )
    assert producer.flush(DEADLINE_S) == 0
    yield found
    broker.delete_topics([topic])


def notes(partition: int, offset: int) -> dict[str, str | bytes | None]:
    said = {
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "processor": "p",
        "stage": "fold",
        "error": "E",
        "reason": "<script>alert(1)</script>",
        "at-ms": 1,
    }
    return {f"holdfast-{name}": str(value).encode() for name, value in said.items()}


def places(quarantine: Quarantine) -> set[str]:
    return {each.place for each in quarantine.records(lambda each: True)}


@pytest.mark.parametrize(
    ("tail", "firsts", "left_out"), [(6, (6, 0), 6), (3, (8, 1), 9), (11, (1, 0), 1), (50, (0, 0), 0)]
)
def test_a_tail_is_shared_by_the_partitions_as_far_as_each_has_records(
    settings: Settings, tail: int, firsts: tuple[int, int], left_out: int
) -> None:
    quarantine = Quarantine(settings, timeout_s=DEADLINE_S, tail=tail)
    wanted = {
        f"orders/{at}/{offset}"
        for at, (first, end) in enumerate(zip(firsts, (LONG, SHORT), strict=True))
        for offset in range(first, end)
    }
    assert (places(quarantine), quarantine.left_out) == (wanted, left_out)


def test_a_record_of_the_tail_has_its_note(settings: Settings) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    producer.produce(
        settings.quarantine_topic, None, b"orders/0/9/p", 0, headers=[(RETRIED_TO, b"orders/0/11")]
    )
    assert producer.flush(DEADLINE_S) == 0
    found = Quarantine(settings, timeout_s=DEADLINE_S, tail=4).records(lambda each: each.partition == 0)
    assert [(each.offset, each.retried_to) for each in found] == [(9, "orders/0/11")]


@scenario
async def shown(settings: Settings) -> None:
    async with opened(settings, FixedDirectory()) as browsing:
        _, text = await browsing.get("/quarantine")
        assert "The 6 newest offsets of the quarantine were read; 6 before them were not." in text
        assert ("orders/0/6<" in text, "orders/0/5<" in text, "orders/1/0<" in text) == (True, False, True)
        assert "<script>alert" not in text
        old = "/quarantine/view?name=orders/0/0/p"
        status, text = await browsing.get(old)
        assert (status, "No orders/0/0/p is among what was read" in text) == (200, True)
        link = unescape(text.partition('">Read further back')[0].rpartition('href="')[2])
        status, text = await browsing.get(link)
        assert ("8 newest" in text, "before them were not" in text) == (True, True)
        status, text = await browsing.get(f"{old}&depth=100")
        assert (status, "p refused orders/0/0" in text, "before them" in text) == (200, True, False)
        assert (await browsing.get("/quarantine/view?name=nothing/0/0&depth=100"))[0] == 404
        assert (await browsing.get("/quarantine?depth=all"))[0] == 400
        _, text = await browsing.get("/quarantine?processor=another")
        assert "No such record waits among these." in text


@pytest.mark.long
def test_pages_name_the_unread_part_and_lead_further_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depths, "DEPTHS", (6, 8, 100))
    shown(settings)
