"""One worker without trouble: the yardstick for the other tests."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from tests.chaos.conftest import LINGER_MS, MakeApplication
from tests.support.patience import DEADLINE_S
from tests.support.proof import last_offsets, prove


def test_a_worker_without_trouble_folds_everything_exactly_once(application: MakeApplication) -> None:
    app = application(linger_ms=LINGER_MS)  # the product's: many small transactions
    app.worker().start()
    load = app.load(rate=3_000, limit=12_000)
    acked = load.wait()
    proof = prove(app, acked)
    assert sum(len(each.emits) for each in proof.outcomes.values()) > 500
    assert sum(len(each.refused) for each in proof.outcomes.values()) > 5
    assert any(key[:1] == b"\x01" for each in proof.outcomes.values() for key in each.state), (
        "no timer is pending"
    )
    # The position is in the state; offsets are committed all the same, for the tools that show lag.
    group = Consumer(app.broker.client_config(**{"group.id": app.name}))
    try:
        committed = group.committed(
            [TopicPartition(app.source, number) for number in proof.source], timeout=DEADLINE_S
        )
    finally:
        group.close()
    assert {each.partition: each.offset - 1 for each in committed} == last_offsets(proof.source)
