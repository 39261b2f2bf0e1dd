"""New nodes take a copy of what Kafka's tool wrote once; what the copy cannot hold is formatted by the
tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.dev.broker import formatting, jars, node, state
from holdfast.dev.broker.java import Java
from holdfast.dev.broker.state import ClusterState, Credentials, NodeState
from holdfast.errors import DevBrokerError

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def kafka() -> Java:
    """Give the Java of nodes."""
    return Java(program=jars.find_java(), class_path=jars.class_path())


@pytest.fixture
def refuses(kafka: Java) -> Java:
    """Give a Java that runs nothing, on the same jars."""
    return replace(kafka, program=Path("/bin/false"))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a cache of this module's tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(formatting, "cache_folder", lambda: folder)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def first(tmp_path_factory: pytest.TempPathFactory, kafka: Java, cache: Path) -> tuple[Path, ClusterState]:
    """Give the folder that Kafka's tool has formatted, and its cluster."""
    folder = tmp_path_factory.mktemp("first")
    return folder, formatted(folder, kafka)


def formatted(folder: Path, java: Java, *, nodes: int = 1, **more: Any) -> ClusterState:
    """Format the nodes of a new cluster in *folder*."""
    cluster = ClusterState(
        kafka=jars.KAFKA_VERSION,
        cluster_id=state.new_cluster_id(),
        nodes=[NodeState(node_id=each + 1, port=9092, controller_port=9093) for each in range(nodes)],
        heap_max_mb=256,
        **more,
    )
    for each in cluster.nodes:
        node.write_settings(cluster, each, folder)
    formatting.format_storage(cluster, folder, java)
    return cluster


def files(folder: Path, number: int = 1) -> tuple[bytes, dict[str, str]]:
    """Return the checkpoint and the identity of a node."""
    data = folder / f"node-{number}" / "data"
    lines = (data / "meta.properties").read_text().splitlines()
    meta = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert sorted(each.name for each in data.iterdir()) == ["bootstrap.checkpoint", "meta.properties"]
    return (data / "bootstrap.checkpoint").read_bytes(), meta


def test_later_nodes_have_what_kafkas_tool_wrote_and_ids_of_their_own(
    tmp_path: Path, first: tuple[Path, ClusterState], refuses: Java
) -> None:
    checkpoint, meta = files(first[0])
    later = formatted(tmp_path, refuses, nodes=3)
    copies = [files(tmp_path, number) for number in (1, 2, 3)]
    assert [each for each, _ in copies] == 3 * [checkpoint]
    assert [each.keys() for _, each in copies] == 3 * [meta.keys()]
    assert meta["cluster.id"] == first[1].cluster_id
    assert [each["cluster.id"] for _, each in copies] == 3 * [later.cluster_id]
    assert [each["node.id"] for _, each in copies] == ["1", "2", "3"]
    assert [each["version"] for _, each in copies] == 3 * [meta["version"]]
    directories = {each["directory.id"] for each in (meta, *(each for _, each in copies))}
    assert len(directories) == 4
    assert {len(each) for each in directories} == {22}


@pytest.mark.parametrize(
    "more",
    [
        {"credentials": Credentials(password="p"), "store_password": "s"},
        {"properties": {"num.partitions": "9"}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_users_and_properties_are_for_kafkas_tool(
    more: dict[str, Any], tmp_path: Path, refuses: Java
) -> None:
    with pytest.raises(DevBrokerError, match="formatting"):
        formatted(tmp_path, refuses, **more)


def test_a_formatted_folder_stays_as_it_is(first: tuple[Path, ClusterState], kafka: Java) -> None:
    folder, cluster = first
    before = files(folder)
    formatting.format_storage(cluster, folder, kafka)
    assert files(folder) == before


def test_other_jars_and_an_empty_copy_are_for_kafkas_tool(
    tmp_path: Path, refuses: Java, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DevBrokerError, match="formatting"):
        formatted(tmp_path / "jars", replace(refuses, class_path=f"{refuses.class_path}:more.jar"))
    (kept,) = (cache / "formatted").iterdir()
    monkeypatch.setattr(formatting, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "cache" / "formatted").mkdir(parents=True)
    (tmp_path / "cache" / "formatted" / kept.name).write_bytes(b"")
    with pytest.raises(DevBrokerError, match="formatting"):
        formatted(tmp_path / "empty", refuses)


def test_what_kafkas_tool_writes_otherwise_is_not_copied(
    tmp_path: Path, first: tuple[Path, ClusterState], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = first[0] / "node-1" / "data"
    meta = (data / "meta.properties").read_text()
    for changed in (meta + "more=1\n", meta.replace("version=1", "version=2")):
        newer = tmp_path / "data"
        newer.mkdir(exist_ok=True)
        (newer / "meta.properties").write_text(changed)
        (newer / "bootstrap.checkpoint").write_bytes((data / "bootstrap.checkpoint").read_bytes())
        formatting._keep(newer, tmp_path / "kept")
        assert not (tmp_path / "kept").exists(), changed
    formatting._keep(data, tmp_path / "kept")
    assert (tmp_path / "kept").exists()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, first: tuple[Path, ClusterState]) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    formatting._keep(first[0] / "node-1" / "data", tmp_path / "cache" / "formatted" / "kept")
    assert formatting._read(tmp_path / "cache" / "formatted" / "kept") is None
