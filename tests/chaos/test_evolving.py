"""Row types that change under a live table: a compatible one is accepted, another is refused when a worker
starts.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from holdfast.clients.topics.application import create_topics
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.verify.table import verify
from tests.chaos.evolving import TYPES, evolving
from tests.support.harness import Application, running, wait_for
from tests.support.patience import DEADLINE_S


def write(app: Application, *keys: bytes) -> None:
    producer = Producer(app.broker.client_config())
    for key in keys:
        producer.produce(app.source, key, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def check_cause(app: Application) -> None:
    """A replay with the type that has more fields differs from the live table, and the type is named as the
    cause.
    """
    verdict = verify(evolving(app.source, TYPES["more"]), app.settings)
    (partition,) = verdict.partitions
    assert not verdict.equal
    assert partition.cause is not None
    assert "row 'a' differs; its rows were written as 2 types" in partition.cause
    assert "`holdfast tables repair totals --rebuild`" in partition.cause


def test_a_row_type_grows_and_one_that_cannot_read_the_rows_ends_the_worker(
    broker: SessionBroker, tmp_path: Path
) -> None:
    with running(Application(broker, tmp_path, partitions=1, module="tests.chaos.evolving")) as app:
        app.processors = [evolving(app.source, TYPES["one"])]
        broker.create_topic(
            app.source, partitions=1, config={"message.timestamp.type": "LogAppendTime"}, exact=True
        )
        create_topics(app.settings, app.processors)
        write(app, b"a", b"b", b"a")

        def up_to(row: str, offset: int) -> None:
            worker = app.worker().start(EVOLVING=row).wait_ready()
            wait_for(
                f"offset {offset}",
                lambda: worker.applied().get(("totals", 0)) == offset,
                DEADLINE_S,
                app.tails,
            )
            worker.kill()

        up_to("one", 2)
        assert verify(app.processors[0], app.settings).equal
        write(app, b"b", b"c")
        refused = app.worker().start(EVOLVING="other")
        assert refused.wait_exit(DEADLINE_S) != 0
        refused.wait_said("field count was int and is str. Change it back, or write version=2", DEADLINE_S)
        check_cause(app)  # also where no worker of the new type has come to write
        up_to("more", 4)
        check_cause(app)
        up_to("one", 4)
