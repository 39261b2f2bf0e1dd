"""An archive of classes is made once, kept when whole, and replaces those that were used longest ago."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.class_archive import ARCHIVES_KEPT, ClassArchive


@pytest.fixture
def java(tmp_path: Path) -> Path:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "jdk" / "release").write_text("JAVA_VERSION=17.0.1")
    (tmp_path / "archives").mkdir()
    return program


def test_an_archive_is_made_once_and_kept_when_whole(tmp_path: Path, java: Path) -> None:
    first = ClassArchive.of(tmp_path / "archives", java, ["a.jar"])
    assert first.made_at is not None
    assert f"-XX:ArchiveClassesAtExit={first.made_at}" in first.flags()
    first.keep()
    assert not first.path.exists(), "the JVM died before it wrote the archive"
    first.path.with_suffix(".0.making").write_bytes(b"of a JVM that died while writing")
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


def test_archives_of_other_environments_stay_until_others_are_used_more_lately(
    tmp_path: Path, java: Path
) -> None:
    def of(*class_path: str) -> ClassArchive:
        return ClassArchive.of(tmp_path / "archives", java, class_path)

    def make(name: str, used_at_s: int) -> ClassArchive:
        archive = of(name)
        assert archive.made_at is not None
        archive.made_at.write_bytes(name.encode())
        archive.keep()
        os.utime(archive.path, (used_at_s, used_at_s))
        return archive

    made = [make(f"{number}.jar", used_at_s=1_000 + number) for number in range(ARCHIVES_KEPT)]
    assert all(each.path.exists() for each in made), "environments that take turns do without each other's"
    assert of("0.jar").made_at is None, "and it has been used now"
    last = make("last.jar", used_at_s=2_000)
    kept = [made[0].path, *(each.path for each in made[2:]), last.path]
    assert sorted(last.path.parent.iterdir()) == sorted(kept)
