"""A real schema registry on this machine, for development and tests: Apicurio Registry, which speaks
Confluent's API.

    with SchemaRegistryServer() as server:
        settings = Settings(schema_registry_url=server.url)

It starts, stops and freezes as the database servers do. Registered schemas are stored in its folder and
outlive a kill.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

from holdfast.class_archive import ClassArchive, shared_classes
from holdfast.dev.databases import binaries
from holdfast.dev.databases.server import START_DEADLINE_S, DatabaseServer
from holdfast.errors import HoldfastError
from holdfast.jars import cache_folder, find_java

__all__ = ["SchemaRegistryServer"]

logger = logging.getLogger(__name__)

HEAP_MB = 192
ARCHIVE_DEADLINE_S = 120.0
"""The limit for a registry to end that writes the archive of its classes: 4 s of a core."""


class SchemaRegistryServer(DatabaseServer):
    """Apicurio Registry, which is always fetched. It listens on loopback only, and asks for no password."""

    kind = "schema-registry"

    def __init__(self, folder: Path | str | None = None, *, durable: bool = False) -> None:
        super().__init__(folder, durable=durable)
        self._sharing: Sequence[str] | None = None

    @classmethod
    def _sharing_by(cls, sharing: Sequence[str]) -> Self:
        made = cls()
        made._sharing = sharing
        return made

    @property
    def url(self) -> str:
        """The address for `schema_registry_url`."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def connect(self, *, timeout_s: float = 10.0) -> Any:
        """Return a connection to its port, once it answers requests."""
        urlopen(f"{self.url}/subjects", timeout=timeout_s).close()
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> Self:
        """Start it as any server; the first one of a user takes 10 s longer, for the archive of its
        classes.
        """
        if self._sharing is None:
            self._sharing = _sharing()
        return super().start(deadline_s=deadline_s)

    def _initialise(self) -> None:
        (self.folder / "data").mkdir()

    def _command(self) -> list[str]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self.folder / 'data' / 'registry'};WRITE_DELAY=0",
            "quarkus.datasource.jdbc.min-size": "1",
        }
        frugal = [f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        given = [f"-D{name}={value}" for name, value in settings.items()]
        return [str(find_java()), *frugal, *(self._sharing or ()), *given, "-jar", str(_program())]


def _program() -> Path:
    (program,) = binaries.fetched_schema_registry().glob("*-runner.jar")
    return program


def _sharing() -> tuple[str, ...]:
    """Return the flags of the archive of its classes: from one they cost 2.5 s of processor time instead of
    4.4 s.

    A registry starts without an archive too, only more slowly, so a failure to make one is only logged.
    """
    folder = cache_folder() / "registry-classes"

    def of() -> ClassArchive:
        return ClassArchive.of(folder, find_java(), [_program()])

    def run_once(sharing: Sequence[str]) -> None:
        with SchemaRegistryServer._sharing_by(sharing) as registry:
            registry._end(ARCHIVE_DEADLINE_S)

    try:
        return shared_classes(of, run_once, deadline_s=START_DEADLINE_S + ARCHIVE_DEADLINE_S)
    except (HoldfastError, OSError) as error:
        logger.warning(
            "schema registries start more slowly, for no archive of their classes was made: %(cause)s",
            {"cause": error},
        )
        return ()
