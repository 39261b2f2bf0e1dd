"""How partitions are shared out among workers of which some run another version of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faust.types import TP

from holdfast.agents.app import App, create_app
from holdfast.agents.faust.rebalancing.assignor import BY_WRITER
from holdfast.agents.faust.rebalancing.recovery import share_of
from holdfast.config import Settings
from tests.agents.versioned import versioned

PARTITIONS = 6


class Cluster:
    """What the assignor asks of the cluster."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(PARTITIONS))


def worker(folder: Path, number: int, version: int, *, emits: bool = True) -> App:
    settings = Settings(app="shop", web_port=7000 + number, data_dir=folder / str(number), standbys=1)
    return create_app([versioned("shop", version, emits=emits)], settings)


def topics_of(app: App) -> set[str]:
    return {"shop-in", *app.tables.changelog_topics}


def assignor_of(app: App) -> Any:
    return app.assignor


def shared_out(leader: App, workers: list[App]) -> None:
    """Let *leader* share out partitions, and each worker take its own."""
    members = {str(assignor_of(app)._url): app for app in workers}
    metadata = {url: assignor_of(app).metadata(topics_of(app)) for url, app in members.items()}
    found = assignor_of(leader).assign(Cluster(), metadata)
    for url, app in members.items():
        assignor_of(app).on_assignment(found[url])


@pytest.mark.parametrize("leader", [0, 2])
def test_workers_of_two_versions_agree_on_what_they_were_given(tmp_path: Path, leader: int) -> None:
    workers = [worker(tmp_path, number, 1 + number // 2) for number in range(4)]
    shared_out(workers[leader], workers)
    changelogs = {app.processors["totals"].changelog("shop") for app in workers}
    for app in workers:
        known = [
            at
            for topics in assignor_of(app).tables_metadata().values()
            for changelog in changelogs
            for at in topics.get(changelog, ())
        ]
        assert sorted(known) == [*range(PARTITIONS)], "whoever leads, each knows who has what"


def owned(app: App) -> set[int]:
    """Return the partitions that a worker takes up."""
    assignor, processor = assignor_of(app), app.processors["totals"]
    given = assignor._assignment.kafka_protocol_assignment(assignor._table_manager)
    assigned = {TP(topic, number) for topic, numbers in given for number in numbers}
    told = assignor.owned(processor.changelog("shop"), assigned)
    return {*share_of(processor, "shop", assigned, told).active}


@pytest.mark.parametrize("leader", [0, 2])
def test_versions_that_write_to_the_same_topics_own_each_partition_once(tmp_path: Path, leader: int) -> None:
    workers = [worker(tmp_path, number, 1 + number // 2) for number in range(4)]
    shared_out(workers[leader], workers)
    assert sorted(at for app in workers for at in owned(app)) == [*range(PARTITIONS)]


@pytest.mark.parametrize("leader", [0, 1, 2])
def test_versions_with_writers_of_their_own_own_each_partition_once_each(tmp_path: Path, leader: int) -> None:
    workers = [worker(tmp_path, number, 1 + number // 2, emits=False) for number in range(3)]
    shared_out(workers[leader], workers)
    assert sorted(at for app in workers[:2] for at in owned(app)) == [*range(PARTITIONS)]
    assert owned(workers[2]) == {*range(PARTITIONS)}
    before = [owned(app) for app in workers]
    shared_out(workers[leader], workers)
    assert [owned(app) for app in workers] == before, "nothing moves without need"


def test_workers_of_one_version_share_out_as_faust_does(tmp_path: Path) -> None:
    workers = [worker(tmp_path, number, 2, emits=False) for number in range(3)]
    shared_out(workers[0], workers)
    assert sorted(at for app in workers for at in owned(app)) == [*range(PARTITIONS)]
    assert all(BY_WRITER not in assignor_of(app)._topic_groups for app in workers)
