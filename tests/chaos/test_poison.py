"""Records that no worker can fold: set aside once, with coordinates and reason, while their neighbours are
folded.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Producer

from holdfast.clients.quarantine.records import QuarantinedRecord, read_record
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.types import AlterConfig
from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import Proof, prove

MIB = 1 << 20
ROOMY = {"max.message.bytes": str(16 * MIB)}

Header = tuple[str, bytes]


def write(app: Application, *values: bytes | None, headers: Sequence[Header] = (), partition: int = 0) -> int:
    """Append *values*, each followed by one ordinary record, in one go; return the offset of the first."""
    producer = Producer(app.broker.client_config(**{"message.max.bytes": 20 * MIB, "linger.ms": 100}))
    offsets: list[int] = []
    for value in values:
        producer.produce(
            app.source,
            value,
            "k1",
            partition,
            headers=list(headers),
            on_delivery=lambda error, message: offsets.append(message.offset() or 0),
        )
        producer.produce(app.source, b"add k1 1", "k1", partition)
    assert producer.flush(DEADLINE_S) == 0
    return min(offsets)


def quarantined(proof: Proof) -> dict[tuple[str, int], QuarantinedRecord]:
    """Return the quarantined records by processor and offset."""
    records = [read_record(message) for messages in proof.quarantined.values() for message in messages]
    assert None not in records
    return {(each.processor, each.offset): each for each in records if each is not None}


def test_each_kind_of_poison_is_set_aside_once_and_its_neighbours_are_folded(
    application: MakeApplication,
) -> None:
    app = application(partitions=2)
    poison = {
        b"\xffnot text": ("decode", "UnicodeDecodeError"),
        b"two words": ("decode", "ValueError"),
        b"": ("decode", "ValueError"),
        b"raise k1 7": ("fold", "ValueError"),
        b"unknown k1 7": ("fold", "ValueError"),
        b"grow k1 1000001": ("fold", "FoldError"),
        b"shout k1 1000001": ("fold", "FoldError"),
        b"\xff" * 1_000_000: ("decode", "UnicodeDecodeError"),
    }
    first = write(app, *poison)
    write(app, None)
    app.worker().start()
    proof = prove(app)
    found = quarantined(proof)
    for at, (value, (stage, error)) in enumerate(poison.items()):
        record = found["counts", first + 2 * at]
        assert (record.stage, record.error, record.topic, record.partition, record.key) == (
            stage,
            error,
            app.source,
            0,
            b"k1",
        )
        assert record.value == value
        assert record.truncated_bytes is None
        assert record.reason
    assert found["counts", first + 2 * len(poison)].error in ("AttributeError", "TypeError"), "a tombstone"
    assert ("tally", first + 2 * 3) not in found, "what one processor refuses another may fold"
    assert sum(name == "counts" for name, _ in found) == len(poison) + 1
    worker = app.workers[0]
    assert worker.said(rf"record quarantined: {app.source}/0/{first} at decode: UnicodeDecodeError")


@pytest.mark.variant
def test_a_record_too_large_for_the_quarantine_is_listed_by_its_coordinates(
    application: MakeApplication,
) -> None:
    app = application(partitions=1)
    Admin(app.settings).apply([AlterConfig(topic=app.source, config=ROOMY)])
    huge = write(app, b"\xff" * (6 * MIB))
    heads = write(app, b"\xfe", headers=[("trace", b"h" * (5 * MIB))])
    both = write(app, b"\xfd" * (2 * MIB), headers=[("trace", b"h" * (3 * MIB))])
    keeps = write(app, b"\xfc" * (3 * MIB), headers=[("trace", b"t")])
    app.worker().start()
    found = quarantined(prove(app))
    assert (found["counts", huge].truncated_bytes, found["counts", huge].value) == (6 * MIB, None)
    assert (found["counts", heads].truncated_bytes, found["counts", heads].headers) == (1, ())
    assert (found["counts", both].truncated_bytes, len(found["counts", both].headers)) == (2 * MIB, 1)
    assert found["counts", keeps].value == b"\xfc" * (3 * MIB)
    assert found["counts", keeps].headers == (("trace", b"t"),)


@pytest.mark.variant
def test_a_small_quarantine_topic_gets_the_part_that_fits(application: MakeApplication) -> None:
    app = application(partitions=1)
    Admin(app.settings).apply(
        [
            AlterConfig(topic=app.source, config=ROOMY),
            AlterConfig(topic=app.settings.quarantine_topic, config={"max.message.bytes": "20000"}),
        ]
    )
    large = write(app, b"\xff" * (2 * MIB))
    heads = write(app, b"\xfe" * 1_000, headers=[("trace", b"h" * 30_000)])
    app.worker().start()
    found = quarantined(prove(app))
    assert found["counts", large].truncated_bytes == 2 * MIB
    assert found["counts", large].error == "UnicodeDecodeError"
    assert (found["counts", heads].truncated_bytes, found["counts", heads].headers) == (1_000, ())


def test_a_worker_does_not_start_on_topics_that_could_refuse_a_folds_output(
    application: MakeApplication,
) -> None:
    app = application(partitions=1)
    changelog = app.processors[0].changelog(app.settings.app)
    for topic in (app.out, changelog):
        Admin(app.settings).apply([AlterConfig(topic=topic, config={"max.message.bytes": "20000"})])
    worker = app.worker().start()
    assert worker.wait_exit(DEADLINE_S) > 0
    for topic in (app.out, changelog):
        assert worker.said(
            rf"topic {topic} max.message.bytes is 20000, .*--add-config max.message.bytes=1048588"
        ), worker.tail()
    write(app, b"shout s1 50000", b"grow g1 50000")
    for topic in (app.out, changelog):
        Admin(app.settings).apply([AlterConfig(topic=topic, config={"max.message.bytes": "1048588"})])
    worker.start()
    prove(app)


@pytest.mark.variant
def test_a_topic_that_refuses_while_a_worker_runs_holds_its_partition_until_it_is_set_right(
    application: MakeApplication,
) -> None:
    app = application(partitions=1)
    worker = app.worker().start()
    wait_for("the worker is ready", lambda: worker.ready, DEADLINE_S, app.tails)
    changelog = app.processors[0].changelog(app.settings.app)
    for topic, record in {app.out: b"shout s1 50000", changelog: b"grow g1 50000"}.items():
        Admin(app.settings).apply([AlterConfig(topic=topic, config={"max.message.bytes": "20000"})])
        write(app, record)
        said = rf"is stalled: topic {topic} refused a record: MSG_SIZE_TOO_LARGE.*raise its max.message.bytes"
        wait_for("the worker says so", lambda said=said: worker.said(said), DEADLINE_S, app.tails)  # type: ignore[misc]
        wait_for("it is not ready", lambda: not worker.ready, DEADLINE_S, app.tails)
        assert worker.running
        Admin(app.settings).apply([AlterConfig(topic=topic, config={"max.message.bytes": "1048588"})])
        wait_for("it is ready again", lambda: worker.ready, DEADLINE_S, app.tails)
    assert worker.running
    prove(app)


@pytest.mark.variant
def test_a_topic_deleted_while_a_worker_runs_stalls_emits_to_it_until_it_is_made_again(
    application: MakeApplication,
) -> None:
    app = application(partitions=1)
    worker = app.worker().start()
    wait_for("the worker is ready", lambda: worker.ready, DEADLINE_S, app.tails)
    app.broker.delete_topics([app.out])
    write(app, b"shout s1 10")
    wait_for(
        "the worker says so",
        lambda: worker.said(rf"is stalled: topic {app.out} refused a record: "),
        DEADLINE_S,
        app.tails,
    )
    assert worker.running
    create_topics(app.settings, app.processors, partitions=1)
    wait_for("it is ready again", lambda: worker.ready, DEADLINE_S, app.tails)
    assert worker.running
    prove(app)
