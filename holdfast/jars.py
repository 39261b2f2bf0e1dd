"""Java archives by checksum: a committed lock file in, verified local paths out.

The local broker and Spark need jars that no wheel carries. They come from Maven's central repository through
Ivy, the resolver that ships inside pyspark, into a cache per user, and are used only when their SHA-256 is
the one in the lock file beside this module. A warm cache needs neither a JDK nor a network. Settings
(environment):

- ``HOLDFAST_CACHE``: the cache folder itself; otherwise ``$XDG_CACHE_HOME/holdfast`` or ``~/.cache/holdfast``
- ``HOLDFAST_MAVEN_REPOSITORY``: the root address of a mirror that has Maven's layout
- ``JAVA_HOME``: a JDK to use in place of the first ``java`` on ``PATH``

A lock file is text, one jar a line: SHA-256, ``group:artifact:version``, file name. ``root`` lines name what
was asked for; all the rest follows from them. ``python -m holdfast.jars`` writes one anew. A file that is not
the artifact's own jar is named as the repository names it (``artifact-version-classifier.tar.gz``), and
pinned by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from holdfast.clock import system_clock
from holdfast.errors import JarChecksumError, JarError, JavaMissingError

JAVA_MAJOR_MIN = 17
RESOLVE_DEADLINE_S = 300.0
_IVY_CONNECT_TIMEOUT_MS = 10_000
_IVY_READ_TIMEOUT_MS = 60_000
_LOCK_FILES = Path(__file__).parent

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of a lock file."""

    sha256: str
    coordinate: str
    file_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """A set of jars that belong together, and the folder of the cache that holds them."""

    name: str
    roots: tuple[str, ...]
    jars: tuple[Jar, ...]


def cache_folder() -> Path:
    """Return the folder that holds everything holdfast downloads for this user; it need not exist yet."""
    if own := os.environ.get("HOLDFAST_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "holdfast"


def read_lock(path: Path) -> LockFile:
    """Return the jars that *path* pins; a malformed line is an error, never skipped."""
    roots: list[str] = []
    jars: list[Jar] = []
    name = path.stem
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match line.split():
            case []:
                continue
            case [first, *_] if first.startswith("#"):
                continue
            case ["name", text]:
                name = text
            case ["root", coordinate]:
                roots.append(coordinate)
            case [sha256, coordinate, file_name] if _is_pin(sha256, coordinate, file_name):
                jars.append(Jar(sha256=sha256, coordinate=coordinate, file_name=file_name))
            case _:
                raise JarError(
                    f"{path}:{number}: not 'SHA256 group:artifact:version file.jar': {line!r}; restore the"
                    " file from the repository"
                )
    if not jars:
        raise JarError(f"{path}: pins no jar; restore the file from the repository")
    return LockFile(name=name, roots=tuple(roots), jars=tuple(jars))


def _is_pin(sha256: str, coordinate: str, file_name: str) -> bool:
    # A file name with a folder in it could be written outside the cache.
    return (
        bool(re.fullmatch(r"[0-9a-f]{64}", sha256))
        and coordinate.count(":") == 2
        and re.fullmatch(r"[\w.+-]+\.(jar|tar\.gz)", file_name) is not None
    )


def kafka_jars(*, progress: Progress = _silent) -> list[Path]:
    """Return the class path of the Kafka broker that `holdfast dev` runs."""
    return resolve(_LOCK_FILES / "kafka.lock", progress=progress)


def spark_jars(*, progress: Progress = _silent) -> list[Path]:
    """Return what Spark needs beside pyspark's own jars:

    Delta Lake and the Kafka connector (for ``spark.jars``).
    """
    return resolve(_LOCK_FILES / "spark.lock", progress=progress)


def resolve(
    lock_path: Path, *, progress: Progress = _silent, deadline_s: float = RESOLVE_DEADLINE_S
) -> list[Path]:
    """Return the verified local path of every jar in *lock_path*, in its order, fetching what the cache
    lacks.

    Safe for any number of processes at once: one fetches, the others wait (at most *deadline_s* in all). A
    file in the cache with other bytes than the lock file says is fetched again; a fetched one with other
    bytes is a `JarChecksumError` and is not kept.
    """
    lock = read_lock(lock_path)
    folder = cache_folder() / lock.name
    paths = [folder / jar.file_name for jar in lock.jars]
    if not _lacking(lock, folder):
        return paths
    deadline_at_s = system_clock.monotonic_s() + deadline_s
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarError(
            f"cannot create the cache folder {folder}: {error}; set HOLDFAST_CACHE to a folder you can"
            " write to"
        ) from error
    with exclusive(folder.with_name(f"{lock.name}.lock"), deadline_at_s=deadline_at_s):
        if lacking := _lacking(lock, folder):  # another process may have fetched them meanwhile
            progress(f"fetching {len(lacking)} jars of {lock.name} into {folder} (once per user)")
            _fetch(lacking, folder, deadline_at_s=deadline_at_s)
    return paths


def _lacking(lock: LockFile, folder: Path) -> list[Jar]:
    return [jar for jar in lock.jars if _sha256(folder / jar.file_name) != jar.sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _fetch(jars: Sequence[Jar], folder: Path, *, deadline_at_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        wanted = {jar.coordinate: jar.file_name for jar in jars}
        fetched = _run_ivy(wanted, Path(scratch), transitive=False, deadline_at_s=deadline_at_s)
        by_coordinate = {coordinate: path for coordinate, path in fetched}
        for jar in jars:
            path = by_coordinate.get(jar.coordinate)
            if path is None:
                raise JarError(
                    f"the repository answered, but without {jar.coordinate}; check HOLDFAST_MAVEN_REPOSITORY"
                    " if you use a mirror"
                )
            if (got := _sha256(path)) != jar.sha256:
                raise JarChecksumError(
                    f"{jar.coordinate}: SHA-256 is {got}, the lock file says {jar.sha256}; the file was"
                    " thrown away. Do not run it: find out who serves other bytes (a mirror, a proxy) or,"
                    " after an intended upgrade, write the lock file anew"
                )
        for jar in jars:  # all are good: only now does any of them become visible, each by an atomic rename
            os.replace(by_coordinate[jar.coordinate], folder / jar.file_name)


@contextlib.contextmanager
def exclusive(path: Path, *, deadline_at_s: float) -> Iterator[None]:
    """Keep other processes from what they do with the same file *path*, which is made if it is not there."""
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if system_clock.monotonic_s() > deadline_at_s:
                    raise JarError(
                        f"another process has held {path} for too long; end it (it is fetching jars, or"
                        " making an archive of their classes) and try again"
                    ) from None
                time.sleep(0.05)
        yield


# --- Ivy ----------------------------------------------------------------------------------------------------


def find_java() -> Path:
    """Return a `java` of at least version 17, from ``JAVA_HOME`` or else ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    advice = (
        f"install a JDK {JAVA_MAJOR_MIN} or newer (Debian: apt-get install openjdk-17-jdk-headless) or set"
        " JAVA_HOME to one"
    )
    if found is None:
        raise JavaMissingError(f"no java in {where}; {advice}")
    try:
        ran = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError(f"{found} -version did not run: {error}; {advice}") from error
    version = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    if ran.returncode != 0 or version is None or int(version[1]) < JAVA_MAJOR_MIN:
        said = (ran.stderr + ran.stdout).strip().splitlines()[:1]
        raise JavaMissingError(f"{found} is not Java {JAVA_MAJOR_MIN} or newer (it says {said}); {advice}")
    return Path(found)


def find_ivy() -> Path:
    """Return the Ivy jar inside the installed pyspark, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(place).glob("jars/ivy-*.jar"), reverse=True):
            return jar
    raise JarError(
        "pyspark is not installed, and jars are fetched by the Ivy inside it; pip install 'holdfast[spark]'"
    )


def _settings(*, poms: bool) -> str:
    mirror = os.environ.get("HOLDFAST_MAVEN_REPOSITORY")
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    timeouts = f'connectionTimeout="{_IVY_CONNECT_TIMEOUT_MS}" readTimeout="{_IVY_READ_TIMEOUT_MS}"'
    return (
        '<ivysettings><settings defaultResolver="repository"/><timeout-constraints><timeout-constraint'
        f' name="patient" {timeouts}/></timeout-constraints><resolvers><ibiblio name="repository"'
        f' m2compatible="true" usepoms="{str(poms).lower()}"'
        f' timeoutConstraint="patient"{root}/></resolvers></ivysettings>'
    )


def _module(wanted: Mapping[str, str | None], *, transitive: bool) -> str:
    conf = "default->compile(*),master(*),runtime(*)" if transitive else "default->*"
    lines = []
    for coordinate, file_name in wanted.items():
        group, artifact, version = coordinate.split(":")
        attributes = f"org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        inside = "" if file_name is None else _artifact(artifact, version, file_name)
        lines.append(
            f'<dependency {attributes} transitive="{str(transitive).lower()}"'
            f" conf={quoteattr(conf)}>{inside}</dependency>"
        )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="holdfast"'
        ' module="jars"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _artifact(artifact: str, version: str, file_name: str) -> str:
    """Return how Ivy is told of a file that is not the artifact's own jar; nothing for that.

    >>> _artifact("a", "1.0", "a-1.0.jar"), _artifact("a", "1.0", "a-1.0-all.tar.gz")
    ('', '<artifact name="a" type="tar.gz" ext="tar.gz" m:classifier="all"/>')
    """
    found = re.fullmatch(rf"{re.escape(artifact)}-{re.escape(version)}-([\w-]+)\.(jar|tar\.gz)", file_name)
    if found is None:
        return ""
    kind = quoteattr(found[2])
    return f"<artifact name={quoteattr(artifact)} type={kind} ext={kind} m:classifier={quoteattr(found[1])}/>"


def _run_ivy(
    wanted: Mapping[str, str | None], scratch: Path, *, transitive: bool, deadline_at_s: float
) -> list[tuple[str, Path]]:
    """Return (coordinate, path below *scratch*) of each file that Ivy retrieved: of the coordinates in
    *wanted*, under the names given there, or, *transitive*, the jars of all they need too.
    """
    java, ivy = find_java(), find_ivy()
    # Without POMs where the lock file says what belongs together: each jar then costs one request, and
    # nothing can be added to it.
    (scratch / "settings.xml").write_text(_settings(poms=transitive), encoding="utf-8")
    (scratch / "ivy.xml").write_text(_module(wanted, transitive=transitive), encoding="utf-8")
    command = [
        str(java),
        "-XX:TieredStopAtLevel=1",  # it lives for a second: to compile well costs half of what it uses
        f"-Divy.default.ivy.user.dir={scratch}",
        "-jar",
        str(ivy),
        "-cache",
        str(scratch / "cache"),
    ]
    command += ["-settings", str(scratch / "settings.xml")]
    pattern = str(scratch / "lib/[organisation]/[module]/[revision]/[artifact].[ext]")
    command += ["-ivy", str(scratch / "ivy.xml"), "-confs", "default", "-retrieve", pattern]
    remaining_s = max(1.0, deadline_at_s - system_clock.monotonic_s())
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=remaining_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise JarError(
            f"fetching jars took longer than {remaining_s:.0f} s and was stopped; check the network and try"
            " again"
        ) from error
    if ran.returncode != 0:
        raise JarError(
            f"could not fetch the jars (Ivy exit code {ran.returncode}): {_reason(ran.stdout + ran.stderr)}."
            " A network is needed once, to fill the cache; behind a mirror set HOLDFAST_MAVEN_REPOSITORY to"
            " its address"
        )
    return [(_coordinate(path), path) for path in sorted((scratch / "lib").glob("*/*/*/*"))]


def _coordinate(retrieved: Path) -> str:
    version, artifact, group = (retrieved.parents[i].name for i in range(3))
    return f"{group}:{artifact}:{version}"


def _reason(output: str) -> str:
    """Return Ivy's most telling complaint: an unreachable server explains every module that was then not
    found.
    """
    lines = [line.strip(" \t:") for line in output.splitlines()]
    for telling in ("Server access error", "module not found", "Exception"):
        if found := list(dict.fromkeys(line for line in lines if telling in line)):
            return found[0] + (f" (and {len(found) - 1} more like it)" if len(found) > 1 else "")
    return "it gave no reason"


# --- writing a lock file ------------------------------------------------------------------------------------


def write_lock(lock_path: Path, roots: Sequence[str], *, name: str, beside_pyspark: bool = False) -> LockFile:
    """Resolve *roots* with all they depend on, pin what came, and return it. For maintainers: read the diff
    before committing.

    *beside_pyspark* leaves out the jars that the installed pyspark brings itself, under the same name and
    version.
    """
    carried = {jar.name for jar in find_ivy().parent.glob("*.jar")} if beside_pyspark else set()
    with tempfile.TemporaryDirectory() as scratch:
        deadline_at_s = system_clock.monotonic_s() + RESOLVE_DEADLINE_S
        found = _run_ivy(dict.fromkeys(roots), Path(scratch), transitive=True, deadline_at_s=deadline_at_s)
        pinned = [
            Jar(
                sha256=_sha256(path) or "",
                coordinate=coordinate,
                file_name="{1}-{2}.jar".format(*coordinate.split(":")),
            )
            for coordinate, path in found
        ]
    jars = tuple(jar for jar in pinned if jar.file_name not in carried)
    flag = "--beside-pyspark " if beside_pyspark else ""
    lines = [
        (
            f"# The roots and all they need{' beside pyspark' * beside_pyspark}: SHA-256, coordinate, file"
            " name. Checked before each use; made by"
        ),
        f"# python -m holdfast.jars {flag}{lock_path.name} {name} {' '.join(roots)}",
        f"name {name}",
        *(f"root {root}" for root in roots),
        *(f"{jar.sha256} {jar.coordinate} {jar.file_name}" for jar in jars),
    ]
    lock_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return LockFile(name=name, roots=tuple(roots), jars=jars)


def main(arguments: Sequence[str]) -> int:
    """Write a lock file beside this module:

    ``python -m holdfast.jars [--beside-pyspark] NAME.lock FOLDER GROUP:ARTIFACT:VERSION…``.
    """
    beside_pyspark = arguments[:1] == ["--beside-pyspark"]
    file_name, name, *roots = arguments[beside_pyspark:] if len(arguments) >= 3 + beside_pyspark else ("", "")
    if not roots:
        print(main.__doc__, file=sys.stderr)
        return 2
    try:
        lock = write_lock(_LOCK_FILES / file_name, roots, name=name, beside_pyspark=beside_pyspark)
    except JarError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"{file_name}: {len(lock.jars)} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
