"""The rows of a worker's copy of a global table: a RocksDB store that each start recreates, within the
worker's memory budget.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import rocksdict as R

from holdfast.errors import StoreError
from holdfast.tables.rocks import UNLOGGED, Budget, batch_of, make_private


class GlobalStore:
    """Committed rows by key. Nothing of it outlives the process, so writes are not logged."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self._path = path
        try:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True, mode=0o700)
            make_private(path)  # before anything is written where a link may lead
            self._db = R.Rdict(str(path), budget.options())
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"cannot make the store {path} of a global table: {error}; check the disk and the rights of"
                " data_dir"
            ) from error
        make_private(path)

    def get(self, key: bytes) -> bytes | None:
        return cast("bytes | None", self._db.get(key))

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with *prefix* in key order, from *start* on, as they are when this is called."""
        cursor = self._db.iter()
        cursor.seek(max(prefix, start))
        return _walk(cursor, prefix)

    def apply(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take changes, all at once; None removes."""
        self._db.write(batch_of([*puts]), UNLOGGED)

    def approximate_rows(self) -> int:
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def destroy(self) -> None:
        """Close the store and remove its files."""
        self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)


def _walk(cursor: R.RdictIter, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    while cursor.valid():
        key = cast(bytes, cursor.key())
        if not key.startswith(prefix):
            return
        yield key, cast(bytes, cursor.value())
        cursor.next()
    cursor.status()
