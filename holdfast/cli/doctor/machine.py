"""A worker's needs of the machine: Python, packages, a JDK for some work, open files, room on the disk."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from holdfast.agents.descriptors import connections_within, needed, raised_limit
from holdfast.cli.doctor.diagnosis import Diagnosis, Fitness
from holdfast.config import Settings
from holdfast.errors import JavaMissingError
from holdfast.extras import EXTRAS
from holdfast.jars import find_java

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
"""The versions that the tests run on, and for which the dependencies are known to have wheels."""
PURPOSES = {
    "worker": "workers",
    "outbox": "the outbox's commands and harvesters",
    "lake": "replays, verify and the lake",
    "spark": "replays, verify and the lake on Spark",
    "console": "the console",
    "oidc": "signing in to the console by OpenID Connect",
    "otel": "traces of OpenTelemetry",
    "sketches": "approximate distinct counts",
    "tls": "a certificate for the embedded Kafka",
    "avro": "Avro with a schema registry",
    "protobuf": "Protobuf with a schema registry",
    "jsonschema": "JSON Schema with a schema registry",
}
"""The purpose of each extra."""
LEAST_FREE_BYTES = 1 << 30
MANY_PARTITIONS = 64
"""For how many partitions of one worker open files are counted."""


def machine(settings: Settings) -> Iterator[Diagnosis]:
    """Yield the diagnoses of this machine."""
    yield python(sys.version_info[:2])
    yield from packages()
    yield java()
    yield open_files(raised_limit(), MANY_PARTITIONS, settings.web_connections)
    yield data_folder(settings.data_dir)


def python(found: tuple[int, ...]) -> Diagnosis:
    """Return whether this Python is one that holdfast is tested on.

    >>> python((3, 12)).fitness, python((3, 10)).fitness
    (<Fitness.OK: 'ok'>, <Fitness.ERROR: 'error'>)
    """
    text = (
        f"Python {'.'.join(map(str, found))}, {platform.python_implementation()}; holdfast"
        f" {version('holdfast')}"
    )
    if found < OLDEST_PYTHON:
        return Diagnosis(
            check="python", fitness=Fitness.ERROR, found=text, cure="install Python 3.11 or newer"
        )
    if found > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return Diagnosis(
            check="python",
            fitness=Fitness.WARNING,
            found=text,
            cure=f"holdfast is tested up to Python {newest}",
        )
    return Diagnosis(check="python", fitness=Fitness.OK, found=text)


def packages(extras: Mapping[str, str] = PURPOSES) -> Iterator[Diagnosis]:
    """Yield for each extra whether all packages that it brings are installed."""
    for extra, purpose in extras.items():
        lacking = [
            package for package, brings in EXTRAS.items() if brings == extra and not _installed(package)
        ]
        yield Diagnosis(
            check=f"extra {extra}",
            fitness=Fitness.ABSENT if lacking else Fitness.OK,
            found=f"{purpose}: {'not ' if lacking else ''}installed",
            cure=f"only for {purpose}: pip install 'holdfast[{extra}]'" if lacking else "",
        )


def _installed(package: str) -> bool:
    try:
        return package in sys.modules or find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def java() -> Diagnosis:
    """Return whether a JDK is here; Spark and a real broker of `dev up` need one, workers do not."""
    try:
        return Diagnosis(check="java", fitness=Fitness.OK, found=str(find_java()))
    except JavaMissingError as error:
        found, _, cure = str(error).partition("; ")
        return Diagnosis(
            check="java",
            fitness=Fitness.ABSENT,
            found=found,
            cure=f"only for Spark and `holdfast dev up` without --embedded: {cure}",
        )


def open_files(limit: int, partitions: int, connections: int) -> Diagnosis:
    """Return whether a worker may open as many files and sockets as it needs, that holds all *partitions*.

    >>> open_files(256, 4, 1_000).found
    'a worker that holds 4 partitions needs 220, the limit is 256'
    """
    wanted = needed(partitions, connections_within(limit, connections))
    found = f"a worker that holds {partitions} partitions needs {wanted}, the limit is {limit}"
    enough = wanted <= limit
    return Diagnosis(
        check="open files",
        fitness=Fitness.OK if enough else Fitness.WARNING,
        found=found,
        cure="" if enough else "raise ulimit -n, or LimitNOFILE of the service",
    )


def data_folder(folder: Path) -> Diagnosis:
    """Return whether the stores can be kept in *folder*, and how much room is left there."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        return Diagnosis(
            check="data_dir",
            fitness=Fitness.ERROR,
            found=f"{existing} is a file",
            cure="name a folder: --set data_dir=FOLDER",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        return Diagnosis(
            check="data_dir",
            fitness=Fitness.ERROR,
            found=f"this account may not write to {existing}",
            cure="name a folder that this account owns: --set data_dir=FOLDER",
        )
    free = shutil.disk_usage(existing).free
    found = f"{folder}: {free / (1 << 30):.1f} GiB free"
    if free < LEAST_FREE_BYTES:
        return Diagnosis(
            check="data_dir",
            fitness=Fitness.WARNING,
            found=found,
            cure="make room: a full disk stops the worker's stores",
        )
    return Diagnosis(check="data_dir", fitness=Fitness.OK, found=found)
