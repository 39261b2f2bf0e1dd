"""Rows in memory, and in a temporary file when they become many: of a partition's state while it is folded,
and of the copies of global tables.

Each partition that is folded has a copy of its own, since it sees its own positions; a Spark executor folds
several at once.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from holdfast.core.engine.state.codec import META
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import PipelineError

LIMIT_BYTES = 64 << 20
"""The memory that the rows of a copy may take, about."""
STATE_MEMORY_BYTES = 256 << 20
"""The memory that the rows of a folded partition may take, about."""
ROW_BYTES = 200
"""The memory that a row takes besides its key and value, about."""
PAGE_ROWS, PAGE_BYTES = 1_000, 1 << 20
"""So many rows are read from a file at once, or so many bytes of them and the row with which they become
more.
"""
_CACHE_KIB = 16 << 10

_CREATE = "CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_PUT = "INSERT INTO rows VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE = "DELETE FROM rows WHERE key = ?"
_GET = "SELECT value FROM rows WHERE key = ?"
_FROM = "SELECT key, value FROM rows WHERE key >= ? ORDER BY key LIMIT ?"


class FoldStore(Protocol):
    """The committed rows of a partition, as a fold reads and changes them."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None: ...

    def everything(self) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...


class SpillingStore:
    """Rows by key; *limit_bytes* of them in memory, all in a temporary file when there are more. Close it
    when done.

    PipelineError when the file cannot be written or read.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes, self._bytes = limit_bytes, 0
        self._memory: DictStore | None = DictStore()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._db: sqlite3.Connection | None = None

    def get(self, key: bytes) -> bytes | None:
        if self._memory is not None:
            return self._memory.get(key)
        try:
            found = self._file().execute(_GET, (key,)).fetchone()
        except sqlite3.Error as error:
            raise _failed(error) from error
        return None if found is None else bytes(found[0])

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with *prefix* in key order, from *start* on."""
        if self._memory is None:
            return self._scan_file(prefix, max(prefix, start))
        return self._memory.scan(prefix, start)

    def _scan_file(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            page, is_last = self._page(start)
            for key, value in page:
                if not key.startswith(prefix):
                    return
                yield key, value
            if is_last:
                return
            start = page[-1][0] + b"\x00"

    def _page(self, start: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Return the next rows from *start* on, and whether they are the last."""
        page, left = list[tuple[bytes, bytes]](), PAGE_BYTES
        try:
            with closing(self._file().execute(_FROM, (start, PAGE_ROWS))) as found:
                for row in found:
                    page.append(row)
                    left -= len(row[0]) + len(row[1])
                    if left < 0:
                        return page, False
        except sqlite3.Error as error:
            raise _failed(error) from error
        return page, len(page) < PAGE_ROWS

    def everything(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows and timers in key order; bookkeeping is left out."""
        return ((key, value) for key, value in self.scan(b"") if key[:1] != META)

    @property
    def has_spilled(self) -> bool:
        """Return whether the rows are in a file."""
        return self._memory is None

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take changes, all at once, which name each key once; None removes."""
        if self._memory is None:
            self._write(puts)
            return
        changes = [*puts]
        for key, value in changes:
            before = self._memory.get(key)
            self._bytes -= 0 if before is None else ROW_BYTES + len(key) + len(before)
            self._bytes += 0 if value is None else ROW_BYTES + len(key) + len(value)
        self._memory.apply(changes)
        if self._bytes > self._limit_bytes:
            rows, self._memory = self._memory.scan(b""), None
            self._write(rows)

    def _write(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        try:
            db, gone = self._file(), list[tuple[bytes]]()
            with db:
                # Each key comes once, so the order of both does not matter.
                db.executemany(_PUT, _kept(puts, gone))
                db.executemany(_DELETE, gone)
        except (sqlite3.Error, OSError) as error:
            raise _failed(error) from error

    def _file(self) -> sqlite3.Connection:
        if self._db is None:
            self._folder = tempfile.TemporaryDirectory(prefix="holdfast-rows-")
            self._db = sqlite3.connect(Path(self._folder.name) / "rows", check_same_thread=False)
            # Nothing of it outlives the fold.
            for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
                with closing(self._db.execute(f"PRAGMA {pragma}")):
                    pass
            self._db.execute(_CREATE)
        return self._db

    def close(self) -> None:
        """Forget the rows, and remove the file."""
        self._memory = None
        db, self._db = self._db, None
        if db is not None:
            db.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()


def _kept(
    puts: Iterable[tuple[bytes, bytes | None]], gone: list[tuple[bytes]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the changes that are no removals, and note the keys of these in *gone*."""
    for each in puts:
        if each[1] is None:
            gone.append((each[0],))
        else:
            yield each


def _failed(error: Exception) -> PipelineError:
    return PipelineError(
        f"rows cannot be kept in a file in {tempfile.gettempdir()}: {error}; give it room, or set TMPDIR to a"
        " folder with more"
    )
