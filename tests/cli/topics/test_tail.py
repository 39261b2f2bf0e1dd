"""`holdfast tail`: records as the application declares them, committed ones alone, to the end or further."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast import Avro, Emit, Json, Processor, Rows, Source, Stream, by_key
from holdfast.cli.options.application import Application
from holdfast.cli.output import json_text
from holdfast.cli.topics.tail import decoders, plain, record_of, records
from holdfast.config import SchemaRegistrySettings, Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import TopicError
from holdfast.schemas import registry
from holdfast.schemas.frames import header
from tests.support.patience import DEADLINE_S


class Order(msgspec.Struct, frozen=True):
    customer: str
    cents: int


big = Stream("big", Json(Order))


def fold(rows: Rows[int], order: Order, at_ms: int) -> Iterator[Emit]:
    rows[order.customer] = (rows.get(order.customer) or 0) + order.cents
    yield big.emit(order.customer, order)


totals: Processor[Order, int] = Processor(
    name="totals", on={Source("orders", Json(Order)): fold}, row=int, route=by_key, emits=(big,)
)


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as embedded:
        yield embedded


@pytest.fixture
def shop(kafka: EmbeddedKafka) -> Application:
    return Application(
        settings=Settings(app="shop", kafka={"bootstrap.servers": kafka.bootstrap}), processors=(totals,)
    )


def produce(
    shop: Application, topic: str, values: list[bytes | None], *, commit: bool = True, **more: Any
) -> None:
    producer = Producer(shop.settings.producer(**{"transactional.id": f"{topic}-{commit}"}))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"ada", 0, **more)
    producer.flush(DEADLINE_S)
    (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)


def shown(shop: Application, topic: str, **options: Any) -> list[dict[str, Any]]:
    key, value = decoders(shop, topic)
    return [
        record_of(each, key, value)
        for each in records(shop, topic, **{"back": None, "follow": False} | options)
    ]


def test_records_are_decoded_as_declared(shop: Application, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("big")
    produce(
        shop,
        "big",
        [b'{"customer": "ada", "cents": 3}'],
        headers=[("trace", b"1")],
        timestamp=1_700_000_000_123,
    )
    assert shown(shop, "big") == [
        {
            "topic": "big",
            "partition": 0,
            "offset": 0,
            "time": "2023-11-14T22:13:20.123Z",
            "headers": [["trace", "1"]],
            "key": "ada",
            "value": {"customer": "ada", "cents": 3},
        }
    ]


def test_what_cannot_be_decoded_is_shown_as_it_lies_with_the_reason(
    shop: Application, kafka: EmbeddedKafka
) -> None:
    kafka.create_topic("orders")
    produce(shop, "orders", [b'{"customer": 3}', b"\xff", None])
    assert [(each["value"], each["error"].partition(":")[0]) for each in shown(shop, "orders")] == [
        ({"customer": 3}, "value"),
        ("0xff", "value"),
        (None, "value"),
    ]


def test_aborted_records_are_left_out_and_do_not_hold_up_the_end(
    shop: Application, kafka: EmbeddedKafka
) -> None:
    kafka.create_topic("any")
    produce(shop, "any", [b"a", b"b"])
    produce(shop, "any", [b"c"], commit=False)
    assert [each["value"] for each in shown(shop, "any")] == ["a", "b"]
    assert [each["value"] for each in shown(shop, "any", back=4)] == ["b"]  # the abort, c, the commit, b
    assert shown(shop, "any", back=0) == []


def test_following_continues_with_new_records(shop: Application, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("live")
    produce(shop, "live", [b"first"])
    coming = records(shop, "live", back=None, follow=True)
    assert next(coming).value() == b"first"
    produce(shop, "live", [b"second"])
    assert next(coming).value() == b"second"
    coming.close()  # type: ignore[attr-defined]


def test_a_topic_that_does_not_exist_is_reported_with_its_neighbour(
    shop: Application, kafka: EmbeddedKafka
) -> None:
    kafka.create_topic("payments")
    with pytest.raises(TopicError, match=r"there is no topic payment, .* did you mean payments"):
        shown(shop, "payment")


def test_any_bytes_can_be_printed() -> None:
    printed = json.dumps([plain(b"{not json"), plain(b""), plain(b"[1, 2]")])
    assert printed == '["{not json", "", [1, 2]]'
    nested = b"[" * 100_000
    assert plain(nested) == nested.decode(), "without end"
    assert json_text(plain(b'{"a": "\\ud800"}')) == r'{"a": "\ud800"}', (
        "half a character, which UTF-8 cannot say"
    )


def test_a_schema_in_the_headers_is_heeded(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Confluent's newer serializers write it, for keys and for values."""
    monkeypatch.setattr(registry, "_current", registry._current)
    asked = registry.use(SchemaRegistrySettings(schema_registry_url="mock://tail"))
    source = Source("framed", Avro(Order), key=Avro(str))
    number = asked.register("framed-value", source.serde.schema).schema_id  # type: ignore[attr-defined]
    of_key = asked.register("framed-key", source.key.schema).schema_id  # type: ignore[attr-defined]
    told: Processor[Order, int] = Processor(name="told", on={source: fold}, row=int, emits=(big,))
    shop = Application(
        settings=Settings(app="shop", kafka={"bootstrap.servers": kafka.bootstrap}), processors=(told,)
    )
    kafka.create_topic("framed")
    headers: Any = [("__value_schema_id", header(number)), ("__key_schema_id", header(of_key))]
    payload = source.serde.payload(Order("ada", 3))  # type: ignore[attr-defined]
    producer = Producer(shop.settings.producer())
    producer.produce("framed", payload, source.key.payload("ada"), 0, headers=headers)  # type: ignore[attr-defined]
    assert producer.flush(DEADLINE_S) == 0
    (record,) = shown(shop, "framed")
    assert (record["key"], record["value"]) == ("ada", {"customer": "ada", "cents": 3})
    assert "error" not in record
