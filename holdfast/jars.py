"""Java archives by checksum: a committed lock file in, verified local paths out.

The local broker and Spark need jars that no wheel carries. They come from Maven's central repository
(`holdfast.maven`) into a cache per user, and are used only when their SHA-256 is the one in the lock file
next to this module. A warm cache needs neither a JDK nor a network. Settings (environment), besides those of
`holdfast.maven`:

- ``HOLDFAST_CACHE``: the cache folder itself; otherwise ``$XDG_CACHE_HOME/holdfast`` or ``~/.cache/holdfast``
- ``JAVA_HOME``: a JDK to use instead of the first ``java`` on ``PATH``

A lock file is text, one jar a line: SHA-256, ``group:artifact:version``, file name. ``root`` lines name the
requested was asked for; all the rest follows from them. ``python -m holdfast.jars`` writes a new one, by Ivy,
the resolver that ships inside pyspark. A file that is not the artifact's own jar is named as the repository
names it (``artifact-version-classifier.tar.gz``), and pinned by hand.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from holdfast.clock import system_clock
from holdfast.errors import JarChecksumError, JarError, JavaMissingError
from holdfast.maven import MavenFile, Meter, download

JAVA_MAJOR_MIN = 17
RESOLVE_DEADLINE_S = 1_800.0
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


def kafka_jars(*, progress: Progress = _silent, meter: Meter | None = None) -> list[Path]:
    """Return the class path of the Kafka broker that `holdfast dev` runs."""
    return resolve(_LOCK_FILES / "kafka.lock", progress=progress, meter=meter)


def spark_jars(*, progress: Progress = _silent, meter: Meter | None = None) -> list[Path]:
    """Return the jars that Spark needs besides pyspark's own:

    Delta Lake and the Kafka connector (for ``spark.jars``).
    """
    return resolve(_LOCK_FILES / "spark.lock", progress=progress, meter=meter)


def resolve(
    lock_path: Path,
    *,
    progress: Progress = _silent,
    meter: Meter | None = None,
    deadline_s: float = RESOLVE_DEADLINE_S,
    for_java: bool = True,
) -> list[Path]:
    """Return the verified local path of every jar in *lock_path*, in its order, fetching what the cache
    lacks.

    *progress* gets one line if something is fetched, *meter* the progress of that. Jars *for_java* are not
    fetched without a JDK (JavaMissingError): they would be of no use. A fetch that is broken off continues
    from there the next time.

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
        if lacking := _lacking(lock, folder):  # another process may have fetched them since
            if for_java:
                find_java()
            progress(f"fetching {len(lacking)} jars of {lock.name} into {folder} (once per user)")
            _fetch(lacking, folder, meter=meter, deadline_at_s=deadline_at_s)
    return paths


def _lacking(lock: LockFile, folder: Path) -> list[Jar]:
    return [jar for jar in lock.jars if _sha256(folder / jar.file_name) != jar.sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _fetch(jars: Sequence[Jar], folder: Path, *, meter: Meter | None, deadline_at_s: float) -> None:
    fetching = folder.with_name(f"{folder.name}.fetching")
    wanted = [MavenFile(coordinate=jar.coordinate, file_name=jar.file_name) for jar in jars]
    try:
        fetching.mkdir(exist_ok=True)
        # What another server began can be other bytes: then the whole is neither's, and is fetched once more.
        is_second_half = any(fetching.iterdir())
        download(wanted, fetching, deadline_at_s=deadline_at_s, meter=meter)
        others = _throw_away_others(jars, fetching)
        if others and is_second_half:
            download(wanted, fetching, deadline_at_s=deadline_at_s, meter=meter)
            others = _throw_away_others(jars, fetching)
        for jar, got in others:
            raise JarChecksumError(
                f"{jar.coordinate}: SHA-256 is {got}, the lock file says {jar.sha256}; the file was"
                " thrown away. Do not run it: find out who serves other bytes (a mirror, a proxy) or,"
                " after an intended upgrade, write the lock file anew"
            )
        for jar in jars:  # all are good: only now does any of them become visible, each by an atomic rename
            os.replace(fetching / jar.file_name, folder / jar.file_name)
    except OSError as error:
        raise JarError(
            f"cannot write into {fetching}: {error}; make room there, or set HOLDFAST_CACHE to another folder"
        ) from error
    shutil.rmtree(fetching, ignore_errors=True)


def _throw_away_others(jars: Sequence[Jar], folder: Path) -> list[tuple[Jar, str | None]]:
    """Delete the files with other bytes than pinned; return them, each with its SHA-256."""
    others = [(jar, got) for jar in jars if (got := _sha256(folder / jar.file_name)) != jar.sha256]
    for jar, _ in others:
        (folder / jar.file_name).unlink(missing_ok=True)
    return others


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


# --- Java ---------------------------------------------------------------------------------------------------


def find_java() -> Path:
    """Return a `java` of at least version 17, from ``JAVA_HOME`` or else ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    advice = (
        f"install a JDK {JAVA_MAJOR_MIN} or newer (Debian: apt-get install openjdk-17-jdk-headless) or set"
        " JAVA_HOME to one; `holdfast dev up --embedded` and `holdfast demo --embedded` need none"
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


# --- writing a lock file ------------------------------------------------------------------------------------


def find_ivy() -> Path:
    """Return the Ivy jar inside the installed pyspark, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(place).glob("jars/ivy-*.jar"), reverse=True):
            return jar
    raise JarError(
        "pyspark is not installed, and the Ivy inside it resolves what goes into a lock file;"
        " pip install 'holdfast[spark]'"
    )


def _settings() -> str:
    mirror = os.environ.get("HOLDFAST_MAVEN_REPOSITORY")
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    timeouts = f'connectionTimeout="{_IVY_CONNECT_TIMEOUT_MS}" readTimeout="{_IVY_READ_TIMEOUT_MS}"'
    return (
        '<ivysettings><settings defaultResolver="repository"/><timeout-constraints><timeout-constraint'
        f' name="patient" {timeouts}/></timeout-constraints><resolvers><ibiblio name="repository"'
        ' m2compatible="true" usepoms="true"'
        f' timeoutConstraint="patient"{root}/></resolvers></ivysettings>'
    )


def _module(roots: Sequence[str]) -> str:
    lines = []
    for coordinate in roots:
        group, artifact, version = coordinate.split(":")
        attributes = f"org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        lines.append(f'<dependency {attributes} conf="default->compile(*),master(*),runtime(*)"/>')
    return (
        '<ivy-module version="2.0"><info organisation="holdfast" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _run_ivy(roots: Sequence[str], scratch: Path, *, deadline_at_s: float) -> list[tuple[str, Path]]:
    """Return (coordinate, path below *scratch*) of each jar that Ivy retrieved: of *roots* and all they
    need.
    """
    java, ivy = find_java(), find_ivy()
    (scratch / "settings.xml").write_text(_settings(), encoding="utf-8")
    (scratch / "ivy.xml").write_text(_module(roots), encoding="utf-8")
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
    """Return Ivy's most helpful complaint: an unreachable server explains every module that was then not
    found.
    """
    lines = [line.strip(" \t:") for line in output.splitlines()]
    for telling in ("Server access error", "module not found", "Exception"):
        if found := list(dict.fromkeys(line for line in lines if telling in line)):
            return found[0] + (f" (and {len(found) - 1} more like it)" if len(found) > 1 else "")
    return "it gave no reason"


def write_lock(lock_path: Path, roots: Sequence[str], *, name: str, beside_pyspark: bool = False) -> LockFile:
    """Resolve *roots* with all they depend on, pin what came, and return it. For maintainers: read the diff
    before committing.

    *beside_pyspark* leaves out the jars that the installed pyspark brings itself, under the same name and
    version.
    """
    carried = {jar.name for jar in find_ivy().parent.glob("*.jar")} if beside_pyspark else set()
    with tempfile.TemporaryDirectory() as scratch:
        deadline_at_s = system_clock.monotonic_s() + RESOLVE_DEADLINE_S
        found = _run_ivy(roots, Path(scratch), deadline_at_s=deadline_at_s)
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
    """Write a lock file next to this module:

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
