"""A table of two sources on real workers: the live table equals a fold of the logs by the recorded
choices.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.pipeline.verify.table import verify
from tests.chaos.conftest import MakeJoin
from tests.support.damage import one_batch
from tests.support.harness import add_partitions, wait_for
from tests.support.patience import DEADLINE_S

LAG = "kafka_consumergroup_lag"
HIDDEN = 70_000
"""Sound records in one batch: more than a worker with a limit of 1 MiB unpacks."""


def test_two_sources_are_joined_live_as_their_logs_and_choices_say(join: MakeJoin) -> None:
    app = join()
    app.write(500, seed=1)
    app.worker().start().wait_ready()
    app.write(1_500, seed=2, rest_s=0.02)
    outcomes = app.prove()
    assert sum(sum(each.marker.applied) + 2 for each in outcomes.values()) == 2_000
    asked = app.command("verify", "joined", "--output", "json")
    assert json.loads(asked.stdout)["equal"], asked.stderr
    stores = app.command("verify", "joined", "--store", "--output", "json")
    assert json.loads(stores.stdout)["equal"], stores.stderr
    told = json.loads(app.command("replay", "joined", "--output", "json").stdout)
    assert [each["sources"] for each in told["partitions"]] == [
        dict(zip(app.joined.topics, each.marker.applied, strict=True)) for each in outcomes.values()
    ]
    assert app.command("topics", "check").returncode == 0


@pytest.mark.variant
def test_wrong_guesses_cost_barriers_which_restores_and_replays_obey(join: MakeJoin) -> None:
    app = join()
    worker = app.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(4)
    assert len(app.prove()[0].choices) == 4
    assert sum(worker.metric("holdfast_barriers_total").values()) == 4
    worker.kill()
    worker.wipe()
    app.write(200, seed=9)
    worker.start().wait_ready()
    app.prove()


@pytest.mark.variant
def test_a_new_version_obeys_the_choices_of_the_previous_one(join: MakeJoin) -> None:
    app = join(partitions=1)
    first = app.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(3)
    before = app.prove()[0]
    first.stop()
    app.raise_version(2)
    app.worker().start().wait_ready()
    after = app.prove()[0]
    assert after.choices[:3] == before.choices
    assert after.emits == before.emits


LONG = pytest.mark.slow


@pytest.mark.variants("chosen:3")
@pytest.mark.parametrize(
    "fault",
    [
        "chosen:3",
        pytest.param("produced:15", marks=LONG),
        pytest.param("committing:15", marks=LONG),
        "committed:15",
        pytest.param("storing:15", marks=LONG),
        pytest.param("stored:15", marks=LONG),
    ],
)
def test_a_worker_that_dies_is_followed_by_one_that_resumes_exactly_once(join: MakeJoin, fault: str) -> None:
    """`chosen`: its choice is in the log, and nothing else of the transaction. The others are steps of every
    commit, at each of which test_kills.py kills a worker of one source.
    """
    app = join(standbys=1)
    first = app.worker(source_wait_ms=0).start(JOIN_LIE="1", CHAOS_FAULT=fault).wait_ready()
    second = app.worker().start().wait_ready()
    assert first.wait_exit_under(lambda at: app.write(120, seed=at)) == -9
    app.write(200, seed=99)
    second.wait_ready()
    app.prove()


def test_ticks_fire_while_the_sources_are_idle_and_again_in_a_replay(join: MakeJoin) -> None:
    app = join(partitions=1)
    app.worker().start().wait_ready()
    app.send(app.orders, "later k1 1")
    app.flush()
    (outcome,) = app.prove().values()
    (tick,) = [choice for choice in outcome.choices if choice.tick_ms is not None]
    assert outcome.emits[-1].startswith(b"ticked/")
    assert outcome.marker.tick_ms == tick.tick_ms


@pytest.mark.variant
def test_one_source_that_ticks_is_folded_live_and_by_the_next_owner(join: MakeJoin) -> None:
    app = join(alone=True)
    worker = app.worker().start().wait_ready()
    app.write(300, seed=4, rest_s=0.05)
    worker.kill()
    app.write(300, seed=5)
    worker.start().wait_ready()
    outcomes = app.prove()
    assert all(choice.tick_ms is not None for each in outcomes.values() for choice in each.choices)
    assert all(each.choices for each in outcomes.values())


@pytest.mark.variant
def test_windows_of_an_idle_source_emit_their_final_results_by_ticks_and_once(join: MakeJoin) -> None:
    app = join(alone=True, windows=True)
    worker = app.worker().start().wait_ready()
    app.write(300, seed=6, rest_s=0.05)
    wait_for("rows", lambda: any(state for state, _ in app.states().values()), DEADLINE_S, worker.tail)
    worker.kill()
    app.write(100, seed=7)
    worker.start().wait_ready()
    outcomes = app.prove()
    assert sum(worker.metric("holdfast_ticks_total").values()) > 0
    for each in outcomes.values():
        assert each.choices
        assert all(choice.tick_ms is not None for choice in each.choices)
        assert len(each.emits) >= 20, "each key's last session is told without a record behind it"


def test_an_unreadable_batch_of_one_source_is_skipped_and_the_other_source_resumes(join: MakeJoin) -> None:
    app = join(partitions=1, unreadable="quarantine", unpacked_batch_bytes=1 << 20)
    worker = app.worker().start().wait_ready()
    producer = one_batch(app.broker, app.customers)
    for _ in range(HIDDEN):
        producer.produce(app.customers, b"add hidden 1", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    for at in range(3):
        app.send(app.orders, f"add k1 {at}")
    app.flush()
    worker.wait_said("are skipped and noted", DEADLINE_S)
    wait_for(
        "the orders to be folded", lambda: app.states()[0][1].applied == (-1, 2), DEADLINE_S, worker.tail
    )
    app.send(app.customers, "add k1 9")
    app.flush()
    wait_for(
        "a customer behind it", lambda: app.states()[0][1].applied == (HIDDEN, 2), DEADLINE_S, worker.tail
    )
    verdict = verify(app.joined, app.settings)
    assert (verdict.equal, verdict.records, verdict.skipped) == (True, 4, HIDDEN)


@pytest.mark.variant
def test_standbys_serve_a_table_of_several_sources_and_report_each_position(join: MakeJoin) -> None:
    app = join(partitions=1, standbys=1)
    fleet = [app.worker().start() for _ in range(2)]
    for worker in fleet:
        worker.wait_ready()
    app.write(100, seed=3)
    app.prove()
    customers, orders = app.ends()[0]
    asked = f"/tables/joined/0/scan?at-offset={app.customers}:{customers},{app.orders}:{orders}&stale-ok=0"

    def answers() -> list[dict[str, Any]] | None:
        told = [worker.ask(asked) for worker in fleet]
        return (
            [json.loads(text) for status, text in told if status == 200]
            if all(status == 200 for status, _ in told)
            else None
        )

    one, other = wait_for("both to answer", answers, DEADLINE_S, app.tails)
    assert {one["role"], other["role"]} == {"active", "standby"}
    assert one["rows"] == other["rows"] != []
    assert one["as_of"] == other["as_of"] == {app.customers: customers, app.orders: orders}
    assert one["as_of_offset"] == customers + orders + 1
    behind = f"/tables/joined/0/scan?at-offset={app.orders}:{orders + 1000}&timeout-ms=10"
    assert any(f"not yet {app.orders}:" in worker.ask(behind)[1] for worker in fleet)

    def lags() -> set[float]:
        told = [*fleet[0].metric(LAG).items(), *fleet[1].metric(LAG).items()]
        return {value for labels, value in told if app.orders in labels or app.customers in labels}

    wait_for("no lag", lambda: lags() == {0.0}, DEADLINE_S, app.tails)


def test_workers_refuse_sources_of_unequal_partition_counts(join: MakeJoin) -> None:
    app = join(partitions=2)
    add_partitions(app.broker.client_config(), app.orders, 3)
    worker = app.worker().start()
    assert worker.wait_exit(DEADLINE_S) != 0
    assert worker.said(f"{app.customers} has 2 partitions but {app.orders} has 3")
