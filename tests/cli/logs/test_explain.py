"""`holdfast explain` on a real broker's segment and offsets: idempotent and transactional producers,
markers, aborts, compression.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.cli.logs.explain import FIELDS, Transactions, read_segment
from holdfast.config import Settings
from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.producer_state import Append, EndMarker, LeaderRow, Origin
from holdfast.core.kafka.record_batch import ControlType, Record, RecordBatch, encode_batch
from holdfast.core.producers.stamps import Stamp, stamp_headers
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import TopicError
from holdfast.kafka.fetching.batch_at import Reading
from holdfast.kafka.requests.raw_log import RawLog
from holdfast.models.partition_leader import lead, log_of, producer_of
from tests.models.leading import empty_rows
from tests.support.damage import BOMB_BYTES, CODECS, MIB, bombs_topic, break_header, damage, lie, send, spoil
from tests.support.harness import wait_for_ends
from tests.support.marker_batches import marker_batch
from tests.support.patience import DEADLINE_S

LINGER_MS = 50_000
"""Long enough that records that are flushed together are one batch, however slow the machine is: a flush ends
the wait. This is true of a topic that the client knows: a record whose partition is not known when a flush
begins is sent alone."""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["explain", *arguments])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return command


@dataclass(frozen=True, slots=True)
class Written:
    """A partition that four producers have written, and the bytes of its segment."""

    broker: SessionBroker
    topic: str
    segment: Path

    @property
    def settings(self) -> Settings:
        return Settings(kafka={name: str(value) for name, value in self.broker.config.items()})


def producer_to(broker: SessionBroker, topic: str, **config: Any) -> Producer:
    producer = Producer(broker.client_config(**{"linger.ms": LINGER_MS, **config}))
    producer.list_topics(topic, DEADLINE_S)
    return producer


def transact(
    broker: SessionBroker, topic: str, name: str, values: list[bytes], *, commit: bool | None
) -> Producer:
    """Write a transaction and end it, or with None leave it open."""
    producer = producer_to(
        broker, topic, **{"transactional.id": f"{topic}-{name}", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"key", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    if commit is True:
        producer.commit_transaction(DEADLINE_S)
    elif commit is False:
        producer.abort_transaction(DEADLINE_S)
    if commit is not None:
        wait_for_ends(Settings(kafka=broker.client_config()), topic)
    return producer


@pytest.fixture(scope="module")
def written(broker: SessionBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Give a partition of: plain records, a committed and an aborted transaction, packed records, and a
    transaction still open.
    """
    topic = broker.create_topic("explained")
    try:
        stamped: list[tuple[str, str | bytes | None]] = list(stamp_headers(Stamp("billing", 3, 17)))
        plain = producer_to(broker, topic, **{"enable.idempotence": True})
        plain.produce(topic, b"first", b"a", 0, headers=stamped)
        plain.produce(topic, b"second", None, 0)
        assert plain.flush(DEADLINE_S) == 0
        transact(broker, topic, "good", [b"c1", b"c2", b"c3"], commit=True)
        transact(broker, topic, "bad", [b"x1", b"x2"], commit=False)
        for kind in ("gzip", "snappy", "lz4", "zstd"):
            packed = producer_to(broker, topic, **{"compression.type": kind})
            for _ in range(20):
                packed.produce(topic, kind.encode() * 50, None, 0)
            assert packed.flush(DEADLINE_S) == 0
        still_open = transact(broker, topic, "open", [b"o1"], commit=None)
        yield Written(broker, topic, segment_of(broker, topic, tmp_path_factory))
        still_open.abort_transaction(DEADLINE_S)
    finally:
        broker.delete_topics([topic])


def segment_of(broker: SessionBroker, topic: str, folders: pytest.TempPathFactory) -> Path:
    """Return the partition's own segment file, or what its leader gives of it when the broker's files are
    elsewhere.
    """
    if broker.cluster is not None:
        (path,) = broker.cluster.folder.glob(f"node-*/data/{topic}-0/*.log")
        return Path(path)
    path = folders.mktemp("segment") / "00000000000000000000.log"

    async def fetched() -> bytes:
        async with RawLog(Settings(kafka={name: str(value) for name, value in broker.config.items()})) as log:
            return (await log.fetch(topic, 0, 0)).data

    path.write_bytes(asyncio.run(fetched()))
    return path


def explained(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def test_a_real_segment_shows_producers_sequences_transactions_and_markers(
    written: Written, run: Run
) -> None:
    found = explained(run, "--segment", str(written.segment), "--records")
    assert all(tuple(each) == (*FIELDS, "content") for each in found)
    assert [each["kind"] for each in found] == [
        *("data", "transactional", "commit", "transactional", "abort"),
        *("data", "data", "data", "data", "transactional"),
    ]
    plain, good, commit, bad, abort, *packed, still_open = found
    assert [each["value"] for each in plain["content"]] == ["first", "second"]
    assert plain["content"][0]["stamp"] == {"producer": "billing", "epoch": 3, "sequence": 17}
    assert (plain["sequence"], plain["last_sequence"], plain["epoch"], plain["producer_id"] >= 0) == (
        0,
        1,
        0,
        True,
    )
    assert (good["transaction"], good["records"], good["producer_id"]) == (
        f"committed at {commit['offset']}",
        3,
        commit["producer_id"],
    )
    assert (bad["transaction"], abort["producer_id"]) == (f"aborted at {abort['offset']}", bad["producer_id"])
    assert (commit["sequence"], commit["coordinator_epoch"] is not None, commit["transaction"]) == (
        None,
        True,
        None,
    )
    assert [each["compression"] for each in packed] == ["gzip", "snappy", "lz4", "zstd"]
    assert [each["content"][3]["value"][:4] for each in packed] == ["gzip", "snap", "lz4l", "zstd"]
    assert still_open["transaction"] == "open"
    ends = [each["position"] + each["bytes"] for each in found]
    assert [each["position"] for each in found] == [0, *ends[:-1]]
    assert [each["offset"] for each in found[1:]] == [each["last_offset"] + 1 for each in found[:-1]]


def test_a_segment_is_shown_as_a_table_from_an_offset_on_and_in_parts(written: Written, run: Run) -> None:
    code, out, _ = run("--segment", str(written.segment))
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0][:4] == ["OFFSET", "LAST-OFFSET", "TIME", "RECORDS"]
    assert len(lines) == 11
    assert [line[0] for line in lines[1:4]] == ["0", "2", "5"]
    code, out, err = run("--segment", str(written.segment), "--from", "3", "--limit", "2")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["OFFSET", "2", "5"])
    assert "--from 6" in err
    code, out, _ = run("--segment", str(written.segment), "--limit", "1", "--records")
    assert "holdfast-sequence=17" in out


def test_the_fold_of_a_real_log_holds_what_the_broker_holds(written: Written) -> None:
    """The leader's table over the bytes of a real partition, markers included."""
    rows: Any = empty_rows(LeaderRow)
    data = written.segment.read_bytes()
    seen = list(read_segment(data))
    for each in seen:
        batch = each.batch
        assert batch is not None
        if batch.is_control:
            lead(
                rows,
                EndMarker(
                    producer_id=batch.producer_id,
                    epoch=batch.producer_epoch,
                    commit=batch.records[0].key == b"\0\0\0\1",
                    coordinator_epoch=0,
                    offset=batch.base_offset,
                    origin=Origin.REPLICATION,
                ),
            )
        elif batch.producer_id >= 0:
            lead(
                rows,
                Append(
                    producer_id=batch.producer_id,
                    epoch=batch.producer_epoch,
                    first_sequence=batch.base_sequence,
                    last_sequence=batch.last_sequence,
                    base_offset=batch.base_offset,
                    last_offset=batch.last_offset,
                    transactional=batch.is_transactional,
                    origin=Origin.REPLICATION,
                ),
            )
    log = log_of(rows)
    assert log.ongoing[0].first_offset == seen[-1].header.base_offset, (
        "the open transaction holds committed readers back"
    )
    assert [row.first_offset for _, row in rows.scan("a/")] == [6], (
        "one aborted transaction, from its first record"
    )

    async def stable() -> int:
        async with RawLog(written.settings) as raw:
            return (await raw.fetch(written.topic, 0, 0)).last_stable

    assert asyncio.run(stable()) == log.ongoing[0].first_offset
    entry = producer_of(rows, seen[0].header.producer_id)
    assert entry is not None
    assert (entry.last_sequence, entry.epoch) == (1, 0)


def test_an_offset_is_explained_with_its_batch_its_record_and_what_committed_readers_make_of_it(
    written: Written, run: Run
) -> None:
    def ask(offset: int) -> Any:
        return explained(run, written.topic, "0", str(offset), "--bootstrap", written.broker.bootstrap)

    first = ask(0)
    assert (first["record"]["value"], first["record"]["stamp"]["sequence"], first["committed_readers"]) == (
        "first",
        17,
        "see it",
    )
    good = ask(3)
    assert (good["record"]["value"], good["record"]["sequence"], good["batch"]["transaction"]) == (
        "c2",
        1,
        "committed at 5",
    )
    assert (ask(5)["batch"]["kind"], ask(5)["record"], ask(5)["committed_readers"]) == (
        "commit",
        None,
        "pass over it",
    )
    bad = ask(7)
    assert (bad["record"]["value"], bad["batch"]["transaction"], bad["committed_readers"]) == (
        "x2",
        "aborted at 8",
        "never see it",
    )
    still_open = ask(bad["high_watermark"] - 1)
    assert (still_open["batch"]["transaction"], still_open["committed_readers"]) == (
        "open",
        "wait for an open transaction",
    )
    assert still_open["last_stable_offset"] == still_open["asked"]
    code, out, _ = run(written.topic, "0", "3", "--bootstrap", written.broker.bootstrap)
    shown = dict(line.split(None, 1) for line in out.splitlines()[1:])
    assert (code, shown["batch.kind"], shown["record.value"]) == (0, "transactional", "c2")


def test_offsets_that_are_not_there_are_reported_with_those_that_are(written: Written, run: Run) -> None:
    where = ("--bootstrap", written.broker.bootstrap, "--timeout", str(DEADLINE_S))
    code, _, err = run(written.topic, "0", "100000", *where)
    assert (code, "is not in the log" in err) == (1, True), err
    code, _, err = run(written.topic, "7", "0", *where)
    assert (code, "has no partition 7" in err) == (1, True), err
    code, _, err = run("no-such-topic", "0", "0", *where)
    assert (code, "does not exist" in err) == (1, True), err


def test_all_batches_of_a_partition_are_read_over_as_many_fetches_as_it_takes(written: Written) -> None:
    async def offsets(first: int, until: int | None) -> list[int]:
        async with RawLog(written.settings) as log:
            return [batch.base_offset async for _, batch in log.batches(written.topic, 0, first, until=until)]

    everything = [each.header.base_offset for each in read_segment(written.segment.read_bytes())]
    assert asyncio.run(offsets(0, None)) == everything
    assert asyncio.run(offsets(3, 6)) == everything[1:3]

    async def small() -> list[int]:
        async with RawLog(written.settings) as log:
            return [len((await log.fetch(written.topic, 0, 0, max_bytes=size)).data) for size in (1, 1 << 20)]

    least, most = asyncio.run(small())
    assert 0 < least < most
    with pytest.raises(TopicError, match="is not in the log"):
        asyncio.run(offsets(10_000, None))


# -- what cannot be read


@pytest.mark.variants("snappy", "lz4", "zstd")
@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_explained_by_its_header(broker: SessionBroker, run: Run, codec: str) -> None:
    topic = bombs_topic(broker)
    send(broker, topic, codec, [b"before"])
    send(broker, topic, codec, [bytes(BOMB_BYTES)])
    code, out, err = run(topic, "0", "1", "--bootstrap", broker.bootstrap, "-o", "json")
    found = json.loads(out)
    assert code == 1
    assert f"{topic} partition 0: offset 1 cannot be read" in err
    assert f"more than {64 * MIB} bytes" in err
    assert len(err.splitlines()) == 1
    assert (found["unreadable"]["first"], found["unreadable"]["last"], found["unreadable"]["error"]) == (
        1,
        1,
        "TooLargeError",
    )
    batch = found["batch"]
    assert (batch["kind"], batch["offset"], batch["last_offset"], batch["records"], batch["compression"]) == (
        "unreadable",
        1,
        1,
        1,
        codec,
    )
    assert (batch["transactional"], batch["control"], batch["time"] is None, batch["base_time"] is None) == (
        False,
        False,
        False,
        False,
    )
    assert 0 < batch["bytes"] < 20 * MIB
    assert (found["record"], found["committed_readers"]) == (None, "cannot read it")
    code, out, _ = run(topic, "0", "1", "--bootstrap", broker.bootstrap)
    shown = dict(line.split(None, 1) for line in out.splitlines()[1:])
    assert (code, shown["batch.kind"], shown["batch.compression"], shown["unreadable.error"]) == (
        1,
        "unreadable",
        codec,
        "TooLargeError",
    )
    assert explained(run, topic, "0", "0", "--bootstrap", broker.bootstrap)["record"]["value"] == "before"


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("change", "checksum", "error", "last"),
    [
        (spoil, False, "ChecksumError", 4),
        (lie, True, "LengthError", 4),
        (break_header, True, "CompressionError", 4),
    ],
)
def test_a_damaged_batch_is_explained_by_what_its_header_claims(
    broker: SessionBroker,
    run: Run,
    change: Callable[[bytearray], None],
    checksum: bool,
    error: str,
    last: int,
) -> None:
    topic = broker.create_topic("damaged")
    for values in ([b"0", b"1"], [b"2", b"3", b"4"], [b"5"]):
        send(broker, topic, "none", values, linger_ms=LINGER_MS)
    damage(broker, topic, 2, change, checksum=checksum)
    for asked in (2, 3):
        code, out, err = run(topic, "0", str(asked), "--bootstrap", broker.bootstrap, "-o", "json")
        found = json.loads(out)
        assert (code, "cannot be read" in err) == (1, True), err
        assert (found["unreadable"]["error"], found["unreadable"]["last"], found["record"]) == (
            error,
            last,
            None,
        )
        assert (found["batch"]["offset"], found["batch"]["last_offset"], found["batch"]["records"]) == (
            2,
            4,
            3,
        )
        assert found["batch"]["compression"] == ("unknown (7)" if change is break_header else "none")
    for readable, value in ((1, "1"), (5, "5")):
        assert (
            explained(run, topic, "0", str(readable), "--bootstrap", broker.bootstrap)["record"]["value"]
            == value
        )


def test_how_a_transaction_ended_is_found_after_a_batch_that_cannot_be_read(
    broker: SessionBroker, run: Run
) -> None:
    topic = bombs_topic(broker)
    producer = producer_to(
        broker,
        topic,
        **{"transactional.id": topic, "compression.type": "zstd", "message.max.bytes": 1_000_000_000},
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for value in (b"good", bytes(BOMB_BYTES)):
        producer.produce(topic, value, partition=0)
        assert producer.flush(DEADLINE_S) == 0
    producer.abort_transaction(DEADLINE_S)
    wait_for_ends(Settings(kafka=broker.client_config()), topic)
    good = explained(run, topic, "0", "0", "--bootstrap", broker.bootstrap)
    assert (good["record"]["value"], good["batch"]["transaction"]) == ("good", "aborted at 2")
    code, out, _ = run(topic, "0", "1", "--bootstrap", broker.bootstrap, "-o", "json")
    found = json.loads(out)
    assert (code, found["batch"]["transaction"], found["batch"]["kind"]) == (1, "aborted at 2", "unreadable")
    assert (found["batch"]["transactional"], found["committed_readers"]) == (True, "never see it")


MEASURED = """
import resource, sys
from holdfast.cli.__main__ import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
try:
    main(sys.argv[1:])
except SystemExit as left:
    code = left.code
print(code, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before, file=sys.stderr)
"""


@pytest.mark.variant
def test_memory_stays_within_a_bound_whatever_is_explained(broker: SessionBroker) -> None:
    topic = bombs_topic(broker)
    send(broker, topic, "gzip", [bytes(360_000_000)])
    command = [
        sys.executable,
        "-P",
        "-c",
        MEASURED,
        "explain",
        topic,
        "0",
        "0",
        "--bootstrap",
        broker.bootstrap,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    code, grown_mib = (int(each) for each in done.stderr.splitlines()[-1].split())
    assert code == 1, done.stderr
    assert grown_mib < 3 * 64 + 64, done.stderr  # the record alone has 343


@pytest.mark.long
def test_a_batch_of_many_small_records_is_never_held_whole() -> None:
    small = [Record(offset_delta=each) for each in range(60_000)]
    data = memoryview(
        encode_batch(RecordBatch(attributes=Compression.ZSTD, last_offset_delta=59_999, records=tuple(small)))
    )
    del small
    tracemalloc.start()
    try:
        reading = Reading(data, 45_000, limit_bytes=64 * MIB)
        reading.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (reading.count, reading.error) == (60_000, None)
    assert peak < 3 * MIB, "0.6 MB unpacked; as records they would be 9"


# -- without a broker


def write(path: Path, *parts: RecordBatch | bytes) -> str:
    path.write_bytes(b"".join(part if isinstance(part, bytes) else encode_batch(part) for part in parts))
    return str(path)


def batch(offset: int, **more: Any) -> RecordBatch:
    return RecordBatch(
        base_offset=offset, max_timestamp_ms=0, base_timestamp_ms=0, records=(Record(value=b"v"),), **more
    )


@pytest.mark.long
def test_a_broken_batch_is_reported_with_its_byte_and_those_around_it_are_shown(
    tmp_path: Path, run: Run
) -> None:
    spoiled = bytearray(encode_batch(batch(1)))
    spoiled[-1] ^= 1
    path = write(tmp_path / "s.log", batch(0), bytes(spoiled), batch(2))
    code, out, err = run("--segment", path)
    assert (code, [line.split()[0] for line in out.splitlines()]) == (1, ["OFFSET", "0", "1", "2"])
    assert [line.split()[-2] for line in out.splitlines()[1:]] == ["data", "unreadable", "data"]
    assert f"at byte {len(spoiled) + 17}: checksum" in err
    code, out, _ = run("--segment", path, "--records", "-o", "json")
    assert [(each["error"] is None, len(each["content"])) for each in json.loads(out)] == [
        (True, 1),
        (False, 0),
        (True, 1),
    ]
    broken = bytearray(encode_batch(batch(1)))
    broken[8:12] = b"\xff" * 4
    path = write(tmp_path / "header.log", batch(0), bytes(broken), batch(2))
    code, out, err = run("--segment", path)
    assert (code, [line.split()[0] for line in out.splitlines()]) == (1, ["OFFSET", "0"]), (
        "nobody knows where the next one begins"
    )
    assert "a batch of length -1" in err
    path = write(tmp_path / "cut.log", batch(0), encode_batch(batch(1))[:30])
    code, out, err = run("--segment", path)
    assert (code, len(out.splitlines()), "cut short" in err) == (1, 2, True)


def test_zeros_that_a_broker_has_allocated_ahead_end_a_segment(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "s.log", batch(0), bytes(4_096))
    code, out, _ = run("--segment", path)
    assert (code, len(out.splitlines())) == (0, 2)
    code, _, err = run("--segment", write(tmp_path / "empty.log"))
    assert (code, "is empty" in err) == (0, True)


def test_markers_end_the_transactions_of_their_own_producer_only() -> None:
    ends = Transactions()
    for offset, pid, kind in (
        (5, 1, ControlType.ABORT),
        (7, 2, ControlType.COMMIT),
        (9, 1, ControlType.COMMIT),
    ):
        ends.add(
            marker_batch(
                kind,
                producer_id=pid,
                producer_epoch=0,
                coordinator_epoch=0,
                base_offset=offset,
                timestamp_ms=0,
            )
        )
    assert [ends.outcome(batch(at, producer_id=1)) for at in (0, 6, 10)] == [
        ("aborted", 5),
        ("committed", 9),
        ("open", None),
    ]
    assert ends.outcome(batch(0, producer_id=2)) == ("committed", 7)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "TOPIC PARTITION OFFSET"),
        (("orders", "0"), "TOPIC PARTITION OFFSET"),
        (("--segment", "nowhere.log"), "nowhere.log"),
        (("orders", "0", "0", "--segment", "x"), "not both"),
    ],
)
def test_a_slip_in_the_command_is_reported(run: Run, arguments: tuple[str, ...], why: str) -> None:
    code, _, err = run(*arguments)
    assert (code, why in err) == (2, True), err


def test_a_broker_that_is_not_there_is_reported_in_time(run: Run) -> None:
    code, _, err = run("orders", "0", "0", "--bootstrap", "127.0.0.1:1", "--timeout", "2")
    assert (code, "127.0.0.1:1" in err) == (1, True), err
