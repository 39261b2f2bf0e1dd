"""A hostile producer writes to every topic it may, during kills and replacements of workers: no record is
lost or doubled, and no worker stops.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.dev import parent_death
from holdfast.kafka.reading.skip_log import read_skips
from tests.chaos.conftest import MakeApplication
from tests.chaos.hostile import BOMB_BYTES, HOSTILE
from tests.chaos.test_bombs import resident_bytes
from tests.chaos.test_rebalances import wait_settled
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.proof import prove, read_topic

PARTITIONS = 4
MIB = 1 << 20
LIMIT_GROWTH_BYTES = 424 * MIB
"""Growth that docs/operating.md, "Memory", allows in addition to an idle worker and its stores
(tests/chaos/test_bombs.py).
"""
NOTE = "holdfast-processor"


@contextmanager
def harm(app: Application, seed: int, rounds: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the hostile producer during the block; it must have written something and ended well."""
    arguments = [
        app.broker.bootstrap,
        app.name,
        app.source,
        app.out,
        *map(str, (app.partitions, seed, rounds)),
    ]
    process = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            parent_death.__file__,
            str(os.getpid()),
            sys.executable,
            "-P",
            "-m",
            "tests.chaos.hostile",
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, "the hostile producer failed"
        assert int(out) > 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE_S)


def all_decided(app: Application) -> bool:
    """Return whether no transaction is open in the source: committed reads end at an open one."""
    admin = AdminClient(app.broker.client_config())
    places = {TopicPartition(app.source, number): OffsetSpec.latest() for number in range(app.partitions)}  # type: ignore[no-untyped-call]
    ends = [
        {
            place.partition: found.result(DEADLINE_S).offset
            for place, found in admin.list_offsets(places, isolation_level=level).items()
        }
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    return ends[0] == ends[1]


def prove_beside_harm(app: Application, acked: int) -> None:
    """Prove the tables, that the load is complete, and that forged records are ignored."""
    idle_or_more = max(resident_bytes(worker, "VmHWM") for worker in app.live)
    assert idle_or_more < 130 * MIB + LIMIT_GROWTH_BYTES, f"a worker took {idle_or_more >> 20} MiB"
    counts = app.processors[0]
    with BlockingTableClient(app.settings, [counts]) as tables:
        assert tables.get(counts, "k1", partition=1, timeout_s=DEADLINE_S).value is not None, (
            "forged workers hide the true one"
        )
    wait_for(
        "the hostile producer's transactions to be over", lambda: all_decided(app), DEADLINE_S, app.tails
    )
    source = [message for messages in read_topic(app.broker, app.source).values() for message in messages]
    loaded = [
        message
        for message in source
        if message.key() is not None and HOSTILE not in dict(message.headers() or ())
    ]
    assert len(loaded) == acked, "the load is not in the source as it was written"
    assert len(source) > acked
    prove(app, noted=NOTE)


@pytest.mark.slow
def test_a_hostile_producer_changes_no_count_and_stops_no_worker(application: MakeApplication) -> None:
    app = application(partitions=PARTITIONS)
    fleet = [app.worker().start(), app.worker().start()]
    load = app.load(rate=1_000, limit=8_000, seed=91)
    with harm(app, seed=91, rounds=20) as producer:
        wait_settled(app)
        wait_for("the hostile producer's end", lambda: producer.poll() is not None, DEADLINE_S, app.tails)
        fleet[0].kill()
        wait_settled(app)
        fleet[0].start()
    acked = load.wait()
    wait_settled(app)
    assert all(worker.running for worker in fleet), app.tails()
    prove_beside_harm(app, acked)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [92, 93])
def test_a_hostile_producer_during_kills_and_freezes_with_bombs_to_be_skipped(
    application: MakeApplication, seed: int
) -> None:
    chance = random.Random(seed)
    app = application(
        partitions=PARTITIONS, standbys=1, unpacked_batch_bytes=BOMB_BYTES // 2, unreadable="quarantine"
    )
    fleet = [app.worker().start() for _ in range(3)]
    load = app.load(rate=1_000, seed=seed)
    wait_settled(app)
    with harm(app, seed=seed, rounds=100_000) as producer:
        for _ in range(12):
            victim = chance.choice(fleet)
            if chance.random() < 0.5:
                victim.kill()
                victim.start()
            else:
                victim.signal(signal.SIGSTOP)
                chance.choice([each for each in fleet if each is not victim]).wait_ready(DEADLINE_S)
                victim.signal(signal.SIGCONT)
            wait_settled(app)
            assert producer.poll() is None, "the hostile producer failed"
    acked = load.stop()
    wait_settled(app)
    assert len(read_skips(app.settings)) > 0, "no bomb was met"
    prove_beside_harm(app, acked)
