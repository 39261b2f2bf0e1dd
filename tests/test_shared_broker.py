"""The broker of several test processes: one for all, its address given to each, and protected from all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from holdfast.dev.broker import state
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.broker.state import ClusterState, NodeState
from holdfast.errors import DevBrokerError
from tests.support import shared_broker
from tests.support.patience import DEADLINE_S
from tests.support.shared_broker import Desk, SharedCluster, ask

NODE = NodeState(node_id=1, port=9092, controller_port=9093)


class Nodes:
    """The starts and stops of a desk's cluster, which runs nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Path] = []
        self.stopped: list[Path] = []
        self.error: Exception | None = None
        monkeypatch.setattr(Cluster, "start", lambda cluster: self.start(cluster.folder))
        monkeypatch.setattr(Cluster, "stop", lambda cluster, **_: self.stopped.append(cluster.folder))

    def start(self, folder: Path) -> None:
        if self.error is not None:
            raise self.error
        self.started.append(folder)
        folder.mkdir()
        state.save(folder, ClusterState(kafka="4", cluster_id="c", nodes=[NODE]))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


@pytest.fixture
def desk(nodes: Nodes, tmp_path: Path) -> Iterator[Desk]:
    folder = tmp_path / "desk"
    folder.mkdir()
    opened = Desk(folder)
    yield opened
    if opened._thread.is_alive():
        opened.close()


def test_all_who_ask_at_once_get_one_broker(desk: Desk, nodes: Nodes) -> None:
    assert nodes.started == [], "nothing is started for tests that need no broker"
    told: list[str] = []
    asking = [threading.Thread(target=lambda: told.append(ask(desk.where).bootstrap)) for _ in range(8)]
    for each in asking:
        each.start()
    for each in asking:
        each.join(DEADLINE_S)
    assert told == 8 * ["127.0.0.1:9092"]
    assert len(nodes.started) == 1
    desk.close()
    assert nodes.stopped == nodes.started
    assert not nodes.started[0].exists()


def test_a_broker_that_did_not_start_is_reported_to_each_who_asks_and_tried_again(
    desk: Desk, nodes: Nodes
) -> None:
    nodes.error = OSError("no java")
    for _ in range(2):
        with pytest.raises(DevBrokerError, match="did not start: no java"):
            ask(desk.where)
    nodes.error = None
    assert ask(desk.where).bootstrap
    desk.close()
    assert len(nodes.started) == 1


def test_who_says_nothing_keeps_no_others_waiting(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_broker, "QUESTION_DEADLINE_S", 0.1)
    with Client(desk.where, "AF_UNIX") as silent:
        assert silent.poll(DEADLINE_S), "it is hung up on"
        monkeypatch.setattr(shared_broker, "QUESTION_DEADLINE_S", DEADLINE_S)  # which others may need
        assert ask(desk.where).config


def test_a_desk_of_which_nothing_was_asked_leaves_nothing(desk: Desk, nodes: Nodes) -> None:
    desk.close()
    assert nodes.started == nodes.stopped == []
    assert not Path(desk.where).exists()
    assert not desk._folder.exists()


@pytest.mark.parametrize(
    "disturb",
    [
        lambda cluster: cluster.pause(1),
        lambda cluster: cluster.resume(1),
        lambda cluster: cluster.kill(1),
        lambda cluster: cluster.restart(1),
        lambda cluster: cluster.stop(grace_s=0),
        lambda cluster: cluster.purge(),
        lambda cluster: cluster.start(),
    ],
)
def test_no_test_disturbs_it(desk: Desk, disturb: Callable[[SharedCluster], None]) -> None:
    cluster = shared_broker.ask(desk.where).cluster
    assert isinstance(cluster, SharedCluster)
    with pytest.raises(AssertionError, match="own_broker"):
        disturb(cluster)
