"""The archive of a node's classes: made once, used by every node, and never in the way of a start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast.dev.broker import archiving, node
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.broker.jars import class_path, find_java
from holdfast.dev.broker.java import Java
from holdfast.errors import DevBrokerError
from holdfast.jars import cache_folder, kafka_jars
from tests.support.parts import part


@pytest.fixture
@part("kafka")
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a cache that has the jars, and no archive yet."""
    known = kafka_jars()[0].parent
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / known.name).symlink_to(known)
    monkeypatch.setenv("HOLDFAST_CACHE", str(folder))
    assert cache_folder() == folder
    return folder


def archives(cache: Path) -> list[Path]:
    return sorted((cache / "classes").glob("*.jsa"))


@pytest.mark.variant
def test_the_first_start_makes_an_archive_which_every_node_then_runs_with(
    cache: Path, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "first", short_lived=True) as cluster:
        (made,) = archives(cache)
        (running,) = cluster.status()
        maps = Path(f"/proc/{running.pid}/maps")
        assert not maps.exists() or str(made) in maps.read_text()
        before = made.stat().st_ino
        assert f"-XX:SharedArchiveFile={made}" in archiving.prepare().sharing
        assert made.stat().st_ino == before
    assert not [*(cache / "classes").glob("node-*")]


@pytest.mark.variant
def test_an_archive_that_the_jvm_refuses_stops_no_node_and_is_not_talked_about(
    cache: Path, tmp_path: Path
) -> None:
    java = Java(program=find_java(), class_path=class_path())
    archive = archiving._archive(cache / "classes", java).path
    archive.parent.mkdir()
    archive.write_bytes(b"not an archive" * 1000)
    with Cluster(tmp_path / "node", short_lived=True) as cluster:
        assert [each.condition for each in cluster.status()] == ["running"]
        assert (tmp_path / "node" / "node-1" / "console.log").read_text() == ""


def test_an_archive_that_cannot_be_made_is_reported_and_stops_no_node(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DevBrokerError("node 1 was not ready in time")

    monkeypatch.setattr(node, "wait_ready", refuse)
    with caplog.at_level(logging.WARNING, logger=archiving.__name__):
        assert archiving.prepare().sharing == ()
    (told,) = caplog.messages
    assert "no archive of their classes was made: node 1 was not ready in time" in told
    assert archives(cache) == []
