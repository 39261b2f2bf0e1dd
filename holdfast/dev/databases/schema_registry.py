"""A real schema registry on this machine, for development and tests: Apicurio Registry, which speaks Confluent's API.

    with SchemaRegistryServer() as server:
        settings = Settings(schema_registry_url=server.url)

It lives, dies and is frozen as the databases beside it. What is registered lies in its folder and outlives a kill.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.request import urlopen

from holdfast.dev.databases import binaries
from holdfast.dev.databases.server import DatabaseServer
from holdfast.jars import find_java

__all__ = ["SchemaRegistryServer"]

HEAP_MB = 192


class SchemaRegistryServer(DatabaseServer):
    """Apicurio Registry, which is always fetched. It listens on loopback only, and asks for no password."""

    kind = "schema-registry"

    @property
    def url(self) -> str:
        """The address for `schema_registry_url`."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def connect(self, *, timeout_s: float = 10.0) -> Any:
        """Return a connection to its port, once it answers requests."""
        urlopen(f"{self.url}/subjects", timeout=timeout_s).close()
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

    def _initialise(self) -> None:
        (self.folder / "data").mkdir()

    def _command(self) -> list[str]:
        (program,) = binaries.fetched_schema_registry().glob("*-runner.jar")
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self.folder / 'data' / 'registry'};WRITE_DELAY=0",
            "quarkus.datasource.jdbc.min-size": "1",
        }
        frugal = [f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        given = [f"-D{name}={value}" for name, value in settings.items()]
        return [str(find_java()), *frugal, *given, "-jar", str(program)]
