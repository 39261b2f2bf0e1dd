"""A table of several sources that begins at an offset in each: where a Faust application ended, or at a time.
The order of the sources from there on is decided and recorded as ever.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.tables.taking import FaustTakeover, OldTable
from holdfast.cli.topics.resetting import ApplicationReset
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.clock import system_clock
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import ConfigError
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import TableVerdict, read_live, verify
from tests.chaos.joining import Known
from tests.support.harness import running
from tests.support.joining_app import JoinApplication
from tests.support.patience import DEADLINE_S

LOCAL = ReplayOptions(engine="local")
RECORDS, TAKEN = 120, 20


@pytest.fixture
def app(broker: SessionBroker, tmp_path: Path) -> Iterator[JoinApplication]:
    made = JoinApplication(broker, tmp_path, rates=True)
    with running(made):
        yield made.create_topics()


def lived(app: JoinApplication) -> TableVerdict:
    """Return the verdict of `verify` on a worker that has folded all records, with wrong guesses of their
    order.
    """
    worker = app.worker().start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(1)
    app.write(RECORDS, seed=9)
    app.wait_folded()
    worker.stop()
    verdict = verify(app.joined, app.settings, LOCAL)
    assert verdict.equal, [each.explain() for each in verdict.partitions]
    assert verdict.partial == ()
    assert any(marker.choices for _, marker in app.states().values()), "a toy: no order was decided"
    return verdict


class OldJoins:
    """The remains of a Faust application: a table that counts, and its committed offset in each source."""

    def __init__(self, app: JoinApplication) -> None:
        self._app = app
        changelog = f"{app.name}-met-changelog"
        app.broker.create_topic(changelog, partitions=app.partitions, exact=True)
        producer = Producer(app.broker.client_config())
        for partition in range(app.partitions):
            producer.produce(changelog, b"%d" % (40 + partition), b'"k%d"' % partition, partition)
        assert producer.flush(DEADLINE_S) == 0
        self.stood = {
            (topic, at): TAKEN + 5 * number
            for number, topic in enumerate(app.joined.topics)
            for at in range(app.partitions)
        }
        CommittedOffsets(app.settings, app.name, timeout_s=DEADLINE_S).commit(self.stood)

    def takeover(self, processor: Processor[Any, Any]) -> FaustTakeover:
        def known(key: str, count: int) -> tuple[str, Known]:
            return key, Known(0, count)

        table = OldTable(name="met", rows=known)
        return FaustTakeover(processor, self._app.settings, group=self._app.name, table=table)


@pytest.mark.variant
def test_a_table_taken_over_continues_in_each_source_and_is_a_function_of_its_base(
    app: JoinApplication,
) -> None:
    app.write(4 * RECORDS, seed=8)
    old = OldJoins(app)
    takeover = old.takeover(app.joined)
    first, *_ = takeover.plan()
    asyncio.run(takeover.write(first))
    assert [each.done for each in takeover.plan()] == [True, False], "a take-over that was cut goes on"
    for each in takeover.plan()[1:]:
        asyncio.run(takeover.write(each))
    for at, (_, marker) in app.states().items():
        assert marker.applied == tuple(old.stood[topic, at] - 1 for topic in app.joined.topics)
        assert all(each > 0 for each in marker.reached_ms)
        assert (marker.stream_ms, marker.last) == (max(marker.reached_ms), -1)
    verdict = lived(app)
    places = ", ".join(f"{topic} {old.stood[topic, 0] - 1}" for topic in app.joined.topics)
    of = f"table met of Faust application {app.name} behind the offsets {places}"
    assert [re.sub("base: [0-2] rows", "base: rows", each) for each in verdict.bases] == [
        f"partition {at} from base: rows and timers of {of}" for at in range(app.partitions)
    ]
    behind = sum(last + 1 for ends in app.ends().values() for last in ends) - sum(old.stood.values())
    assert replay(app.joined, app.settings, LOCAL).records == behind
    with pytest.raises(ConfigError, match="has a state already"):
        takeover.plan()
    with pytest.raises(ConfigError, match=r"has choices of an order in which .* give the processor another"):
        old.takeover(next_version(app)).plan()


def next_version(app: JoinApplication) -> Processor[Any, Known]:
    app.raise_version(2)
    return app.joined


def test_a_reset_to_a_time_sets_each_sources_offset_and_verify_names_it(app: JoinApplication) -> None:
    app.write(2 * RECORDS, seed=8)
    before = app.ends()
    time.sleep(0.01)  # else the last batch may have been appended within the same ms
    middle_ms = system_clock.now_ms()
    app.write(RECORDS, seed=10)
    settings = replace(app.settings, data_dir=app.worker().data)
    reset = ApplicationReset(settings, app.processors, empty_outputs=True, to_ms=middle_ms)
    reset.check()
    (place,) = [step.name for step in reset.steps() if step.action == "place"]
    customers = f"{app.customers}/0 from offset {before[0][0] + 1}, {app.orders}/0 from offset"
    assert place.startswith(f"joined.v1: {customers} {before[0][1] + 1}, {app.customers}/1"), place
    for step in reset.steps():
        step.do()
    assert {at: marker.applied for at, (_, marker) in app.states().items()} == before
    verdict = lived(app)
    assert f"no table, {reset._told_place} behind the offsets" in verdict.bases[0]
    for each in read_live(app.joined, app.settings):
        assert each.marker.reached_ms
        assert each.base is not None
        assert dict(each.base.sources) == dict(zip(app.joined.topics, before[each.partition], strict=True))


def test_sources_of_unequal_width_are_not_taken_over(app: JoinApplication) -> None:
    app.write(RECORDS, seed=8)
    old, wide = OldJoins(app), f"{app.name}-wide"
    app.broker.create_topic(wide, partitions=app.partitions + 1, exact=True)

    def fold(*_: Any) -> None:
        """Nothing."""

    on = {Source(topic, Text()): fold for topic in (app.orders, wide)}
    uneven: Processor[Any, Any] = Processor(name="uneven", on=on, row=Known)
    with pytest.raises(ConfigError, match=f"{app.orders} has 2 partitions, {wide} has 3 partitions: those"):
        old.takeover(uneven).plan()
