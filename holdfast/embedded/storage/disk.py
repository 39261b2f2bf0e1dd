"""The files of a broker's folder: few are open at a time, unsynced ones are known, and the first write that
fails is the last one.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import BrokerFolderError

LIMIT_OPEN = 64
"""Files that are open at a time; of the others, the one used longest ago is closed."""
_ADVICE = {
    errno.ENOSPC: "make room on the disk, then start it again",
    errno.EDQUOT: "make room in the user's quota, then start it again",
    errno.EFBIG: "raise the limit on file sizes of this process (ulimit -f), then start it again",
    errno.EMFILE: "raise the limit on open files of this process (ulimit -n), then start it again",
    errno.EACCES: "let this user write there, or take another folder",
    errno.EPERM: "let this user write there, or take another folder",
    errno.EROFS: "the disk is mounted to be read only; take another folder",
}


def folder_error(doing: str, path: Path, error: OSError) -> BrokerFolderError:
    """Return the error for an *error* of the system, with its remedy."""
    advice = _ADVICE.get(error.errno or 0, "look at the disk, then start it again")
    return BrokerFolderError(f"the embedded Kafka cannot {doing} {path}: {error.strerror or error}; {advice}")


class Disk:
    """Reads and writes whole files and their ends. Its creator must call `close`.

    A write goes to the system at once, so it outlives the process; with *fsync* it is noted as unsynced until
    `sync`, so that answers can wait for it. After a failure nothing is written any more: memory is then ahead
    of the files, and a broker must start from these again. `on_failure` is called once. A read that fails is
    such a failure too.
    """

    def __init__(self, *, fsync: bool, limit_open: int = LIMIT_OPEN) -> None:
        self.fsync = fsync
        self.failure: BrokerFolderError | None = None
        self.on_failure: Callable[[BrokerFolderError], None] | None = None
        self._limit = limit_open
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._unsynced: set[Path] = set()
        self._unflushed: set[Path] = set()
        """Without *fsync*: the files, with their folders, in which something was written that is nowhere
        else, for `flush`.
        """
        self._syncing: set[Path] = set()
        """The files that a thread syncs now: it is unknown whether they are on the disk."""

    def __len__(self) -> int:
        """Return how many files are open."""
        return len(self._open)

    # -- the ends of files

    def create(self, path: Path) -> None:
        """Make an empty file."""
        with self._doing("make", path):
            self._forget(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
            self._changed(path, path.parent)

    def append(self, path: Path, data: bytes) -> None:
        """Write *data* at the end of a file."""
        if self.failure is not None:
            raise self.failure
        try:
            left = memoryview(data)
            while left:
                left = left[self._write(self._descriptor(path), left) :]
        except OSError as error:
            raise self._failed("write to", path, error) from error
        self._written(path)

    def _write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def overwrite(self, path: Path, at: int, data: bytes) -> None:
        """Write *data* over what a file has at *at*."""
        with self._doing("write to", path):
            descriptor = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(descriptor, data, at)
            finally:
                os.close(descriptor)
            self._changed(path)

    def read(self, path: Path, at: int, size: int) -> bytes:
        """Return *size* bytes of a file from *at* on."""
        try:
            data = os.pread(self._descriptor(path), size, at)
        except OSError as error:
            raise self._failed("read", path, error) from error
        if len(data) < size:
            raise self.fail(
                BrokerFolderError(
                    f"{path} ends at byte {at + len(data)}, though {at + size} were written: was it changed"
                    " by another program? Start the embedded Kafka again"
                )
            )
        return data

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file off at *size*."""
        with self._doing("truncate", path):
            os.truncate(path, size)
            self._changed(path)

    # -- whole files

    def write(self, path: Path, data: bytes) -> None:
        """Have a file hold *data*; after a crash it may hold a part."""
        with self._doing("write", path):
            path.write_bytes(data)
            self._changed(path, path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Have a file hold *data*: after a crash it has either that or what it had before."""
        written = path.with_name(f"{path.name}.tmp")
        with self._doing("write", path):
            written.write_bytes(data)
            self._changed(written)
            self.sync()
            written.rename(path)
            self._renamed(written, path)

    def rename(self, path: Path, to: Path) -> None:
        with self._doing("rename", path):
            self.sync()  # what has its new name is whole
            self._forget(path)
            self._forget(to)
            path.rename(to)
            self._renamed(path, to)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        with self._doing("remove", path):
            self._forget(path)
            if path.exists():
                path.unlink()
                self._changed(path.parent)

    def make_folder(self, path: Path) -> None:
        """Make a folder, if it is not there."""
        with self._doing("make", path):
            if not path.exists():
                path.mkdir()
                self._changed(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder with all that is in it, if it is there."""
        with self._doing("remove", path):
            for each in [each for each in self._open if each.parent == path]:
                self._forget(each)
            for noted in (self._unsynced, self._unflushed):
                noted -= {each for each in noted if path in (each, each.parent)}
            if path.exists():
                import shutil

                shutil.rmtree(path)
                self._changed(path.parent)

    def space(self, path: Path) -> tuple[int, int]:
        """Return how many bytes the disk has on which *path* lies, and how many of them are free."""
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise self._failed("look at", path, error) from error
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail

    # -- syncing

    @property
    def is_unsynced(self) -> bool:
        """Return whether something was written that a power cut may still take."""
        return bool(self._unsynced)

    def take_unsynced(self) -> set[Path]:
        """Return the files that `sync_files` is to sync in a thread; the caller reports by `synced` when that
        was done.
        """
        self._syncing, self._unsynced = self._unsynced, set()
        return self._syncing

    def synced(self) -> None:
        """Note that the taken files are on the disk."""
        self._syncing = set()

    def sync_files(self, paths: Iterable[Path]) -> None:
        """Sync files and folders; a missing one is skipped. It may be called in another thread."""
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise folder_error("sync", path, error) from error
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise folder_error("sync", path, error) from error
            finally:
                os.close(descriptor)

    def sync(self) -> None:
        """Have all that was written be on the disk, if that is asked for at all: what a thread syncs now,
        too.
        """
        wanted = self._unsynced | self._syncing
        if wanted:
            self._unsynced = set()
            try:
                self.sync_files(wanted)
            except BrokerFolderError as error:
                raise self.fail(error) from error

    def flush(self) -> None:
        """Have all records be on the disk, asked for or not: at the end, as Kafka does."""
        self._unsynced |= self._unflushed
        self._unflushed = set()
        self.sync()

    def fail(self, failure: BrokerFolderError) -> BrokerFolderError:
        """Write no more, because of *failure*; return the first there was."""
        if self.failure is None:
            self.failure = failure
            if self.on_failure is not None:
                self.on_failure(failure)
        return self.failure

    def close(self) -> None:
        """Close every file."""
        while self._open:
            os.close(self._open.popitem()[1])

    # -- inside

    @contextmanager
    def _doing(self, what: str, path: Path) -> Iterator[None]:
        if self.failure is not None:
            raise self.failure
        try:
            yield
        except OSError as error:
            raise self._failed(what, path, error) from error

    def _failed(self, doing: str, path: Path, error: OSError) -> BrokerFolderError:
        return self.fail(folder_error(doing, path, error))

    def _changed(self, *paths: Path) -> None:
        if self.fsync:
            self._unsynced.update(paths)

    def _written(self, path: Path) -> None:
        self._changed(path)
        if not self.fsync:
            self._unflushed.update((path, path.parent))

    def _renamed(self, path: Path, to: Path) -> None:
        """Note that *path* is *to* now: synced before, if that is asked for, and else still to be flushed."""
        self._unsynced.discard(path)
        self._changed(to.parent)
        if not self.fsync:
            self._unflushed.discard(path)
            self._written(to)

    def _descriptor(self, path: Path) -> int:
        if (found := self._open.get(path)) is not None:
            self._open.move_to_end(path)
            return found
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        self._open[path] = os.open(path, os.O_RDWR | os.O_APPEND)
        return self._open[path]

    def _forget(self, path: Path) -> None:
        self._unsynced.discard(path)
        self._unflushed.discard(path)
        if (descriptor := self._open.pop(path, None)) is not None:
            os.close(descriptor)
