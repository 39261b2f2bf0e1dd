"""The assignment of partitions to workers of which some run another version of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP

from holdfast.agents.app import App, create_app
from holdfast.agents.faust.rebalancing import telling
from holdfast.agents.faust.rebalancing.assignor import BY_WRITER
from holdfast.agents.faust.rebalancing.group import FaustGroup
from holdfast.agents.faust.rebalancing.recovery import share_of
from holdfast.config import Settings
from tests.agents.versioned import versioned

PARTITIONS = 6


class Cluster:
    """The assignor's calls to the cluster."""

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


def group_of(app: App) -> FaustGroup:
    return FaustGroup(app, app.settings, app.processors)


def told(app: App) -> dict[str, dict[str, list[int]]]:
    """Return the parts of the last assignment about other workers' tables."""
    return dict(assignor_of(app).tables_metadata())


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker's record of a group be too small to send all members everything."""
    monkeypatch.setattr(telling, "LIMIT_TOLD_BYTES", 100)


@pytest.mark.usefixtures("little")
def test_members_of_a_large_group_learn_of_the_partitions_that_they_have(tmp_path: Path) -> None:
    workers = [worker(tmp_path, number, 2, emits=False) for number in range(3)]
    shared_out(workers[0], workers)
    assert sorted(at for app in workers for at in owned(app)) == [*range(PARTITIONS)]
    for app in workers:
        changelog = app.processors["totals"].changelog("shop")
        own = owned(app) | {*assignor_of(app)._assignment.standbys[changelog]}
        known = {at for topics in told(app).values() for at in topics.get(changelog, ())}
        assert known == own < {*range(PARTITIONS)}
        assert group_of(app).awaited() == []
        assert {each for each in range(PARTITIONS) if group_of(app).who_owns("totals", each)} == own


@pytest.mark.parametrize("leader", [0, 2])
@pytest.mark.parametrize("emits", [True, False])
def test_members_of_a_large_group_know_who_folds_an_earlier_version_of_what_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leader: int, *, emits: bool
) -> None:
    workers = [worker(tmp_path, number, 1 + number // 2, emits=emits) for number in range(4)]
    known = []
    for limit in (telling.LIMIT_TOLD_BYTES, 100):
        monkeypatch.setattr(telling, "LIMIT_TOLD_BYTES", limit)
        shared_out(workers[leader], workers)
        known.append(
            [
                (group_of(app).who_folds(changelog, each), each in owned(app))
                for app in workers
                for changelog in ("shop-totals.v1-changelog", "shop-totals.v2-changelog")
                for each in sorted(owned(app))
            ]
        )
    assert known[0] == known[1], "all that a worker asks of its own partitions is told in both ways"
    assert any(url for url, _ in known[1])


def metadata_of(app: App, url: str) -> Any:
    """Return the metadata that a member like *app* at *url* sends to the leader."""
    found = assignor_of(app).metadata(topics_of(app))
    return type(found)(
        found.version, found.subscription, json.dumps({**json.loads(found.user_data), "url": url}).encode()
    )


def test_the_metadata_of_a_large_group_grows_with_its_partitions_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, sizes = worker(tmp_path, 0, 1), dict[tuple[int, int], int]()
    for members in (10, 20):
        numbers = {*range(10 * members)}
        monkeypatch.setattr(Cluster, "partitions_for_topic", lambda self, topic, numbers=numbers: numbers)
        urls = [f"http://worker-{each}:6066" for each in range(members)]
        told = {url: metadata_of(app, url) for url in urls}
        for limit in (10**9, 100):
            monkeypatch.setattr(telling, "LIMIT_TOLD_BYTES", limit)
            found = assignor_of(app).assign(Cluster(), told)
            sizes[members, limit] = sum(len(each.user_data) for each in found.values())
    assert sizes[20, 100] < 2.5 * sizes[10, 100]
    assert sizes[20, 10**9] > 2.5 * sizes[10, 10**9]
