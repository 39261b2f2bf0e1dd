"""`holdfast tables take-over` begins a table with a Faust table's rows and its group's position, or says why
it does not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast.cli.tables.taking import FaustTakeover, OldTable
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import ChangelogError, ConfigError, HoldfastError, TopicError
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import read_live, verify
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

PARTITIONS = 2


class Total(msgspec.Struct, frozen=True):
    cents: int


def total(key: str, value: dict[str, int]) -> tuple[str, Total] | None:
    return (key, Total(value["cents"])) if value["cents"] else None


class OldShop:
    """The topics that a Faust application leaves: orders, a group's offsets in them, and a table's
    changelog.
    """

    def __init__(self, broker: SessionBroker) -> None:
        self.name = f"old-{ending()}"
        self.settings = Settings(
            app=self.name, kafka={key: str(value) for key, value in broker.config.items()}
        )
        self.source, self.changelog = f"{self.name}-orders", f"{self.name}-totals-changelog"
        for topic in (self.source, self.changelog):
            broker.create_topic(topic, partitions=PARTITIONS, exact=True)
        self._producer = Producer(broker.client_config())
        self._broker = broker

    def processor(self, **changed: Any) -> Processor[Any, Any]:
        """Return the processor that is to have the table, its topics made."""
        declared: dict[str, Any] = {"name": "totals", "row": Total, "decode": bytes, "fold": lambda *_: None}
        made = Processor(**{"source": self.source, **declared, **changed})
        create_topics(self.settings, [made], partitions=PARTITIONS)
        return made

    def orders(self, count: int, committed: int) -> None:
        """Write *count* orders to each partition, of which the group has read *committed*."""
        for number in range(PARTITIONS):
            for _ in range(count):
                self._producer.produce(self.source, b"{}", partition=number)
        self._producer.flush(DEADLINE_S)
        self.commit({(self.source, number): committed for number in range(PARTITIONS)})

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        CommittedOffsets(self.settings, self.name, timeout_s=DEADLINE_S).commit(offsets)

    def table(self, rows: Mapping[str, int], *, model: str = "shop.Total") -> None:
        """Write the old table as Faust does; a key lies where its length says."""
        for key, cents in rows.items():
            for each in (-1, cents):  # the last counts
                value = json.dumps({"cents": each, "__faust": {"ns": model}}).encode()
                self._producer.produce(self.changelog, value, json.dumps(key).encode(), len(key) % PARTITIONS)
        self._producer.produce(self.changelog, json.dumps({"cents": 1}).encode(), b'"gone"', 0)
        self._producer.produce(self.changelog, None, b'"gone"', 0)
        self._producer.flush(DEADLINE_S)

    def repartitioned(self, left: int) -> str:
        """Write *left* records to a topic of a group_by that the group has not read."""
        topic = f"{self.name}-orders-Order.customer-repartition"
        self._broker.create_topic(topic, partitions=1, exact=True)
        for _ in range(left + 1):
            self._producer.produce(topic, b"{}", partition=0)
        self._producer.flush(DEADLINE_S)
        self.commit({(topic, 0): 1})
        return topic

    def takeover(self, processor: Processor[Any, Any], rows: Any = total) -> FaustTakeover:
        return FaustTakeover(
            processor, self.settings, group=self.name, table=OldTable(name="totals", rows=rows)
        )


@pytest.fixture
def shop(broker: SessionBroker) -> OldShop:
    return OldShop(broker)


def take(takeover: FaustTakeover) -> None:
    for each in takeover.plan():
        if not each.done:
            asyncio.run(takeover.write(each))


def test_rows_and_position_are_what_the_table_begins_with(shop: OldShop) -> None:
    shop.orders(5, committed=3)
    shop.table({"ada": 12, "dora": 7, "nobody": 0})
    processor = shop.processor()
    takeover = shop.takeover(processor)
    asyncio.run(takeover.write(takeover.plan()[0]))
    take(takeover)  # continues where it was ended
    assert [each.done for each in takeover.plan()] == [True, True]
    live = read_live(processor, shop.settings)
    assert [each.applied for each in live] == [2, 2]
    assert all(each.marker.stream_ms > 0 for each in live)
    assert [sorted(each.stored) for each in live] == [[b"\x02dora"], [b"\x02ada"]]


def test_rows_lie_where_route_says(shop: OldShop) -> None:
    shop.orders(1, committed=1)
    shop.table({"ada": 12, "dora": 7})
    processor = shop.processor(route=lambda key, count: of_key(key.encode(), count))
    take(shop.takeover(processor))
    for each in read_live(processor, shop.settings):
        assert all(of_key(key[1:], PARTITIONS) == each.partition for key in each.stored)


def test_a_position_alone_is_taken_over_too(shop: OldShop) -> None:
    shop.orders(4, committed=2)
    processor = shop.processor()
    takeover = FaustTakeover(processor, shop.settings, group=shop.name, table=None)
    take(takeover)
    assert [(each.applied, dict(each.stored)) for each in read_live(processor, shop.settings)] == [
        (1, {}),
        (1, {}),
    ]


def test_replays_begin_with_the_rows_taken_over_and_verify_says_so(shop: OldShop) -> None:
    shop.orders(5, committed=3)
    shop.table({"ada": 12, "dora": 7})
    processor = shop.processor()
    take(shop.takeover(processor))
    local = ReplayOptions(engine="local")
    verdict = verify(processor, shop.settings, local)
    assert (verdict.equal, verdict.partial, verdict.records) == (True, (), 0)
    of = f"table totals of Faust application {shop.name} behind offset 2"
    assert verdict.bases == tuple(
        f"partition {at} from base: 1 rows and timers of {of}" for at in range(PARTITIONS)
    )
    assert replay(processor, shop.settings, local).records == 2 * PARTITIONS, "what came after"
    with pytest.raises(ConfigError, match="--from bronze reads the lake alone: leave out --from"):
        verify(processor, shop.settings, replace(local, source="bronze", lake="/nowhere"))
    Admin(shop.settings).delete([processor.base(shop.settings.app)])
    with pytest.raises(
        TopicError, match=f"the changelog tells of 1 rows and timers of {of}, the topic of nothing"
    ):
        verify(processor, shop.settings, local)


def refused(shop: OldShop, takeover: FaustTakeover, kind: type[HoldfastError], why: str) -> None:
    with pytest.raises(kind, match=why) as error:
        takeover.plan()
    assert "\n" not in str(error.value)


def test_what_would_be_wrong_is_refused(shop: OldShop) -> None:
    processor = shop.processor()
    refused(shop, shop.takeover(processor), ConfigError, r"no committed offsets: .* --from-app shop-v2")
    shop.orders(2, committed=2)
    shop.table({"ada": 12, "dora": 7})
    topic = shop.repartitioned(3)
    refused(shop, shop.takeover(processor), ConfigError, f"3 records of {topic} are not in .*: run it until")
    shop.commit({(topic, 0): 4})
    refused(
        shop,
        shop.takeover(processor, lambda key, value: value["no"]),
        ChangelogError,
        "no row was made of key .*KeyError",
    )
    refused(
        shop,
        shop.takeover(processor, lambda key, value: (key, "text")),
        ConfigError,
        "key '.*': 'text' is no .*Total",
    )
    far = shop.takeover(processor, lambda key, value: (key, Total(1 << 70)))
    refused(shop, far, ConfigError, "key '.*': Total.* is no .*Total.*serialize ints")
    for made in (("key", Total(1), 1), "ab", Total(1)):
        odd = shop.takeover(processor, lambda key, value, made=made: made)
        refused(shop, odd, ConfigError, "partition 0: of key .* was made .*: return a pair")
    astray = shop.processor(name="astray", route=lambda key, count: count)
    refused(
        shop,
        shop.takeover(astray, lambda key, value: (key, Total(1))),
        ConfigError,
        "by route=, which says 2",
    )
    alike = shop.processor(name="alike", route=lambda key, count: 0)
    refused(
        shop,
        shop.takeover(alike, lambda key, value: ("one", Total(1))),
        ConfigError,
        "'one' .* is made of two keys",
    )
    take(shop.takeover(processor))
    shop.table({"eve": 1})
    refused(
        shop, shop.takeover(processor), ConfigError, "has a state already, .*: raise the processor's version"
    )


def test_a_table_with_event_time_is_refused(shop: OldShop) -> None:
    timed: Processor[Any, Any] = Processor(
        name="timed",
        source=shop.source,
        decode=bytes,
        fold=lambda *_: None,
        row=int,
        time=lambda _: 0,
        on_event=lambda *_: None,
    )
    with pytest.raises(ConfigError, match="processor timed has event time, which Faust"):
        shop.takeover(timed)
