"""The Java a node runs with: its program, its class path and, where there is one, an archive of its classes.

A node loads some 9,000 classes from 60 jars before it answers. Kept as the JVM's own archive (class data
sharing) they cost a node of a test session 1.4 s of processor time in place of 2.4 s.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.dev.broker import jars
from holdfast.jars import cache_folder

# The JVM goes on without an archive that does not fit it, and only its log would tell: that goes to nobody.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """The Java program and the class path every node runs with; *archive* is a file that may be missing."""

    program: Path
    class_path: str
    archive: Path | None = None

    @classmethod
    def find(cls) -> Java:
        """Return the JDK of this machine with the verified jars of the broker.

        Its archive is named after all that it is made from, so that another JDK or Kafka makes its own.
        """
        program, class_path = jars.find_java(), jars.class_path()
        installed = os.stat(os.path.realpath(program))
        origin = f"{os.path.realpath(program)} {installed.st_size} {installed.st_mtime_ns} {class_path}"
        name = hashlib.sha256(origin.encode()).hexdigest()[:16]
        archive = cache_folder() / "classes" / f"kafka-{jars.KAFKA_VERSION}-{name}.jsa"
        return cls(program=program, class_path=class_path, archive=archive)

    def command(self, *flags: str, record: Path | None = None) -> list[str]:
        """Return the beginning of a command line, up to the main class; *record* is an archive to make."""
        if record is not None:
            sharing = [f"-XX:ArchiveClassesAtExit={record}", *_QUIET]
        elif self.archive is not None and self.archive.exists():
            sharing = [f"-XX:SharedArchiveFile={self.archive}", *_QUIET]
        else:
            sharing = []
        return [str(self.program), *flags, *sharing, "-cp", self.class_path]
