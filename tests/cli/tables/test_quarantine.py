"""`holdfast quarantine` on a real broker: records set aside as a worker does it, listed, shown and tried
again.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.agents.partitions.upkeep.skipping import trace
from holdfast.cli.__main__ import main
from holdfast.clients.quarantine.copies import quarantine_record
from holdfast.clients.quarantine.records import Quarantine
from holdfast.config import Settings
from holdfast.core.engine.fold.folding import Refused, Stage
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import QuarantineError
from holdfast.kafka.fetching.records import Records
from tests.support.columns import take
from tests.support.harness import wait_for_ends
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

SHOP = """
import msgspec
from holdfast.core.engine.declared.processor import Processor

class Total(msgspec.Struct, frozen=True):
    count: int = 0

def fold(rows, event, at_ms):
    pass

processors = [Processor(name=name, source={source!r}, decode=bytes, fold=fold, row=Total) for name in {names!r}]
"""  # noqa: E501


class Shop:
    """An application of its own: topics on the broker, a module for `-A`, and a worker's hand for setting
    records aside.
    """

    def __init__(self, broker: SessionBroker, folder: Path, names: tuple[str, ...] = ("totals",)) -> None:
        self.broker, self.app, self.module = (
            broker,
            f"shop-{ending()}",
            f"shop_{ending()}",
        )
        self.source = broker.create_topic("orders", partitions=3)
        self.quarantine = f"{self.app}-quarantine"
        broker.create_topic(
            self.quarantine, partitions=2, config={"max.message.bytes": "4000000"}, exact=True
        )
        (folder / f"{self.module}.py").write_text(SHOP.format(source=self.source, names=names))
        self._producer = Producer(broker.client_config(**{"transactional.id": f"{self.app}.totals.0"}))
        self._producer.init_transactions(DEADLINE_S)

    def send(self, partition: int, value: bytes | None, key: bytes | None = None, headers: Any = ()) -> int:
        """Append a record to the source as any producer would; return its offset."""
        producer, sent = Producer(self.broker.client_config()), list[Message]()
        producer.produce(
            self.source,
            value=value,
            key=key,
            partition=partition,
            headers=list(headers),
            on_delivery=lambda error, message: sent.append(message),
        )
        assert producer.flush(DEADLINE_S) == 0
        return sent[0].offset() or 0

    def set_aside(
        self,
        partition: int,
        offset: int,
        processor: str = "totals",
        reason: str = "no such thing",
        copy_bytes: int = 1 << 20,
        stage: Stage = "decode",
        abort: bool = False,
    ) -> str:
        """Write the quarantine's copy as the worker does, in a transaction; return its coordinates."""
        refused = Refused(offset=offset, stage=stage, error="DecodeError", reason=reason)
        records = Records()
        take(records, [self.read(partition, offset)])
        record = quarantine_record(
            self.quarantine, processor, (self.source, partition), refused, records.at(offset), copy_bytes
        )
        self._producer.begin_transaction()
        self._producer.produce(
            self.quarantine, key=record.key, value=record.value, headers=list(record.headers)
        )
        if abort:
            self._producer.flush(DEADLINE_S)
            self._producer.abort_transaction(DEADLINE_S)
        else:
            self._producer.commit_transaction(DEADLINE_S)
        wait_for_ends(Settings(kafka=self.broker.client_config()), self.quarantine)
        return f"{self.source}/{partition}/{offset}/{processor}"

    def set_batch_aside(self, first: int, last: int, processor: str = "totals") -> str:
        """Note a batch of partition 0 that was skipped, as the worker does."""
        found = Unreadable(
            self.source,
            0,
            first,
            last,
            "the records unpack to more",
            "TooLargeError",
            "zstd",
            6_439,
            -1,
            17,
            3,
            1_000,
        )
        record = trace(self.quarantine, processor, found)
        self._producer.begin_transaction()
        self._producer.produce(
            self.quarantine, key=record.key, value=record.value, headers=list(record.headers)
        )
        self._producer.commit_transaction(DEADLINE_S)
        wait_for_ends(Settings(kafka=self.broker.client_config()), self.quarantine)
        return f"{self.source}/0/{first}/{processor}"

    def read(self, partition: int, offset: int) -> Message:
        consumer = Consumer(self.broker.client_config(**{"group.id": self.app, "auto.offset.reset": "error"}))
        try:
            consumer.list_topics(self.source, timeout=DEADLINE_S)
            consumer.assign([TopicPartition(self.source, partition, offset)])
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            assert message.error() is None, message.error()
            return message
        finally:
            consumer.close()

    def end(self, partition: int) -> int:
        consumer = Consumer(self.broker.client_config(**{"group.id": self.app}))
        try:
            return consumer.get_watermark_offsets(TopicPartition(self.source, partition), timeout=DEADLINE_S)[
                1
            ]
        finally:
            consumer.close()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    broker: SessionBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(shop: Shop, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(
                [
                    "quarantine",
                    arguments[0],
                    "--timeout",
                    str(DEADLINE_S),
                    *arguments[1:],
                    "-A",
                    shop.module,
                    "--set",
                    f"app={shop.app}",
                    "--bootstrap",
                    broker.bootstrap,
                ]
            )
        told = capsys.readouterr()
        return int(left.value.code or 0), told.out, told.err

    return command


@pytest.fixture
def shop(broker: SessionBroker, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker, tmp_path)
    yield made
    broker.delete_topics([made.source, made.quarantine])


@pytest.fixture
def shared_shop(broker: SessionBroker, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker, tmp_path, ("totals", "maxima"))
    yield made
    broker.delete_topics([made.source, made.quarantine])


def listed(run: Run, shop: Shop, *arguments: str) -> list[dict[str, Any]]:
    code, out, _ = run(shop, "list", "-o", "json", *arguments)
    assert code == 0
    records: list[dict[str, Any]] = json.loads(out)
    return records


def test_an_empty_quarantine_is_reported_as_empty(shop: Shop, run: Run) -> None:
    code, out, err = run(shop, "list")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "no quarantined records" in err


def test_quarantined_records_are_listed_with_coordinates_and_reason(shop: Shop, run: Run) -> None:
    for partition, value in ((0, b"bad"), (2, b"worse" * 100), (2, None)):
        offset = shop.send(partition, value, key=b"k\xff" if partition else "ключ".encode())
        shop.set_aside(partition, offset, reason=f"reason {partition}\nof {offset}")
    records = listed(run, shop)
    assert [(each["coordinates"], each["key"], each["size_bytes"]) for each in records] == [
        (f"{shop.source}/0/0/totals", "ключ", 3),
        (f"{shop.source}/2/0/totals", "0x6bff", 500),
        (f"{shop.source}/2/1/totals", "0x6bff", 0),
    ]
    assert records[0]["reason"] == "reason 0\nof 0"
    code, out, _ = run(shop, "list", "--processor", "totals")
    assert code == 0
    assert "COORDINATES" in out.splitlines()[0]
    assert "reason 2 of 1" in out
    assert listed(run, shop, "--processor", "maxima") == []
    assert [each["offset"] for each in listed(run, shop, "--limit", "1")] == [1]


def test_an_aborted_batch_leaves_nothing_in_the_quarantine(shop: Shop, run: Run) -> None:
    offset = shop.send(0, b"bad")
    shop.set_aside(0, offset, abort=True)
    assert listed(run, shop) == []
    shop.set_aside(0, offset)
    assert len(listed(run, shop)) == 1


def test_one_record_is_shown_whole(shop: Shop, run: Run) -> None:
    headers = [("trace", b"abc"), ("empty", None), ("holdfast-topic", b"the record's own")]
    offset = shop.send(1, b"\x00\x01bad", key=b"ada", headers=headers)
    coordinates = shop.set_aside(1, offset, stage="fold")
    for name in (coordinates, coordinates.removesuffix("/totals")):
        code, out, _ = run(shop, "show", name, "-o", "json")
        (record,) = json.loads(out)
        assert code == 0
        assert base64.b64decode(record["value_base64"]) == b"\x00\x01bad"
        assert (record["key"], record["stage"], record["partition"]) == ("ada", "fold", 1)
        assert record["headers"] == [
            ["trace", "abc"],
            ["empty", None],
            ["holdfast-topic", "the record's own"],
        ]
    code, out, _ = run(shop, "show", coordinates)
    assert code == 0
    assert "0x0001626164" in out
    code, _, err = run(shop, "show", f"{shop.source}/1/99")
    assert (code, "holds no" in err) == (1, True)


def test_a_retry_without_execute_sends_nothing(shop: Shop, run: Run) -> None:
    coordinates = shop.set_aside(0, shop.send(0, b"bad"))
    code, out, err = run(shop, "retry", coordinates)
    assert (code, "would send" in out, "add --execute" in err) == (0, True, True)
    assert shop.end(0) == 1


def test_a_retried_record_is_what_it_was_and_says_what_it_repeats(shop: Shop, run: Run) -> None:
    headers = [("trace", b"abc"), ("empty", None), ("holdfast-topic", b"own")]
    offset = shop.send(1, b"bad\x00", key=b"ada", headers=headers)
    coordinates = shop.set_aside(1, offset)
    code, out, _ = run(shop, "retry", coordinates, "--execute", "-o", "json")
    (done,) = json.loads(out)
    assert (code, done["action"], done["copy"]) == (0, "sent", f"{shop.source}/1/1")
    copy = shop.read(1, 1)
    assert (copy.key(), copy.value()) == (b"ada", b"bad\x00")
    assert copy.headers() == [*headers, ("holdfast-retry-of", coordinates.encode())]
    assert listed(run, shop)[0]["retried_to"] == f"{shop.source}/1/1"
    assert listed(run, shop, "--open") == []


def test_a_record_is_not_retried_twice_unless_asked_to(shop: Shop, run: Run) -> None:
    coordinates = shop.set_aside(0, shop.send(0, b"bad"))
    for arguments, end in ((["--all"], 2), (["--all"], 2), ([coordinates], 2), ([coordinates, "--again"], 3)):
        code, _, _ = run(shop, "retry", *arguments, "--execute")
        assert (code, shop.end(0)) == (0, end)


def test_a_copy_that_is_refused_again_can_be_retried_by_its_own_name(shop: Shop, run: Run) -> None:
    first = shop.set_aside(0, shop.send(0, b"bad"))
    run(shop, "retry", first, "--execute")
    second = shop.set_aside(0, 1)
    assert [each["coordinates"] for each in listed(run, shop, "--open")] == [second]
    run(shop, "retry", "--all", "--execute")
    assert shop.read(0, 2).headers() == [("holdfast-retry-of", second.encode())]


def test_a_tombstone_is_retried_as_a_tombstone(shop: Shop, run: Run) -> None:
    coordinates = shop.set_aside(0, shop.send(0, None, key=b"ada"))
    run(shop, "retry", coordinates, "--execute")
    copy = shop.read(0, 1)
    assert (copy.key(), copy.value()) == (b"ada", None)


def test_a_value_too_large_to_copy_is_taken_from_its_topic(shop: Shop, run: Run) -> None:
    value, key = b"x" * 900_000, b"k" * 5_000
    coordinates = shop.set_aside(2, shop.send(2, value, key=key), copy_bytes=0)
    (record,) = listed(run, shop)
    assert (record["size_bytes"], record["truncated"]) == (900_000, True)
    code, _, _ = run(shop, "retry", coordinates, "--execute")
    copy = shop.read(2, 1)
    assert (code, copy.value(), copy.key()) == (0, value, key)


def test_a_value_that_is_nowhere_any_more_is_reported(shop: Shop, run: Run, broker: SessionBroker) -> None:
    coordinates = shop.set_aside(2, shop.send(2, b"x" * 1_000), copy_bytes=0)
    shop.send(2, b"later")
    client = AdminClient(broker.client_config())
    for future in client.delete_records([TopicPartition(shop.source, 2, 1)]).values():
        future.result(DEADLINE_S)
    code, _, err = run(shop, "retry", coordinates, "--execute")
    assert (code, shop.end(2)) == (1, 2)
    assert "no longer has offset 0" in err


def test_another_record_is_never_taken_for_the_one_that_compaction_removed(
    shop: Shop, broker: SessionBroker
) -> None:
    shop.set_aside(2, shop.send(2, b"x" * 1_000), copy_bytes=0)
    neighbour = shop.read(2, shop.send(2, b"a neighbour"))

    class Compacted(Quarantine):
        def _log(self, topic: str, at: tuple[int, int] | None = None) -> Generator[Message, None, None]:
            yield from super()._log(topic) if at is None else [neighbour]

    quarantine = Compacted(Settings(app=shop.app, kafka={"bootstrap.servers": broker.bootstrap}))
    (record,) = quarantine.records(lambda record: True)
    with pytest.raises(QuarantineError, match="no longer has offset 0"):
        quarantine.original(record)


def test_a_record_that_a_neighbour_has_taken_is_not_sent_to_it_twice(shared_shop: Shop, run: Run) -> None:
    shop = shared_shop
    alone = shop.set_aside(0, shop.send(0, b"bad"), "totals")
    both = [shop.set_aside(1, shop.send(1, b"bad"), "totals"), shop.set_aside(1, 0, "maxima")]
    code, out, _ = run(shop, "retry", "--all", "--execute", "-o", "json")
    done = {each["coordinates"]: each for each in json.loads(out)}
    assert code == 0
    assert (done[alone]["action"], "maxima took it already" in done[alone]["why"], shop.end(0)) == (
        "kept",
        True,
        1,
    )
    assert [done[each]["copy"] for each in both] == [f"{shop.source}/1/1"] * 2
    assert shop.end(1) == 2, "refused by both, sent once"
    run(shop, "retry", alone, "--execute", "--shared")
    assert shop.end(0) == 2


def test_a_skipped_batch_is_listed_and_shown_as_one(shop: Shop, run: Run) -> None:
    name = shop.set_batch_aside(5, 9)
    (record,) = listed(run, shop)
    assert (record["coordinates"], record["offset"], record["last"], record["stage"]) == (name, 5, 9, "fetch")
    assert record["batch"] == {"codec": "zstd", "size_bytes": 6_439, "records": None, "producer": "17/3"}
    assert (record["size_bytes"], record["key"], record["truncated"], record["appended_at_ms"]) == (
        6_439,
        None,
        False,
        1_000,
    )
    code, out, _ = run(shop, "list")
    lines = [line.split() for line in out.splitlines()]
    assert (code, lines[0][:4], lines[1][:4]) == (
        0,
        ["COORDINATES", "LAST", "STAGE", "ERROR"],
        [name, "9", "fetch", "TooLargeError"],
    )
    code, out, _ = run(shop, "show", name)
    shown = dict(line.split(None, 1) for line in out.splitlines()[1:])
    assert code == 0
    assert (shown["value"], shown["last"], shown["headers"]) == ("(a batch that cannot be read)", "9", "-")
    assert shown["batch"] == "codec=zstd,size_bytes=6439,records=-,producer=17/3"


def test_a_skipped_batch_is_not_sent_again(shop: Shop, run: Run) -> None:
    name, good = shop.set_batch_aside(5, 9), shop.set_aside(1, shop.send(1, b"bad"))
    for arguments in ((name,), (name, good), (name, "--again", "--shared")):
        code, out, err = run(shop, "retry", *arguments, "--execute")
        assert (code, out, len(err.splitlines())) == (1, "", 1), err
        assert (
            f"{name}: a batch that cannot be read (zstd, 6439 bytes) was skipped; there is nothing to send"
            " again" in err
        )
    code, out, _ = run(shop, "retry", "--all", "--execute", "-o", "json")
    done = {each["coordinates"]: each for each in json.loads(out)}
    assert (code, done[name]["action"], done[good]["action"]) == (0, "kept", "sent")
    assert "nothing to send again" in done[name]["why"]
    assert (shop.end(0), shop.end(1)) == (0, 2)
    quarantine = Quarantine(Settings(app=shop.app, kafka={"bootstrap.servers": shop.broker.bootstrap}))
    with pytest.raises(QuarantineError, match="nothing to send again"):
        list(quarantine.retry(quarantine.records(lambda record: True)))


def test_a_record_keeps_headers_that_are_named_as_notes_of_a_batch_are(shop: Shop, run: Run) -> None:
    headers = [("holdfast-epoch", b"3"), ("holdfast-size", b"xl"), ("holdfast-producer", b"billing")]
    name = shop.set_aside(1, shop.send(1, b"bad", headers=headers))
    run(shop, "retry", name, "--execute")
    assert shop.read(1, 1).headers() == [*headers, ("holdfast-retry-of", name.encode())]


@pytest.mark.parametrize("arguments", [(), ("--all", "orders/0/1")])
def test_what_to_retry_must_be_said(shop: Shop, run: Run, arguments: tuple[str, ...]) -> None:
    code, _, err = run(shop, "retry", *arguments)
    assert (code, "--all" in err) == (2, True)


def test_an_application_without_a_quarantine_topic_is_shown_where_to_look(
    shop: Shop, run: Run, broker: SessionBroker
) -> None:
    broker.delete_topics([shop.quarantine])
    code, _, err = run(shop, "list", "--timeout", "5")
    assert (code, "does not exist" in err) == (1, True)
