"""The JVM's own archive of loaded classes (class data sharing): later JVMs with the same jars start in half
the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from holdfast.clock import system_clock
from holdfast.jars import exclusive

ARCHIVES_KEPT = 4
"""Environments and worktrees of one user have an archive each: none may cost the others theirs."""

# The JVM continues without an archive that does not fit it, and says so on every start: that is of no use.
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """An archive for one JDK and one class path, and where it is written if it is not there yet.

    A JVM makes it at its exit under a name of its own, then `keep` renames it: a half-written one is never
    used. The JVM checks it against itself and its class path, and silently does without one that does not
    fit.
    """

    path: Path
    made_at: Path | None

    @classmethod
    def of(cls, folder: Path, java: Path, class_path: Iterable[str | Path]) -> Self:
        """Return the archive in *folder* of programs that run on *java* with *class_path*."""
        program = java.resolve()
        release = program.parents[1] / "release"
        parts = [str(program), release.read_text() if release.exists() else "", *map(str, class_path)]
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        path = folder / f"classes-{key}.jsa"
        with contextlib.suppress(OSError):  # there is none, or it is another user's
            os.utime(path)  # `keep` drops those that were used longest ago
        return cls(path=path, made_at=None if path.exists() else path.with_suffix(f".{os.getpid()}.making"))

    def flags(self) -> list[str]:
        """Return the flags of a JVM: to use the archive or, where there is none, to make it."""
        if self.made_at is None:
            return [f"-XX:SharedArchiveFile={self.path}", *_QUIET]
        return [f"-XX:ArchiveClassesAtExit={self.made_at}", *_QUIET]

    def keep(self) -> None:
        """Take what the ended JVM wrote, and drop the archives that were used longest ago and what JVMs left
        that died while writing; `ARCHIVES_KEPT` archives stay.
        """
        if self.made_at is None or not self.made_at.exists():
            return
        os.replace(self.made_at, self.path)
        folder = self.path.parent
        by_use = sorted(folder.glob("classes-*.jsa"), key=_used_at_s, reverse=True)
        unfinished = set(folder.glob("classes-*")) - {*by_use}
        for old in (*by_use[ARCHIVES_KEPT:], *unfinished):
            if old != self.path:
                old.unlink(missing_ok=True)


def shared_classes(
    of: Callable[[], ClassArchive], run_once: Callable[[list[str]], None], *, deadline_s: float
) -> tuple[str, ...]:
    """Return the flags for programs that share the archive which *of* finds; none where none could be made.

    If there is none yet, *run_once* is called with the flags of a JVM that makes it. It starts an otherwise
    unused JVM, has it load the classes that the others will, and ends it in good order. Other processes wait
    for that.
    """
    archive = of()
    if archive.made_at is not None:
        lock = archive.path.with_name("making.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(lock, deadline_at_s=system_clock.monotonic_s() + deadline_s):
            if (archive := of()).made_at is not None:  # no other process made it since
                run_once(archive.flags())
                archive.keep()
        archive = of()
    return tuple(archive.flags()) if archive.made_at is None else ()


def _used_at_s(path: Path) -> float:
    """Return when an archive was last used; 0 for one that another process has dropped since."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
