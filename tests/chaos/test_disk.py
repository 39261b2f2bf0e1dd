"""The disk under the stores is full: the worker ends and reports why, corrupts nothing, and resumes where it
was once there is room.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import MakeApplication
from tests.support.harness import Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

SIZE_MB = 64


class Disk:
    """A small disk that can be filled and freed: a tmpfs where we may mount one, else a limit on how large
    a file may grow.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler, self._full = folder, folder / "filler", False
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(folder)]
        self.mounted = (
            os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        )

    def fill(self) -> None:
        self._full = True
        if self.mounted:
            with self._filler.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(1 << 16))

    def confine(self, worker: Worker) -> None:
        """Have the fullness apply to a running worker, if it is a limit."""
        if self._full and not self.mounted:
            used = max(each.stat().st_size for each in self.folder.rglob("*.log"))
            resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (used + 4096, used + 4096))

    def free(self) -> None:
        self._full = False
        if self.mounted:
            self._filler.unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.close()


@pytest.mark.slow
def test_a_full_disk_ends_the_worker_with_a_clear_message_and_costs_nothing(
    application: MakeApplication,
) -> None:
    app = application(partitions=2, instance_id="only")
    worker = app.worker()
    with small_disk(worker.data) as disk:
        load = app.load(rate=1_000, seed=91)
        worker.start().wait_ready()
        wait_for("some work", lambda: sum(worker.applied().values()) > 2_000, DEADLINE_S, worker.tail)
        disk.fill()
        disk.confine(worker)
        code = worker.wait_exit(DEADLINE_S)
        assert code > 0
        assert worker.said(
            "leaving: cannot write the store .*; nothing is lost .*free the disk and restart"
        ), worker.tail()
        if disk.mounted:
            code = worker.start().wait_exit(DEADLINE_S)
            assert code > 0, "there is still no room"
            assert worker.said(r"leaving: cannot (open|write) the store .*No space left.*"), worker.tail()
            assert worker.said("set aside") == [], "a good store was given up because the disk was full"
        disk.free()
        worker.start().wait_ready()
        assert worker.said("set aside") == [], "a good store was given up because the disk was full"
        prove(app, load.stop())


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_ends_the_worker_with_a_clear_message_and_costs_nothing(
    application: MakeApplication,
) -> None:
    app = application(partitions=2, instance_id="only")
    worker = app.worker()
    with small_disk(worker.data) as disk:
        if not disk.mounted:
            pytest.skip("no disk may be mounted here")
        load = app.load(rate=1_000, seed=92)
        worker.start().wait_ready()
        wait_for("some work", lambda: sum(worker.applied().values()) > 2_000, DEADLINE_S, worker.tail)
        worker.kill()  # a disk on which files are open for writing is not made read-only
        disk.remount("ro")
        for _ in range(2):
            assert worker.start().wait_exit(DEADLINE_S) > 0
            assert worker.said(r"leaving: .*Read-only file system"), worker.tail()
            assert len(worker.said("leaving: ")) <= 2, worker.tail()
            assert worker.said("set aside") == [], "a good store was given up because nothing can be written"
        disk.remount("rw")
        worker.start().wait_ready()
        assert worker.said("set aside") == []
        prove(app, load.stop())
