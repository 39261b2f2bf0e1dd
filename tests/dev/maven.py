"""A Maven repository on loopback, with jars of this test's own making."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.patience import DEADLINE_S

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version><dependencies>{dependencies}</dependencies></project>"""
DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version><scope>{scope}</scope></dependency>"  # noqa: E501


class Repository:
    """The published files, the address that serves them, and the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: Counter[str] = Counter()
        self.address = ""

    def publish(
        self,
        coordinate: str,
        content: bytes,
        *,
        needs: tuple[str, ...] = (),
        needs_in_tests: tuple[str, ...] = (),
    ) -> str:
        """Publish a jar and return the line that pins it."""
        group, artifact, version = coordinate.split(":")
        place = self.folder / group.replace(".", "/") / artifact / version
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{artifact}-{version}.jar").write_bytes(content)
        scoped = [(each, "compile") for each in needs] + [(each, "test") for each in needs_in_tests]
        dependencies = "".join(DEPENDENCY.format(*each.split(":"), scope=scope) for each, scope in scoped)
        pom = POM.format(group=group, artifact=artifact, version=version, dependencies=dependencies)
        (place / f"{artifact}-{version}.pom").write_text(pom)
        return f"{hashlib.sha256(content).hexdigest()} {coordinate} {artifact}-{version}.jar"

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve the published files until the end of the block."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=DEADLINE_S)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, repository: Repository, *arguments: Any) -> None:
        self.repository = repository
        super().__init__(*arguments, directory=str(repository.folder))

    def do_GET(self) -> None:
        self.repository.fetched[self.path.rpartition("/")[2]] += 1
        super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        return None
