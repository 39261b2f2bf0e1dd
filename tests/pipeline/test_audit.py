"""The audit of an outbox over real topics and bronze tables: both engines find the same, with offsets, and no
fault in correct records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.outbox.harvest import ProducerProgress
from holdfast.core.producers.audit import Rules, progress_topic
from holdfast.core.producers.row_digests import RowDigests
from holdfast.core.producers.stamps import DIGEST, Stamp, stamp_headers
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import ConfigError
from holdfast.pipeline.audit import AuditOptions, AuditReport, audit
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.run import EngineChoice, Source
from tests.pipeline.accounts import Log, Record
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.lakes import write_bronze
from tests.support.audit_histories import OUTBOX, Published, orders, renumbered
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RIGHT = list(orders(200, keys=5, epoch_every=40))
NUMBERED = Rules(outbox=OUTBOX, number="n")


def swapped(records: list[Published], one: int, two: int) -> list[Published]:
    out = list(records)
    out[one], out[two] = out[two], out[one]
    return renumbered(out)


PLANTED: Mapping[int, list[Published]] = {
    0: RIGHT,
    1: renumbered([*RIGHT[:90], RIGHT[88], *RIGHT[90:]]),
    2: renumbered([*RIGHT[:50], *RIGHT[53:]]),
    3: swapped(RIGHT, 110, 115),
}
FOUND = [
    ("duplicate", 1, 90, 88, 88),
    ("lost", 2, 50, 50, 52),
    *(("out-of-order", 3, at, at, at) for at in range(111, 115)),
    ("inversion", 3, 115, 110, 110),
]


def log_of(history: Mapping[int, Iterable[Published]]) -> Log:
    """Return a history as records; partition by partition, each with its own producer's numbers."""
    return {
        partition: [
            Record(each.offset, 1_000 + each.offset, each.key, b"v", each.headers) for each in records
        ]
        for partition, records in history.items()
    }


def told(report: AuditReport) -> list[tuple[str, int, int, int, int]]:
    return [
        (str(each.kind), where.partition, each.offset, each.first, each.last)
        for where, each in report.findings
    ]


def tell_progress(broker: SessionBroker, topic: str, last: Mapping[int, int], epoch: int = 5) -> str:
    """Write the progress that leaders of an outbox would have written; return the outbox."""
    outbox = topic.replace(".", "-")
    books = ProducerProgress(f"{outbox}-0")
    books.epoch = epoch
    producer = Producer(broker.client_config())
    broker.create_topic(
        progress_topic(outbox), partitions=1, config={"cleanup.policy": "compact"}, exact=True
    )
    for key, value in books.records(
        [1], {(topic, partition): sequence for partition, sequence in last.items()}
    ):
        producer.produce(progress_topic(outbox), value, key)
    assert producer.flush(DEADLINE_S) == 0
    return outbox


def test_planted_faults_are_found_with_their_offsets_by_both_engines_in_topics_and_bronze(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(log_of(PLANTED))
    land(settings, topic, str(lake))
    ways: list[tuple[EngineChoice, Source]] = [("local", "topic"), ("local", "bronze"), ("spark", "bronze")]
    reports = [
        audit(settings, AuditOptions(topics=(topic,), engine=engine, source=source, lake=str(lake)))
        for engine, source in ways
    ]
    assert [(each.engine, each.source) for each in reports] == ways
    for each in reports:
        assert told(each) == FOUND
        assert each.partitions == reports[0].partitions
        assert each.partitions[0].is_clean


def test_bronze_of_a_log_that_is_right_is_clean_and_shuffled_files_change_nothing(
    settings: Settings, lake: Path
) -> None:
    history = {0: RIGHT, 1: []}
    for shuffled in (False, True):
        write_bronze(lake / str(shuffled), "t", log_of(history), shuffled=shuffled)
        options = AuditOptions(
            topics=("t",), rules=NUMBERED, engine="local", source="bronze", lake=str(lake / str(shuffled))
        )
        report = audit(settings, options)
        assert report.is_clean, told(report)
        assert (report.audited, report.notes) == (200, ())


def test_topics_and_last_numbers_are_taken_from_the_leaders(
    settings: Settings, make_topic: MakeTopic, broker: SessionBroker
) -> None:
    topic = make_topic(log_of({0: [], 1: []}))
    outbox = tell_progress(broker, topic, {1: 1})
    report = audit(settings, AuditOptions(rules=Rules(outbox=outbox), engine="local"))
    assert [
        (where.topic, where.partition, each.kind, each.first, each.last) for where, each in report.findings
    ] == [(topic, 1, "lost", 0, 1)]
    producer = Producer(broker.client_config())
    for sequence in range(2):
        headers = [
            ("holdfast-producer", f"{outbox}-0".encode()),
            ("holdfast-epoch", b"5"),
            ("holdfast-sequence", b"%d" % sequence),
        ]
        producer.produce(topic, b"v", b"k", 1, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(DEADLINE_S) == 0
    report = audit(settings, AuditOptions(rules=Rules(outbox=outbox), engine="local"))
    assert report.is_clean, told(report)
    assert all(each.ends for each in report.partitions)
    # an open transaction hides later records: then no end is reported
    still_open = {"transactional.id": f"{outbox}-open", "transaction.timeout.ms": 600_000}
    open_producer = Producer(broker.client_config(**still_open))
    open_producer.init_transactions(DEADLINE_S)
    open_producer.begin_transaction()
    open_producer.produce(topic, b"v", b"k", 1)
    assert open_producer.flush(DEADLINE_S) == 0
    report = audit(settings, AuditOptions(rules=Rules(outbox=outbox), engine="local", settle_s=0.5))
    assert report.is_clean
    assert [each.ends for each in report.partitions] == [True, False]
    assert "a transaction is open" in report.notes[0]
    open_producer.abort_transaction(DEADLINE_S)
    broker.delete_topics([progress_topic(outbox)])


def test_a_topic_whose_beginning_was_deleted_is_audited_from_there(
    settings: Settings, make_topic: MakeTopic, broker: SessionBroker
) -> None:
    topic = make_topic(log_of({0: RIGHT}))
    admin = AdminClient(broker.client_config())
    admin.delete_records([TopicPartition(topic, 0, 70)])[TopicPartition(topic, 0, 70)].result(DEADLINE_S)
    report = audit(settings, AuditOptions(topics=(topic,), engine="local"))
    assert report.is_clean, told(report)
    assert report.partitions[0].first_offset == 70
    assert "begins at offset 70" in report.notes[0]


KEYS = [b"key-%d" % at for at in range(8)]


def digested(partition: int, among: int, count: int = 40) -> list[Record]:
    """Return the records that a harvester publishes to a partition of *among*."""
    digests = RowDigests(f"{OUTBOX}-0".encode(), b"3")
    own = [key for key in KEYS if of_key(key, among) == partition]
    out = []
    for at in range(count):
        key, value, mine = own[at % len(own)], b"paid %d" % at, (("trace", b"t%d" % at),)
        digest = digests.header(b"%d" % at, partition, among, key, value, mine)
        out.append(
            Record(
                at,
                1_000 + at,
                key,
                value,
                (*mine, (DIGEST, digest), *stamp_headers(Stamp(f"{OUTBOX}-0", 3, at))),
            )
        )
    return out


def altered(records: list[Record], at: int, **changes: Any) -> list[Record]:
    return [*records[:at], replace(records[at], **changes), *records[at + 1 :]]


def without_digest(record: Record) -> Record:
    return replace(record, headers=tuple(header for header in record.headers if header[0] != DIGEST))


@pytest.mark.variant
def test_changed_and_moved_records_are_found_by_both_engines_and_older_ones_counted(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    right = {0: digested(0, 2), 1: digested(1, 2)}
    moved = replace(right[0][39], offset=40)
    planted = {
        0: altered(altered(right[0][:39], 5, value=b"paid 6"), 9, key=b"another"),
        1: [
            *altered(
                altered(right[1], 7, headers=(("trace", b"other"), *right[1][7].headers[1:])), 8, value=None
            ),
            moved,
        ],
    }
    for history, found in (
        (right, []),
        (planted, [("changed", 0, 5, 5), ("changed", 0, 9, 9), ("changed", 1, 7, 7), ("changed", 1, 8, 8)]),
    ):
        topic = make_topic(history)
        land(settings, topic, str(lake))
        ways: list[tuple[EngineChoice, Source]] = [
            ("local", "topic"),
            ("local", "bronze"),
            ("spark", "bronze"),
        ]
        reports = [
            audit(settings, AuditOptions(topics=(topic,), engine=engine, source=source, lake=str(lake)))
            for engine, source in ways
        ]
        for report in reports:
            changed = [
                (kind, partition, offset, first)
                for kind, partition, offset, first, _ in told(report)
                if kind == "changed"
            ]
            assert changed == found
            assert report.partitions == reports[0].partitions
        misplaced = [
            (where.partition, each.offset, each.reason)
            for where, each in reports[0].findings
            if each.kind == "misplaced"
        ]
        assert misplaced == ([] if history is right else [(1, 40, "it was published to partition 0")])
    older = make_topic({0: [without_digest(each) for each in right[0]], 1: right[1]})
    report = audit(settings, AuditOptions(topics=(older,), engine="local"))
    assert report.is_clean, told(report)
    assert [each.undigested for each in report.partitions] == [40, 0]


def test_records_without_a_digest_are_looked_for_in_their_keys_partition_when_asked(
    settings: Settings, make_topic: MakeTopic
) -> None:
    records = [without_digest(each) for each in digested(0, 2)]
    topic = make_topic({0: altered(records, 3, key=next(key for key in KEYS if of_key(key, 2) == 1)), 1: []})
    assert audit(settings, AuditOptions(topics=(topic,), engine="local")).is_clean
    report = audit(settings, AuditOptions(topics=(topic,), engine="local", by_key=True))
    assert told(report) == [("misplaced", 0, 3, 3, 3)]


def test_a_topic_that_grew_is_right_with_the_partitions_it_had(settings: Settings, lake: Path) -> None:
    write_bronze(lake, "t", {0: digested(0, 2, 20), 1: []}, shuffled=False)
    options = AuditOptions(topics=("t",), engine="local", source="bronze", lake=str(lake), by_key=True)
    assert audit(settings, options).is_clean


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.long
@pytest.mark.parametrize("planted", [False, True])
def test_the_command_prints_its_findings_and_exits_with_their_code(
    lake: Path, capsys: pytest.CaptureFixture[str], planted: bool
) -> None:
    write_bronze(lake, "t", log_of(PLANTED if planted else {0: RIGHT}))
    command = (
        "audit",
        "outbox",
        "--topic",
        "t",
        "--from",
        "bronze",
        "--lake",
        str(lake),
        "--engine",
        "local",
    )
    code, out, err = run(capsys, *command)
    assert code == (1 if planted else 0)
    assert ("NOT as it must be" if planted else "nothing is wrong") in err
    assert ("number 110 came behind a later one of its key" in out) is planted
    code, out, _ = run(capsys, *command, "-o", "json")
    document: dict[str, Any] = json.loads(out)
    assert document["clean"] is not planted
    assert [
        (each["kind"], each["partition"], each["offset"], each["first"], each["last"])
        for each in document["findings"]
    ] == (FOUND if planted else [])


def test_an_impossible_audit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="name the outbox, or the topics"):
        AuditOptions()
    code, _, err = run(capsys, "audit", "outbox", "--topic", "t", "--at-least-once")
    assert code == 2
    assert "--number" in err
    code, _, err = run(capsys, "audit", "outbox", "--topic", "t", "--from", "bronze")
    assert code == 2
    assert "--lake" in err
