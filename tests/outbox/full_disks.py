"""Disks that are really full: a small file system of the test's own or, where none may be mounted, a limit
on what a server may write.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from holdfast.dev.databases.servers import Postgres

SIZE_MB = 160
LIMIT_BYTES = 256 << 10
"""Room for the server's complaints."""
_BALLAST = "ballast"


class Disk(Protocol):
    """The folder where a server keeps its data."""

    folder: Path
    said: str
    """The operating system's message when nothing more fits."""

    def fill(self, server: Postgres) -> None:
        """Leave no room."""

    def free(self, server: Postgres) -> None:
        """Make room again."""


class Mounted:
    """A file system of 160 MB in memory."""

    said = "No space left on device"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, server: Postgres) -> None:
        with (self.folder / _BALLAST).open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def free(self, server: Postgres) -> None:
        (self.folder / _BALLAST).unlink()


class Limited:
    """A folder of the machine's disk, whose server may write to no file beyond its first 256 KB from some
    moment on.
    """

    said = "File too large"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, server: Postgres) -> None:
        self._limit(server, LIMIT_BYTES)

    def free(self, server: Postgres) -> None:
        self._limit(server, resource.RLIM_INFINITY)

    def _limit(self, server: Postgres, size: int) -> None:
        owner = server.folder.stat().st_uid
        if owner == os.geteuid():
            _set_limits(server.processes(), size)
            return
        # A process's own user may change its limits, whatever root is denied where the tests run.
        pids, group = server.processes(), pwd.getpwuid(owner).pw_gid
        if not (child := os.fork()):
            status = 1
            try:
                os.setgroups([])
                os.setresgid(group, group, group)
                os.setresuid(owner, owner, owner)
                _set_limits(pids, size)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _set_limits(pids: list[int], size: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(
                pid, resource.RLIMIT_FSIZE, (size, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1])
            )


@contextlib.contextmanager
def small_disk(*, mounted: bool = True) -> Iterator[Disk]:
    """Give a disk that can be filled to the last byte without harm to anybody else."""
    with tempfile.TemporaryDirectory(prefix="holdfast-disk-") as name:
        folder = Path(name)
        options = f"size={SIZE_MB}m,mode=755"
        is_mounted = (
            mounted
            and subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", name], check=False).returncode
            == 0
        )
        folder.chmod(0o755)
        try:
            yield Mounted(folder) if is_mounted else Limited(folder)
        finally:
            if is_mounted:
                subprocess.run(["umount", "-l", name], check=True)
