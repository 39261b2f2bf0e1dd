"""A table of two sources that workers have folded is folded again: up to any position that it had."""

from __future__ import annotations

import json

import pytest

from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import read_live
from tests.chaos.conftest import MakeJoin


@pytest.mark.slow
def test_a_replay_comes_back_to_where_the_table_was(join: MakeJoin) -> None:
    app = join()
    worker = app.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(3)
    app.write(400, seed=3)
    app.wait_folded()
    then = read_live(app.joined, app.settings)
    vectors = {each.partition: each.marker for each in then}
    app.write_late_orders(2)
    app.write(400, seed=4)
    app.prove()
    worker.stop()

    digests = {each.partition: each.digest for each in then}
    at_positions = replay(app.joined, app.settings, ReplayOptions(positions=vectors))
    assert {each.partition: each.digest for each in at_positions.partitions} == digests
    assert [each.choices for each in at_positions.partitions] == [each.choices for each in vectors.values()]

    sources = {
        partition: dict(zip(app.joined.topics, marker.applied, strict=True))
        for partition, marker in vectors.items()
    }
    named = replay(app.joined, app.settings, ReplayOptions(until=Until(sources=sources)))
    assert {each.partition: each.digest for each in named.partitions} == digests
    # The latest of all times up to there: no later record was appended before it.
    for partition, marker in vectors.items():
        timed = replay(
            app.joined,
            app.settings,
            ReplayOptions(
                until=Until(at_ms=max(*marker.reached_ms, marker.tick_ms)), partitions=(partition,)
            ),
        )
        assert [each.digest for each in timed.partitions] == [digests[partition]]

    text = ",".join(f"{p}:{topic}:{last}" for p, each in sources.items() for topic, last in each.items())
    told = json.loads(app.command("replay", "joined", "--until", text, "--output", "json").stdout)
    assert {each["partition"]: each["digest"] for each in told["partitions"]} == digests
    refused = app.command("replay", "joined", "--until", "0:5")
    assert f"an offset is one of them: write 0:{app.customers}:5" in refused.stderr
