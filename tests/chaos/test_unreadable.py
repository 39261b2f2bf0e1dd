"""A batch that cannot be unpacked: its partition stalls and reports it, and all others continue."""

from __future__ import annotations

import json

from confluent_kafka import Producer

from holdfast.clients.tables.blocking import BlockingTableClient
from tests.chaos.conftest import MakeApplication
from tests.kafka.test_bombs import BOMB_BYTES, send
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S


def test_a_bomb_makes_its_worker_unready_and_stops_nothing_but_its_partition(
    application: MakeApplication,
) -> None:
    shop = application(partitions=2)
    counts = shop.processors[0]
    producer = Producer(shop.broker.client_config())

    def add(partition: int, key: str) -> None:
        producer.produce(shop.source, f"add {key} 1".encode(), partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    add(0, "before")
    send(shop.broker, shop.source, "zstd", [bytes(BOMB_BYTES)])
    add(0, "behind")
    worker = shop.worker().start()
    worker.wait_said("partition 0 stands before offset 1, which cannot be read", DEADLINE_S)
    for number in range(3):
        add(1, f"beside-{number}")
    wait_for(
        "the other partition to go on",
        lambda: worker.applied().get(("counts", 1)) == 2,
        DEADLINE_S,
        worker.tail,
    )
    status, told = worker.ask("/health/ready")
    assert (status, json.loads(told)["cause"].partition(":")[0]) == (
        503,
        f"{shop.source} partition 0 stands before offset 1, which cannot be read",
    )
    standing = worker.metric("holdfast_unreadable_batches")
    assert standing == {
        f'partition="{number}",topic="{shop.source}"': float(number == 0) for number in (0, 1)
    }
    assert worker.applied()["counts", 0] == 0
    with BlockingTableClient(shop.settings, [counts]) as tables:
        assert tables.get(counts, "before", partition=0, timeout_s=DEADLINE_S).value is not None, (
            "what stands still still answers"
        )
        assert tables.get(counts, "behind", partition=0, timeout_s=DEADLINE_S).value is None
    assert len(worker.said("which cannot be read")) == 1, "once, however long it stands"
    worker.stop()
