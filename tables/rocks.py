"""RocksDB as a worker uses it: the memory its stores share, how batches are written, whose its files are, and
which of its errors say nothing of what a store holds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from stat import S_ISDIR, S_ISLNK

import rocksdict as R

from holdfast.errors import StoreError

Put = tuple[bytes, bytes | None]
BY_KEY = itemgetter(0)

LOGGED, UNLOGGED = R.WriteOptions(), R.WriteOptions()
"""With RocksDB's write-ahead log and without."""
UNLOGGED.disable_wal = True  # type: ignore[method-assign, assignment]


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory all stores of a process share: block cache and write buffers."""

    cache: R.Cache
    write_buffers: R.WriteBufferManager
    write_buffer_bytes: int

    @classmethod
    def of(cls, cache_bytes: int, write_buffer_bytes: int) -> Budget:
        """Return a budget; write buffers are counted on their own, so that a full cache cannot stall
        writes.
        """
        return cls(R.Cache(cache_bytes), R.WriteBufferManager(write_buffer_bytes, False), write_buffer_bytes)

    def options(self) -> R.Options:
        options = R.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_manager(self.write_buffers)
        # Inserting into 4 MiB takes half the time of 16, which no processor's cache holds; rocksdict keeps
        # the GIL for that time. For the same reason a slow disk must not hold up a write soon: 48 MiB may
        # wait to be flushed, and four times RocksDB's usual files to be merged.
        options.set_write_buffer_size(max(1 << 18, min(4 << 20, self.write_buffer_bytes // 16)))
        options.set_max_write_buffer_number(12)
        options.set_level_zero_slowdown_writes_trigger(80)
        options.set_level_zero_stop_writes_trigger(144)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(2)
        options.set_max_total_wal_size(self.write_buffer_bytes)
        options.set_compression_type(R.DBCompressionType.lz4())
        options.set_paranoid_checks(True)
        blocks = R.BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_bloom_filter(10, False)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # In parts: a large file's index and filter are some 600 kB each, and a cache that cannot hold those
        # of all files would read one from disk for each row that is looked up.
        blocks.set_index_type(R.BlockBasedIndexType.two_level_index_search())
        blocks.set_partition_filters(True)
        blocks.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(blocks)
        return options


def batch_of(rows: Sequence[Put]) -> R.WriteBatch:
    """Return a batch that writes *rows*, in their order: RocksDB inserts neighbours in two thirds of the
    time.
    """
    batch = R.WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    for key, value in rows:
        if value is None:
            delete(key)
        else:
            put(key, value)
    return batch


PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def make_private(folder: Path) -> None:
    """Keep other accounts out of a store: its folder, which files made later lie in too, and what lies there
    already.

    RocksDB makes files as the umask says, and a process has only one: it is the folder that keeps them from
    others. While it did not, another account may have put folders and links there: those are refused, for
    they would have this account write and change elsewhere. A link to a folder, of this account or root,
    is the operator's.
    """
    try:
        for path in (folder.parent, folder):
            _require_own(path.lstat(), path)
            _privately(path.stat(), path)
        for path in folder.iterdir():
            found = path.lstat()
            if S_ISLNK(found.st_mode):
                raise StoreError(
                    f"{path} is a link, which no store has: remove it, and look who put it there"
                )
            _privately(found, path)
    except OSError as error:
        raise StoreError(
            f"cannot keep the store {folder} from other accounts: {error}; the disk must be writable, and the"
            " data folder the account's of the worker"
        ) from error


def _require_own(found: os.stat_result, path: Path) -> None:
    """Refuse what another account than this one, or root, has put in place."""
    if found.st_uid not in (os.geteuid(), 0):
        raise StoreError(
            f"{path} belongs to another account (uid {found.st_uid}), and not to the worker's: chown it, or"
            " name another data_dir"
        )


def _privately(found: os.stat_result, path: Path) -> None:
    if S_ISDIR(found.st_mode):
        _require_own(found, path)
    if found.st_mode & 0o077:
        path.chmod(PRIVATE_FOLDER if S_ISDIR(found.st_mode) else PRIVATE_FILE)


_TROUBLES = (
    "No space left",
    "quota exceeded",
    "File too large",
    "Too many open files",
    "Cannot allocate memory",
    "Permission denied",
    "Read-only file system",
)
"""Messages of operating systems about a disk, a process or an account, and never about the content of a
file.
"""


def spares_content(error: Exception) -> bool:
    """Return whether *error* comes of the disk, the process or the account: the store may well be good."""
    return any(trouble in str(error) for trouble in _TROUBLES)
