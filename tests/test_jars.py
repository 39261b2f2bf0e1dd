"""Jars by checksum, from a real Maven repository on loopback: once per user, never
unverified.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import jars
from holdfast.errors import JarChecksumError, JarError, JavaMissingError
from tests.dev.maven import Repository
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HOLDFAST_CACHE", str(folder))
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    repository = Repository(tmp_path / "repository")
    with repository.served():
        monkeypatch.setenv("HOLDFAST_MAVEN_REPOSITORY", repository.address)
        yield repository


def lock(folder: Path, *lines: str) -> Path:
    path = folder / "some.lock"
    path.write_text("name some-1\n# a comment\n\n" + "\n".join(lines) + "\n")
    return path


def unreachable() -> str:
    """Return an address on loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_jars_are_fetched_once_and_then_need_neither_network_nor_java(
    repository: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = [
        repository.publish("org.one:alpha:1.0", b"alpha"),
        repository.publish("org.two:beta_2.13:2.0", b"beta"),
    ]
    said: list[str] = []
    path = lock(tmp_path, *pins)
    paths = jars.resolve(path, progress=said.append)
    assert [(each.name, each.read_bytes()) for each in paths] == [
        ("alpha-1.0.jar", b"alpha"),
        ("beta_2.13-2.0.jar", b"beta"),
    ]
    assert len(said) == 1
    assert [each.name for each in (cache / "some-1").iterdir() if each.suffix != ".jar"] == [], (
        "nothing temporary is left"
    )
    monkeypatch.setenv("HOLDFAST_MAVEN_REPOSITORY", unreachable())
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert jars.resolve(path, progress=said.append) == paths
    assert len(said) == 1


def test_a_jar_with_other_bytes_than_the_lock_file_says_is_refused_and_not_kept(
    repository: Repository, cache: Path, tmp_path: Path
) -> None:
    pins = [
        repository.publish("org.one:alpha:1.0", b"alpha"),
        repository.publish("org.two:beta:2.0", b"beta"),
    ]
    repository.publish("org.two:beta:2.0", b"a parasite")
    with pytest.raises(JarChecksumError, match=r"org\.two:beta:2\.0: SHA-256 is .* the lock file says"):
        jars.resolve(lock(tmp_path, *pins))
    assert list((cache / "some-1").iterdir()) == [], "not even the good one, for they belong together"


def test_a_damaged_file_in_the_cache_is_fetched_again(
    repository: Repository, cache: Path, tmp_path: Path
) -> None:
    path = lock(
        tmp_path,
        repository.publish("org.one:alpha:1.0", b"alpha"),
        repository.publish("org.two:beta:2.0", b"beta"),
    )
    alpha, _ = jars.resolve(path)
    alpha.write_bytes(b"alp")
    assert jars.resolve(path)[0].read_bytes() == b"alpha"
    assert (repository.fetched["alpha-1.0.jar"], repository.fetched["beta-2.0.jar"]) == (2, 1)


def test_two_processes_at_once_fetch_once(repository: Repository, cache: Path, tmp_path: Path) -> None:
    path = lock(tmp_path, repository.publish("org.one:alpha:1.0", b"alpha" * 200_000))
    code = (
        "import sys; from pathlib import Path; from holdfast import jars;"
        f" print(jars.resolve(Path({str(path)!r}), progress=print)[-1])"
    )
    both = [
        subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [each.communicate(timeout=DEADLINE_S)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert all(output.splitlines()[-1] == str(cache / "some-1/alpha-1.0.jar") for output in outputs)
    assert sum("fetching 1 jars" in output for output in outputs) == 1
    assert repository.fetched["alpha-1.0.jar"] == 1


def test_waiting_for_another_process_has_a_deadline(
    repository: Repository, cache: Path, tmp_path: Path
) -> None:
    path = lock(tmp_path, repository.publish("org.one:alpha:1.0", b"alpha"))
    cache.mkdir()
    with (cache / "some-1.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(JarError, match="another process"):
            jars.resolve(path, deadline_s=0.2)


def test_an_empty_cache_without_a_network_says_so(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MAVEN_REPOSITORY", unreachable())
    with pytest.raises(JarError, match=r"Server access error .*A network is needed once") as caught:
        jars.resolve(lock(tmp_path, f"{'0' * 64} org.one:alpha:1.0 alpha-1.0.jar"))
    assert not isinstance(caught.value, JarChecksumError)


def test_a_repository_without_the_jar_says_which(repository: Repository, cache: Path, tmp_path: Path) -> None:
    pins = [repository.publish("org.one:alpha:1.0", b"alpha"), f"{'0' * 64} org.no:gamma:3.0 gamma-3.0.jar"]
    with pytest.raises(JarError, match=r"module not found: org\.no#gamma;3\.0"):
        jars.resolve(lock(tmp_path, *pins))


@pytest.mark.parametrize("home", [None, "empty"])
def test_without_java_the_error_says_what_to_install(
    home: str | None, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    with pytest.raises(
        JavaMissingError, match=r"no java in (PATH|JAVA_HOME=.*); install a JDK 17.*dev up --embedded"
    ):
        jars.resolve(lock(tmp_path, f"{'0' * 64} org.one:alpha:1.0 alpha-1.0.jar"))


@pytest.mark.parametrize(
    ("says", "accepted"),
    [
        ('openjdk version "11.0.2"', False),
        ('java version "1.8.0_392"', False),
        ('openjdk version "17.0.1"', True),
        ("no", False),
    ],
)
def test_java_must_be_17_or_newer(
    says: str, accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if accepted:
        assert jars.find_java() == java
    else:
        with pytest.raises(JavaMissingError, match="is not Java 17 or newer"):
            jars.find_java()


def test_jars_are_fetched_without_pyspark(
    repository: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock(tmp_path, repository.publish("org.one:alpha:1.0", b"alpha"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert [each.read_bytes() for each in jars.resolve(path)] == [b"alpha"]


def test_a_database_is_fetched_without_a_java(
    repository: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock(tmp_path, repository.publish("org.one:alpha:1.0", b"alpha"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert [each.read_bytes() for each in jars.resolve(path, for_java=False)] == [b"alpha"]


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(JarError, match=r"pip install 'holdfast\[spark\]'"):
        jars.find_ivy()


@pytest.mark.parametrize(
    "line",
    [
        f"{'0' * 63} a:b:1 b-1.jar",
        f"{'0' * 64} a:b b-1.jar",
        f"{'0' * 64} a:b:1 ../b-1.jar",
        f"{'0' * 64} a:b:1 b-1.exe",
        f"{'0' * 64} a:b:1",
        "",
    ],
)
def test_a_malformed_lock_file_is_an_error(line: str, tmp_path: Path) -> None:
    with pytest.raises(JarError, match="restore the file from the repository"):
        jars.read_lock(lock(tmp_path, line))


@pytest.mark.parametrize(("name", "count"), [("kafka", 46), ("spark", 6)])
def test_the_committed_lock_files_pin_each_root_and_each_file_once(name: str, count: int) -> None:
    pinned = jars.read_lock(Path(jars.__file__).with_name(f"{name}.lock"))
    assert {*pinned.roots} <= {jar.coordinate for jar in pinned.jars}
    assert len({jar.file_name for jar in pinned.jars}) == len(pinned.jars) == count


def test_a_new_lock_file_pins_what_the_roots_need_and_not_what_their_tests_need(
    repository: Repository, cache: Path, tmp_path: Path
) -> None:
    beta = repository.publish("org.two:beta:2.0", b"beta")
    alpha = repository.publish(
        "org.one:alpha:1.0", b"alpha", needs=("org.two:beta:2.0",), needs_in_tests=("org.no:gamma:3.0",)
    )
    path = tmp_path / "new.lock"
    made = jars.write_lock(path, ["org.one:alpha:1.0"], name="new-1")
    assert jars.read_lock(path) == made
    assert [line for line in path.read_text().splitlines() if not line.startswith("#")] == [
        "name new-1",
        "root org.one:alpha:1.0",
        alpha,
        beta,
    ]
    assert [each.read_bytes() for each in jars.resolve(path)] == [b"alpha", b"beta"]


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert jars.cache_folder() == Path("/somewhere/holdfast")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert jars.cache_folder() == Path.home() / ".cache/holdfast"
    monkeypatch.setenv("HOLDFAST_CACHE", os.path.join("~", "h"))
    assert jars.cache_folder() == Path.home() / "h"
