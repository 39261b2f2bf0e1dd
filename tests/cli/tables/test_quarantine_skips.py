"""`holdfast quarantine skip | skips` on a real broker: what cannot be read is asked to be skipped, and
what can be read is not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import Skip, encode_skip
from holdfast.dev.fixtures import SessionBroker
from holdfast.kafka.reading.skip_log import read_skips
from tests.support.damage import BOMB_BYTES, CODECS, MIB, bombs_topic, break_header, damage, lie, send, spoil
from tests.support.harness import wait_for_ends
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

LINGER_MS = 50_000
SHOP = """
import msgspec
from holdfast.core.engine.declared.processor import Processor

class Total(msgspec.Struct, frozen=True):
    count: int = 0

def fold(rows, event, at_ms):
    pass

processors = [Processor(name="totals", source={source!r}, decode=bytes, fold=fold, row=Total)]
"""


class Shop:
    """An application that reads one topic, with its skips."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        self.broker, self.app, self.module = (
            broker,
            f"shop-{ending()}",
            f"shop_{ending()}",
        )
        self.source = bombs_topic(broker)
        self.settings = Settings(app=self.app, kafka=broker.client_config())
        broker.create_topic(self.settings.skips_topic, config={"cleanup.policy": "compact"}, exact=True)
        (folder / f"{self.module}.py").write_text(SHOP.format(source=self.source))

    def note(self, skip: Skip) -> None:
        """Write a skip as a worker does, or another program."""
        producer = Producer(self.broker.client_config())
        producer.produce(self.settings.skips_topic, encode_skip(skip), skip.key, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def skips(self) -> list[Skip]:
        return read_skips(self.settings).all()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shop(broker: SessionBroker, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker, tmp_path)
    yield made
    broker.delete_topics([made.source, made.settings.skips_topic])


@pytest.fixture
def run(
    broker: SessionBroker,
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*arguments: str) -> tuple[int, str, str]:
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


def skip_of(run: Run, shop: Shop, offset: int, *arguments: str) -> dict[str, Any]:
    code, out, err = run("skip", shop.source, "0", str(offset), "-o", "json", *arguments)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def refused(run: Run, shop: Shop, offset: int, *arguments: str, topic: str | None = None) -> str:
    """Return the one line of a refusal; nothing was written."""
    before = shop.skips()
    code, out, err = run("skip", topic or shop.source, "0", str(offset), "--execute", *arguments)
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert shop.skips() == before
    return err


@pytest.mark.variant
def test_bombs_are_shown_and_only_with_execute_asked_to_be_skipped(shop: Shop, run: Run) -> None:
    send(shop.broker, shop.source, "none", [b"good"])
    for codec in CODECS:
        send(shop.broker, shop.source, codec, [bytes(BOMB_BYTES)])
    for offset, codec in enumerate(CODECS, 1):
        shown = skip_of(run, shop, offset)
        assert (shown["first"], shown["last"], shown["codec"], shown["error"]) == (
            offset,
            offset,
            codec,
            "TooLargeError",
        )
        assert (shown["records"], shown["records_before"], shown["action"], shown["by"]) == (
            1,
            0,
            "would ask",
            None,
        )
        assert shop.skips() == []
    code, out, err = run("skip", shop.source, "0", "1")
    assert (code, "add --execute" in err, f"more than {64 * MIB} bytes" in out) == (0, True, True)
    for offset in range(1, 5):
        asked = skip_of(run, shop, offset, "--execute")
        assert (asked["action"], "@" in asked["by"]) == ("asked", True)
    found = shop.skips()
    assert [(each.first, each.last, each.made, each.error) for each in found] == [
        (n, n, False, "TooLargeError") for n in range(1, 5)
    ]
    assert all(each.by and each.at_ms > 0 and each.place == (shop.source, 0) for each in found)
    code, _, err = run("skip", shop.source, "0", "1", "--execute")
    assert code == 0, "whoever asks again is not refused"
    assert f"{found[0].by} asked for it at 20" in err
    assert "goes on within some seconds" in err
    assert len(shop.skips()) == 4


def test_what_can_be_read_is_not_skipped(shop: Shop, run: Run) -> None:
    send(shop.broker, shop.source, "zstd", [b"0", b"1", b"2"], linger_ms=LINGER_MS)
    assert "offset 1 can be read: its batch, 0 to 2, holds 3 records" in refused(run, shop, 1)
    send(shop.broker, shop.source, "zstd", [bytes(2 * MIB)])
    assert "unpacked_batch_bytes=67108864" in refused(run, shop, 3)
    assert skip_of(run, shop, 3, "--set", "unpacked_batch_bytes=1MiB")["first"] == 3, (
        "a limit that the workers have too"
    )


def test_missing_offsets_and_foreign_topics_are_refused(shop: Shop, run: Run) -> None:
    send(shop.broker, shop.source, "none", [b"0", b"1"])
    assert "offset 7 is not in the log, which holds 0 to 1" in refused(run, shop, 7)
    assert "offset 2 is not in the log" in refused(run, shop, 2), "the end"
    admin, place = AdminClient(shop.broker.client_config()), TopicPartition(shop.source, 0, 1)
    admin.delete_records([place])[place].result(DEADLINE_S)
    assert "offset 0 is not in the log" in refused(run, shop, 0)
    assert f"orders is not a source of application {shop.app}, which reads {shop.source}" in refused(
        run, shop, 0, topic="orders"
    )
    code, _, err = run("skip", shop.source, "9", "0")
    assert (code, "has no partition 9" in err) == (1, True)


def test_what_no_consumer_is_given_is_not_skipped(shop: Shop, run: Run) -> None:
    producer = Producer(
        shop.broker.client_config(
            **{"transactional.id": shop.app, "compression.type": "zstd", "message.max.bytes": 1_000_000_000}
        )
    )
    producer.init_transactions(DEADLINE_S)
    for commit in (False, True):
        producer.begin_transaction()
        producer.produce(shop.source, bytes(BOMB_BYTES), partition=0)
        assert producer.flush(DEADLINE_S) == 0
        if commit:
            assert "offset 2 lies behind a transaction that is open from 2 on" in refused(run, shop, 2)
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
        wait_for_ends(Settings(kafka=shop.broker.client_config()), shop.source)
    for nothing in (0, 1, 3):  # an aborted bomb and the markers
        assert "holds nothing for a consumer" in refused(run, shop, nothing)
    assert skip_of(run, shop, 2)["error"] == "TooLargeError"


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("change", "checksum", "error"),
    [(spoil, False, "ChecksumError"), (lie, True, "LengthError"), (break_header, True, "CompressionError")],
)
def test_a_damaged_batch_is_asked_to_be_skipped_whole(
    shop: Shop, run: Run, change: Callable[[bytearray], None], checksum: bool, error: str
) -> None:
    for values in ([b"0", b"1"], [b"2", b"3", b"4"], [b"5"]):
        send(shop.broker, shop.source, "none", values, linger_ms=LINGER_MS)
    damage(shop.broker, shop.source, 2, change, checksum=checksum)
    asked = skip_of(run, shop, 2, "--execute")
    assert (asked["first"], asked["last"], asked["error"]) == (2, 4, error)
    (found,) = shop.skips()
    assert (found.first, found.last, found.error, found.reason) == (2, 4, error, asked["reason"])


@pytest.mark.kafka
def test_records_before_the_corrupt_one_of_a_batch_are_not_skipped(shop: Shop, run: Run) -> None:
    send(shop.broker, shop.source, "none", [b"0", b"1", b"2"], linger_ms=LINGER_MS)

    def lie_in_the_second(batch: bytearray) -> None:
        batch[61 + 1 + batch[61] // 2] = 0x7E

    damage(shop.broker, shop.source, 0, lie_in_the_second, checksum=True)
    assert "offset 0 can be read, as 1 records of its batch can; what cannot begins at 1" in refused(
        run, shop, 0
    )
    asked = skip_of(run, shop, 1, "--execute")
    assert (asked["first"], asked["last"], asked["records_before"]) == (1, 2, 1)


def test_a_skip_that_was_made_is_not_asked_for_again(shop: Shop, run: Run) -> None:
    send(shop.broker, shop.source, "zstd", [bytes(BOMB_BYTES)])
    skip_of(run, shop, 0, "--execute")
    (asked,) = shop.skips()
    shop.note(
        Skip(
            topic=shop.source,
            partition=0,
            first=0,
            last=0,
            made=True,
            by="http://worker-1:6066",
            at_ms=1_700_000_000_000,
        )
    )
    assert "offsets 0 to 0 were skipped already, at 2023-11-14T22:13:20Z by http://worker-1:6066" in refused(
        run, shop, 0
    )
    shop.note(asked)
    assert shop.skips()[0].made, "what was made stays made"


def test_skips_are_listed(shop: Shop, run: Run) -> None:
    code, out, err = run("skips")
    assert (code, len(out.splitlines()), "nothing is skipped" in err) == (0, 1, True)
    made = Skip(
        topic=shop.source,
        partition=0,
        first=5,
        last=7,
        made=True,
        error="TooLargeError",
        reason="x" * 200,
        by="w",
        at_ms=1_000,
    )
    wish = Skip(topic=shop.source, partition=1, first=9, last=9, made=False, by="ada@desk", at_ms=2_000)
    for each in (wish, made):
        shop.note(each)
    code, out, _ = run("skips", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert [(each["partition"], each["first"], each["last"], each["state"]) for each in found] == [
        (0, 5, 7, "made"),
        (1, 9, 9, "asked"),
    ]
    assert (found[0]["reason"], found[0]["error"], found[0]["at_ms"]) == ("x" * 200, "TooLargeError", 1_000)
    code, out, _ = run("skips")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["TOPIC", "PARTITION", "FIRST", "LAST", "STATE", "ERROR", "REASON", "BY", "AT"]
    assert lines[2] == [shop.source, "1", "9", "9", "asked", "-", "-", "ada@desk", "1970-01-01T00:00:02Z"]


def test_without_its_topic_nothing_can_be_skipped(shop: Shop, run: Run) -> None:
    shop.broker.delete_topics([shop.settings.skips_topic])
    for arguments in (("skip", shop.source, "0", "0", "--execute"), ("skips",)):
        code, _, err = run(*arguments)
        assert (code, len(err.splitlines())) == (1, 1)
        assert (
            f"topic {shop.settings.skips_topic} does not exist: run `holdfast -A {shop.module} topics create`"
            in err
        )
