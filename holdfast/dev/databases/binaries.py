"""Finds the programs of databases and of the schema registry: the distribution's, or verified archives from
Maven's central repository.

The archives are those that embedded database test kits of the JVM world use. They are fetched, checked and
kept as jars are (`holdfast.jars`), and unpacked once per user.
"""

from __future__ import annotations

import fcntl
import io
import lzma
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast import jars
from holdfast.errors import DevBrokerError

_LOCKS = Path(jars.__file__).parent
_POSTGRES_PLACES = "/usr/lib/postgresql/*/bin"
_MARIADB_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def find_postgres(*, progress: Progress = _silent) -> Path:
    """Return the folder that holds `postgres` and `initdb`: the newest of the distribution's, else one
    fetched and unpacked.
    """
    for place in _postgres_places():
        if (place / "postgres").is_file() and (place / "initdb").is_file():
            return place
    return fetched_postgres(progress=progress)


def _postgres_places() -> Iterable[Path]:
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent  # a link, whose folder need not have initdb
    folders = [
        folder for folder in Path("/").glob(_POSTGRES_PLACES.lstrip("/")) if folder.parent.name.isdigit()
    ]
    yield from sorted(folders, key=lambda folder: int(folder.parent.name), reverse=True)


def fetched_postgres(*, progress: Progress = _silent) -> Path:
    """Return the folder of the fetched Postgres' programs."""
    _only_linux("PostgreSQL", "postgresql")
    (archive,) = jars.resolve(_LOCKS / "postgres.lock", progress=progress, for_java=False)

    def unpack(target: Path) -> None:
        with zipfile.ZipFile(archive) as jar:
            (name,) = [each for each in jar.namelist() if each.endswith(".txz")]
            packed = lzma.decompress(jar.read(name))
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            tar.extractall(target, filter="data")

    return _unpacked(archive, unpack) / "bin"


def find_mariadb(*, progress: Progress = _silent) -> tuple[Path, Path, Path | None]:
    """Return `mariadbd`, `mariadb-install-db` and, for a fetched one, its base folder."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_MARIADB_PLACES])
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server and install:
        return Path(server), Path(install), None
    base = fetched_mariadb(progress=progress)
    return base / "bin/mariadbd", base / "scripts/mariadb-install-db", base


def fetched_mariadb(*, progress: Progress = _silent) -> Path:
    """Return the base folder of the fetched MariaDB."""
    _only_linux("MariaDB", "mariadb-server")
    (archive,) = jars.resolve(_LOCKS / "mariadb.lock", progress=progress, for_java=False)

    def unpack(target: Path) -> None:
        with zipfile.ZipFile(archive) as jar:
            for info in jar.infolist():
                inside = info.filename.partition("/linux/")[2]
                wanted = inside.startswith(
                    ("bin/", "scripts/", "share/english/", "share/charsets/")
                ) or inside.endswith(".sql")
                if info.is_dir() or not wanted or ".." in inside:
                    continue
                path = target / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                with jar.open(info) as source, path.open("wb") as file:
                    shutil.copyfileobj(source, file)
                if inside.startswith(("bin/", "scripts/")):
                    path.chmod(0o755)

    return _unpacked(archive, unpack)


def fetched_mysql(*, progress: Progress = _silent) -> Path:
    """Return the base folder of the fetched MySQL."""
    _only_linux("MySQL", "mysql-server")
    (archive,) = jars.resolve(_LOCKS / "mysql.lock", progress=progress, for_java=False)

    def unpack(target: Path) -> None:
        with (
            zipfile.ZipFile(archive) as jar,
            tarfile.open(fileobj=io.BytesIO(jar.read("mysql-Linux-amd64.tar.gz"))) as tar,
        ):
            tar.extractall(target, filter="data")
        # It is linked to libaio, which few machines have, and uses it only where `innodb_use_native_aio` is
        # on. The loader asks for a library of that name and resolves its functions at the first call: one
        # that never comes.
        stand_in = target / "bin/libaio.so.1"
        if not stand_in.exists():
            stand_in.symlink_to("libcrypto.so.1.0.0")

    return _unpacked(archive, unpack)


def fetched_schema_registry(*, progress: Progress = _silent) -> Path:
    """Return the folder of the fetched schema registry: a jar to run, and its libraries."""
    (archive,) = jars.resolve(_LOCKS / "schema_registry.lock", progress=progress)

    def unpack(target: Path) -> None:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")

    return _unpacked(archive, unpack)


def _unpacked(archive: Path, unpack: Callable[[Path], None]) -> Path:
    """Return the folder next to *archive* with its contents, unpacked by the first process that comes, whole
    or not at all.
    """
    target = archive.with_suffix("")
    if target.is_dir():
        return target
    with archive.with_suffix(".unpacking").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=".unpack-", dir=archive.parent) as scratch:
                unpacked = Path(scratch) / "tree"
                unpacked.mkdir(mode=0o755)
                unpack(unpacked)
                unpacked.rename(target)
    return target


def _only_linux(what: str, package: str) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise DevBrokerError(
            f"{what} is not installed, and holdfast can fetch it for Linux on x86_64 only; install it"
            f" (Debian: apt-get install {package})"
        )
