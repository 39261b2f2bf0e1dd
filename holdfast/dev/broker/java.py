"""The Java that nodes run with: its program, its class path, and how it finds its classes quickly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """The Java program and the class path every node runs with; *sharing* are flags of a class archive."""

    program: Path
    class_path: str
    sharing: tuple[str, ...] = ()

    def command(self, *flags: str) -> list[str]:
        """Return the beginning of a command line, up to the main class."""
        return [str(self.program), *flags, *self.sharing, "-cp", self.class_path]
