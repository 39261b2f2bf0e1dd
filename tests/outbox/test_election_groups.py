"""The groups of harvesters: names of their own, members of another kind, and earlier releases at the same
time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from holdfast.config import Settings
from holdfast.core.kafka.grants import Grant, Operation, Pattern, Resource
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.kafka.group_members import may_join, others_in
from holdfast.outbox.grants import harvester_grants
from holdfast.outbox.harvest.harvester import Harvester, Strategy
from tests.outbox.databases import FreshOutbox, url_of
from tests.outbox.embedded import Bench, bench
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.secured import Guarded

PROMPT_S = 2.0


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with bench(FreshOutbox.make(url_of("sqlite", request, tmp_path))) as made:
        yield made


def worker(kafka: EmbeddedKafka, group: str, topic: str = "orders", **more: Any) -> Consumer:
    """Return a member of *group* as a worker of an application would be."""
    config = {"group.id": group, "client.id": "the-worker", "partition.assignment.strategy": "range"}
    consumer = Consumer(kafka.client_config(**config, **more))
    consumer.subscribe([topic])
    wait_for("an assignment", lambda: bool(consumer.poll(0.05) or consumer.assignment()), DEADLINE_S)
    return consumer


def test_a_group_is_not_named_as_an_application_unless_someone_says_so(desk: Bench) -> None:
    settings = desk.settings()
    assert settings.election().group_id == "shop.harvesters"
    assert desk.settings(group_id="mine").election().group_id == "mine"
    of_reapers = Bench(desk.kafka, FreshOutbox(url="sqlite://", table="o", layout=desk.outbox.layout))
    shared = replace(of_reapers.settings(), layout="goharvest", strategy=Strategy.MARK, interop=True)
    assert shared.election().group_id == "shop", "goharvest's processes name it so"
    grants = [each.name for each in harvester_grants(settings, []) if each.resource is Resource.GROUP]
    assert grants == ["shop.harvesters"]


def test_a_harvester_named_as_an_application_works_alongside_its_worker(desk: Bench) -> None:
    member = worker(desk.kafka, "shop")
    try:
        desk.write("one")
        with Harvester(desk.settings(heartbeat_timeout_s=PROMPT_S)):
            wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S)
        assert member.assignment(), "the worker kept its group"
    finally:
        member.close()


def test_a_harvester_in_a_group_of_workers_says_who_is_there(
    desk: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    member = worker(desk.kafka, "shop")

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if "of another kind" in each.getMessage()]

    try:
        with Harvester(desk.settings(group_id="shop", heartbeat_timeout_s=PROMPT_S)):
            wait_for("what it says", lambda: bool(said()), DEADLINE_S, lambda: caplog.text)
        (line,) = said()
        assert "group shop" in line
        assert "client the-worker at" in line
        assert "reads orders" in line
        assert "check that the broker is reachable" not in line
    finally:
        member.close()


def test_the_members_of_a_group_are_named_as_far_as_they_are_known(desk: Bench) -> None:
    config = desk.kafka.client_config()
    assert "none by now" in others_in(config, "empty", "worker")
    assert may_join(config, "empty")


def test_harvesters_of_two_groups_lead_one_after_the_other(desk: Bench) -> None:
    """One of 0.1.0, whose group is the outbox's name, and one of this release, while rows are written: no row
    is lost or doubled, and when either ends the other leads.
    """
    values = [f"{at}" for at in range(60)]
    earlier = Harvester(desk.settings(group_id="shop", instance="earlier", heartbeat_timeout_s=PROMPT_S))
    later = Harvester(desk.settings(instance="later", heartbeat_timeout_s=PROMPT_S))

    def write(some: list[str]) -> None:
        for value in some:
            desk.write(value)

    def led_by(harvester: Harvester) -> bool:
        return harvester.leads(0)

    def emptied() -> None:
        wait_for(
            "an empty table", lambda: desk.left() == 0, DEADLINE_S, lambda: f"{earlier.stats} {later.stats}"
        )

    earlier.start()
    try:
        wait_for("a leader", lambda: led_by(earlier), DEADLINE_S)
        write(values[:20])
        later.start()
        wait_for("the later one to lead", lambda: led_by(later), DEADLINE_S)
        wait_for("the earlier one to stand aside", lambda: not led_by(earlier), DEADLINE_S)
        write(values[20:40])
        emptied()
        later.stop()
        wait_for("the earlier one to lead again", lambda: led_by(earlier), DEADLINE_S)
        write(values[40:])
        emptied()
    finally:
        earlier.stop()
        later.stop()
    assert desk.published() == values
    assert earlier.error is later.error is None


def test_the_group_of_earlier_releases_is_joined_where_only_that_was_granted(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    with Guarded.on_embedded() as guarded:
        kafka = guarded.principal("harvester")
        named = Bench(guarded._broker, outbox).settings(heartbeat_timeout_s=PROMPT_S)  # type: ignore[arg-type]
        settings = replace(named, kafka=Settings(kafka=kafka))
        before = [
            each for each in harvester_grants(settings, ["orders"]) if each.resource is not Resource.GROUP
        ]
        before.append(Grant(Resource.GROUP, "shop", Operation.READ, "as 0.1.0 needs it", Pattern.LITERAL))
        guarded.grant("harvester", before)
        made = guarded.admin.create_topics([NewTopic("orders", 1)])
        made["orders"].result(DEADLINE_S)
        with outbox.engine().begin() as connection:
            outbox.writer().write(connection, "orders", key="k", value="v")
        with Harvester(settings) as harvester, outbox.rows() as rows:
            wait_for("an empty table", lambda: rows.count() == 0, DEADLINE_S, lambda: str(harvester.stats))
            assert harvester.election.settings.group_id == "shop"
    assert "may not use group shop.harvesters" in caplog.text
