"""An archive of classes is made once, kept when whole, and replaces those of earlier versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.class_archive import ClassArchive


@pytest.fixture
def java(tmp_path: Path) -> Path:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "jdk" / "release").write_text("JAVA_VERSION=17.0.1")
    (tmp_path / "archives").mkdir()
    return program


def test_an_archive_is_made_once_kept_when_whole_and_replaces_older_ones(tmp_path: Path, java: Path) -> None:
    first = ClassArchive.of(tmp_path / "archives", java, ["a.jar"])
    assert first.made_at is not None
    assert f"-XX:ArchiveClassesAtExit={first.made_at}" in first.flags()
    first.keep()
    assert not first.path.exists(), "the JVM died before it wrote the archive"
    old = first.path.with_name("classes-0000.jsa")
    old.write_bytes(b"old")
    first.made_at.write_bytes(b"archive")
    first.keep()
    assert sorted(each.name for each in first.path.parent.iterdir()) == [first.path.name]
    again = ClassArchive.of(tmp_path / "archives", java, ["a.jar"])
    assert f"-XX:SharedArchiveFile={first.path}" in again.flags()
    again.keep()
    assert first.path.read_bytes() == b"archive"


def test_another_class_path_or_another_jdk_has_another_archive(tmp_path: Path, java: Path) -> None:
    def name(*class_path: str) -> str:
        return ClassArchive.of(tmp_path / "archives", java, class_path).path.name

    first = name("a.jar")
    assert name("b.jar") != first
    (tmp_path / "jdk" / "release").write_text("JAVA_VERSION=17.0.2")
    assert name("a.jar") != first
