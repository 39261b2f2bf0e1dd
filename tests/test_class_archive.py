"""An archive of classes is made once, kept when whole, and replaces those that were used longest ago."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.class_archive import ARCHIVES_KEPT, ClassArchive, shared_classes
from holdfast.errors import DevBrokerError, JarError
from tests.support.patience import DEADLINE_S


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


def test_programs_that_start_at_once_share_an_archive_that_one_of_them_makes(
    tmp_path: Path, java: Path
) -> None:
    made: list[str] = []
    all_looked = threading.Barrier(4)
    looked = threading.local()

    def here() -> ClassArchive:
        return ClassArchive.of(tmp_path / "archives", java, ["a.jar"])

    def of() -> ClassArchive:
        found = here()
        if not hasattr(looked, "at"):
            # no program begins before all have seen that there is no archive
            looked.at = all_looked.wait(DEADLINE_S)
        return found

    def run_once(sharing: list[str]) -> None:
        made.append(sharing[0])
        time.sleep(0.1)  # others that did not wait for this one would begin too
        Path(sharing[0].partition("=")[2]).write_bytes(b"archive")

    with ThreadPoolExecutor(4) as pool:
        told = [pool.submit(shared_classes, of, run_once, deadline_s=DEADLINE_S) for _ in range(4)]
        flags = {each.result(DEADLINE_S) for each in told}
    assert flags == {tuple(here().flags())}
    assert f"-XX:SharedArchiveFile={here().path}" in flags.pop()
    (making,) = made
    assert making.startswith("-XX:ArchiveClassesAtExit=")


def test_without_an_archive_programs_do_without_and_the_next_one_tries_again(
    tmp_path: Path, java: Path
) -> None:
    def of() -> ClassArchive:
        return ClassArchive.of(tmp_path / "archives", java, ["a.jar"])

    def fails(_: list[str]) -> None:
        raise DevBrokerError("it did not answer")

    assert shared_classes(of, lambda _: None, deadline_s=1) == (), "the JVM died before it wrote the archive"
    with pytest.raises(DevBrokerError, match="it did not answer"):
        shared_classes(of, fails, deadline_s=1)
    with (tmp_path / "archives" / "making.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(JarError, match=r"making\.lock for too long"):
            shared_classes(of, fails, deadline_s=0)
