"""The store of one partition: its rows, timers and position on disk, each state whole."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast
from weakref import WeakSet

import msgspec
import rocksdict as R

from holdfast.core.engine.positions import Position, PositionFormat, encode_position, plain_format
from holdfast.core.engine.state.codec import APPLIED, META, WAKE, key_in_table, place_of_row
from holdfast.core.engine.state.handover import HANDOVER, Handover, decode_handover
from holdfast.core.engine.state.lost_heads import LOST_HEADS, LostHeads, decode_lost_heads
from holdfast.core.engine.state.recovery import RECOVERY, Recovery, decode_recovery
from holdfast.core.engine.state.source_ids import SOURCE_IDS
from holdfast.core.engine.state.timers import Timer
from holdfast.errors import ChangelogError, RottenStoreError, StateError, StoreError
from holdfast.tables.aside import scratch_of, set_aside
from holdfast.tables.pins import Pinned, PinnedState, check_all, check_end, passing_by
from holdfast.tables.rocks import (
    BY_KEY,
    LOGGED,
    PRIVATE_FOLDER,
    UNLOGGED,
    Budget,
    Put,
    batch_of,
    make_private,
    spares_content,
)
from holdfast.tables.timer_order import ORDERED, first_of, order, order_all

logger = logging.getLogger(__name__)

STORE_FORMAT = 1
NEVER_TOUCHED = -1
WRITE_ROWS = 4_000
"""rocksdict keeps Python's lock for a whole WriteBatch, 1 us a row: a larger transaction is written in
pieces of so many rows.
"""

_STAMP = META + b"stamp"
_CHANGELOG = META + b"changelog"
_TOUCHED = META + b"touched"
_PIECES = META + b"pieces"
_CLOSED = META + b"closed"
"""The changelog offset of a store that was closed in good order, until it is opened again; an older
version does not take it back then.
"""
_READ_FROM = META + b"read-from"
"""The changelog offset at which the reading of this store began, where that is not the first: what lay before
is gone.
"""
_BEFORE = META + b"before"
"""Position and ids of the sources in the store that this one replaces, whose changelog was another topic: it
had folded so much, whatever the new one holds.
"""
_ROTTEN = META + b"rotten"
"""Why the store must not be used, when damage was found and it could not be set aside at once."""

T = TypeVar("T")


class StoreStamp(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a store's state. A store whose stamp differs in anything is set aside and rebuilt, never
    trusted.

    *cluster_id* and *changelog_id* are Kafka's own: a topic deleted and made again has another id.
    """

    app: str
    processor: str
    version: int
    partition: int
    cluster_id: str
    changelog_id: str
    format: int = STORE_FORMAT


_decode_stamp = msgspec.msgpack.Decoder(StoreStamp).decode


class LostState(msgspec.Struct, frozen=True, array_like=True):
    """The last position that a store knows of a state whose changelog is gone, and the ids of its sources,
    both as stored.
    """

    marker: bytes
    sources: bytes | None


_decode_lost = msgspec.msgpack.Decoder(LostState).decode


class PartitionStore:
    """Committed rows, timers and position of one partition, on disk.

    A write is one WriteBatch of rows, position and changelog offset together, so that after any crash the
    store is some committed state, whole. Many rows are written in pieces, position and offset with the last;
    readers see none of it before. The pieces note how far in the changelog they reach: after a crash in
    between the store is not `whole` until the changelog, where all of it is, has been read that far. The log
    is not synced: what a power loss takes is read again from the changelog.

    A restore writes without RocksDB's log: a crash then leaves an earlier state, also whole, since memtables
    are flushed in the order they were filled. The first write with the log flushes them before: over a hole
    the log's rows would be of no state.

    Every block that is read is compared with its checksum, and all are when a store was not closed in good
    order. One that fails is `rotten`: nothing more is read from it, and it is set aside at the latest when it
    is opened next.
    """

    def __init__(
        self, path: Path, stamp: StoreStamp, budget: Budget, positions: PositionFormat | None = None
    ) -> None:
        self.path, self.stamp, self._budget = path, stamp, budget
        self._positions = plain_format(stamp.version) if positions is None else positions
        self._before: Pinned | None = None
        self._unlogged = False
        self._pins: WeakSet[Pinned] = WeakSet()
        self.rotten: str | None = None
        """Why the store's content is not to be believed; None while there is no reason."""
        self.lost_heads: LostHeads = {}
        """The deleted heads of the sources from before this table began."""
        self.handover: Handover | None = None
        """The position up to which it is silent; None if it was not declared so."""
        self.recovery: Recovery | None = None
        """The recovery after its changelog had lost its records; None without one."""
        self.read_from = 0
        """The changelog offset at which its reading began."""
        self.before: LostState | None = None
        """The state before this one, whose changelog was another topic."""
        self.on_rotten: Callable[[str], None] = lambda cause: None
        """Called once, by whichever thread finds out."""
        self._open()
        self.readable = self.whole
        """True if readers see a committed state; it stays so while a transaction is written in pieces, since
        they see the one before.
        """

    def _open(self) -> None:
        shutil.rmtree(scratch_of(self.path), ignore_errors=True)
        if self.path.exists():
            make_private(self.path)
            cause = self._unfit()
            if cause is None and (cause := self._unsound()) is None:
                self._order_timers()
                return
            self._set_aside(cause)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
            self.path.mkdir(mode=PRIVATE_FOLDER)  # before RocksDB does, which would ask the umask
            make_private(self.path)
            self._db = R.Rdict(str(self.path), self._budget.options())
            self._db[_STAMP] = msgspec.msgpack.encode(self.stamp)
            if self.before is not None:
                self._db[_BEFORE] = msgspec.msgpack.encode(self.before)
        except Exception as error:
            raise StoreError(
                f"cannot create the store {self.path}: {error}; check the disk and permissions of the data"
                " folder"
            ) from error
        self.marker: Position
        self.marker, self.changelog_next, self._whole_at = self._positions.start, 0, 0
        self.lost_heads, self.handover, self.recovery, self.read_from = {}, None, None, 0

    def _unfit(self) -> str | None:
        """Open the store found on disk; return why it must not be used, or None when it is open and fits."""
        try:
            self._db = R.Rdict(str(self.path), self._budget.options())
        except Exception as error:
            if "lock" in str(error).lower():
                raise StoreError(
                    f"the store {self.path} is in use by another process: give each worker a data_dir of its"
                    " own (`holdfast worker --data-dir`)"
                ) from error
            if spares_content(error):
                # The store may well be good: the fault is in the disk or its permissions, and a rebuild would
                # need more room yet.
                raise StoreError(
                    f"cannot open the store {self.path}: {error}; cure that and restart, the store is left as"
                    " it is"
                ) from error
            return f"it cannot be opened: {error}"
        try:
            found = _decode_stamp(self._db.get(_STAMP) or b"")
            marker, offset = self._db.get(APPLIED), self._db.get(_CHANGELOG)
            if found == self.stamp:
                self.marker = self._positions.decode(marker) if marker else self._positions.start
                self.changelog_next = int(offset) if offset else 0
                self._whole_at = int(self._db.get(_PIECES) or 0)
                self.lost_heads = decode_lost_heads(self._db.get(LOST_HEADS))
                self.handover = decode_handover(self._db.get(HANDOVER))
                self.recovery = decode_recovery(self._db.get(RECOVERY))
                self.read_from = int(self._db.get(_READ_FROM) or 0)
                before = self._db.get(_BEFORE)
                self.before = None if before is None else _decode_lost(before)
                return None
            cause = f"it belongs to {found}"
            if marker and msgspec.structs.replace(found, changelog_id=self.stamp.changelog_id) == self.stamp:
                self.before = LostState(marker, self._db.get(SOURCE_IDS))
        except (msgspec.DecodeError, StateError, ValueError) as error:
            cause = f"it is corrupt or of a newer format: {error}"
        except Exception as error:  # noqa: BLE001  RocksDB tells corruption by plain exceptions
            cause = f"it cannot be read: {error}"
        self._close_db()
        return cause

    def _unsound(self) -> str | None:
        """Return why the store that was just opened is rotten, None when it is sound; it is closed then.

        A store that was closed in good order is believed, and each of its blocks verified when it is read.
        After a kill or a power loss all of it is read first: what a disk did then shows now, and not in the
        middle of a transaction.
        """
        try:
            found = cast("bytes | None", self._db.get(_ROTTEN))
            if found is None:
                if self._db.get(_CLOSED) != b"%d" % self.changelog_next:
                    check_all(self._db)
                self._db.delete(_CLOSED)
                return None
            self.rotten = found.decode()
        except Exception as error:
            if spares_content(error):
                self._close_db()
                raise StoreError(
                    f"cannot read the store {self.path}: {error}; cure that and restart, the store is left as"
                    " it is"
                ) from error
            self.rotten = f"it was not closed in good order and is damaged: {error}"
        self._close_db()
        return self.rotten

    def _set_aside(self, cause: str) -> None:
        """Move a store that must not be used out of the way, keeping the newest such one for inspection;
        of rotten ones a few.
        """
        rotten = self.rotten is not None
        try:
            aside = set_aside(self.path, rotten=rotten)
        except OSError as error:
            raise StoreError(
                f"cannot set the store {self.path} aside: {error}; its worker must be able to write to its"
                " data folder"
            ) from error
        logger.log(
            logging.ERROR if rotten else logging.WARNING,
            "store %(store)s set aside as %(aside)s and rebuilt: %(cause)s",
            {"store": self.path, "aside": aside.name, "cause": cause},
        )
        self.rotten = None

    def reads_from(self, offset: int) -> None:
        """Note that the changelog is read from *offset* on, into this empty store: nothing is left before."""
        if offset:
            self._db[_READ_FROM] = b"%d" % offset
            self.read_from = offset

    def rebuild(self, cause: str) -> None:
        """Set the store aside and start an empty one."""
        if self.before is None and self.rotten is None and (marker := self._db.get(APPLIED)):
            self.before = LostState(marker, self._db.get(SOURCE_IDS))
        self._shut()
        self._set_aside(cause)
        self._unlogged = False
        self._open()
        self.readable = self.whole

    @property
    def whole(self) -> bool:
        """Return False while some rows may be of a later position than the marker's: the rest of a
        transaction has not come.
        """
        return self.changelog_next >= self._whole_at

    # -- reads; safe from any thread

    def get(self, key: bytes) -> bytes | None:
        before = self._before
        try:
            return cast("bytes | None", self._db.get(key)) if before is None else before.get(key)
        except Exception as error:
            raise self._unread(error) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        return self._read(
            lambda before: list(map(before.get, keys)), lambda: list(self._db.get(list(keys)) or ())
        )

    def _from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._read(
            lambda before: before.items(start),
            lambda: cast(Iterator[tuple[bytes, bytes]], self._db.items(from_key=start)),
        )

    def _read(self, pinned: Callable[[Pinned], T], current: Callable[[], T]) -> T:
        """Read several rows of one state: again, if a write in pieces began in the meantime."""
        while True:
            pieces_upto, before = self._whole_at, self._before
            try:
                if before is not None:
                    return pinned(before)
                found = current()
            except Exception as error:
                raise self._unread(error) from error
            if self._whole_at == pieces_upto:
                return found

    def _unread(self, error: Exception) -> StoreError:
        """Return the error for a failure to read; RocksDB reports all of them by plain exceptions."""
        if isinstance(error, StoreError):
            return error
        if isinstance(error, R.DbClosedError | AttributeError) or spares_content(error):
            return StoreError(f"cannot read the store {self.path}: {error}")
        self.condemn(f"it cannot be read: {error}")
        return RottenStoreError(
            f"the store {self.path} is damaged: {error}; it is set aside and rebuilt from its changelog"
        )

    def condemn(self, cause: str) -> None:
        """Believe this store no more: it is set aside when it is rebuilt or opened next."""
        if self.rotten is not None:
            return
        self.rotten = cause
        try:
            self._db.put(_ROTTEN, cause.encode(), write_opt=UNLOGGED if self._unlogged else LOGGED)
        except Exception as error:  # noqa: BLE001  a damaged store may not take it; it then shows its damage again
            logger.info(
                "store %(store)s: cannot note that it is rotten: %(error)s",
                {"store": self.path, "error": error},
            )
        self.on_rotten(cause)

    def pin(self) -> PinnedState:
        """Return the committed state of now, to be read at leisure: rows, timers and position of one moment.

        Close it when done.
        """
        if not self.readable:
            raise StoreError(
                f"the store {self.path} holds a part of a transaction: its changelog brings the rest"
            )
        while True:
            pieces_upto, before = self._whole_at, self._before
            pinned = before if before is not None else Pinned(self._db.iter(passing_by()))
            if before is not None or (self._whole_at == pieces_upto and self._before is None):
                break
        self._pins.add(pinned)
        try:
            marker, offset = pinned.get(APPLIED), pinned.get(_CHANGELOG)
        except Exception as error:
            raise self._unread(error) from error
        found = self._positions.start if marker is None else self._positions.decode(marker)
        return PinnedState(pinned, found, int(offset or 0), self._unread, shared=before is not None)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with *prefix* in key order, from the key *start* on, as of the first value."""
        last = max(prefix, start)
        for key, value in self._from(last):
            if not key.startswith(prefix):
                return
            yield key, value
            last = key
        self._check_end(last)

    def _check_end(self, last: bytes) -> None:
        try:
            check_end(self._db, last)
        except Exception as error:
            raise self._unread(error) from error

    def page(self, prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
        """Return up to *limit* rows of a table with *prefix*, from the first key above *after*, in the order
        of the keys' bytes.
        """
        within = key_in_table(table, prefix)
        start = within if after is None else max(within, key_in_table(table, after) + b"\x00")
        out: list[tuple[str, bytes]] = []
        for key, value in self.scan(within, start):
            out.append((place_of_row(key)[1], value))
            if len(out) == limit:
                break
        return out

    def everything(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows and timers in key order, for a digest."""
        last = WAKE  # the kinds after bookkeeping
        for key, value in self._from(WAKE):
            yield key, value
            last = key
        self._check_end(last)

    def timers(self, kind: bytes, after: Timer, limit: int) -> list[Timer]:
        """Return the first *limit* timers of a *kind* after *after*, as (due time, key), in that order."""
        return first_of(self.scan, kind, after, limit)

    def approximate_rows(self) -> int:
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    @property
    def touched_ms(self) -> int:
        """Return the time in ms at which the store was last known to be abreast of its changelog;
        NEVER_TOUCHED for a new one.
        """
        value = self._db.get(_TOUCHED)
        return int(value) if value else NEVER_TOUCHED

    # -- writes; one thread at a time

    def write(
        self, items: Iterable[Put], marker: Position, changelog_next: int, *, options: R.WriteOptions = LOGGED
    ) -> None:
        """Make one transaction's rows, position and changelog offset durable together; *items* names each
        key once.
        """
        rows = list(items)
        last = max(0, len(rows) - 1) // WRITE_ROWS * WRITE_ROWS
        if last:
            self.write_pieces(rows[:last], changelog_next, options=options)
        self._write(
            rows[last:],
            {
                APPLIED: encode_position(marker),
                _CHANGELOG: b"%d" % changelog_next,
                ORDERED: b"%d" % changelog_next,
            },
            options,
        )
        # Rows first: an answer may be newer than the position it reports, never older.
        self.changelog_next = changelog_next
        self._before = None
        self.marker = marker
        self.readable = self.whole

    def write_pieces(self, rows: Sequence[Put], upto: int, *, options: R.WriteOptions = LOGGED) -> None:
        """Write rows of a transaction, from records before changelog offset *upto*; readers see them when
        `write` brings the rest.
        """
        if self._before is None:
            self._before = Pinned(self._db.iter())
        # Never less than before: rows of a later transaction may lie here, from a write that was cut.
        self._whole_at = max(self._whole_at, upto)
        for start in range(0, len(rows), WRITE_ROWS):
            self._write(rows[start : start + WRITE_ROWS], {_PIECES: b"%d" % self._whole_at}, options)

    def _write(self, rows: Sequence[Put], notes: Mapping[bytes, bytes], options: R.WriteOptions) -> None:
        try:
            self._before_logged(options)
            # Piece by piece: a sort of all of them would stop every other thread.
            ordered = sorted(rows, key=BY_KEY)
            batch = batch_of(ordered)
            order(self._db, batch, ordered)
            for key, value in notes.items():
                batch.put(key, value)
            self._db.write(batch, options)
            self._note(ordered[:5])  # there is no more bookkeeping than this among a transaction's rows
        except ChangelogError:
            raise  # the data to write is at fault, and not the store
        except Exception as error:
            if "Corruption" in str(error):  # found by RocksDB's background work
                self.condemn(f"it cannot be written: {error}")
                raise RottenStoreError(
                    f"the store {self.path} is damaged: {error}; it is rebuilt from its changelog"
                ) from error
            raise StoreError(
                f"cannot write the store {self.path}: {error}; nothing is lost (the changelog has it), free"
                " the disk and restart"
            ) from error

    def _note(self, puts: Iterable[Put]) -> None:
        for key, value in puts:
            if key == LOST_HEADS:
                self.lost_heads = decode_lost_heads(value)
            elif key == HANDOVER:
                self.handover = decode_handover(value)
            elif key == RECOVERY:
                self.recovery = decode_recovery(value)

    def _order_timers(self) -> None:
        """Put the timers in order of time if an older version wrote them last."""
        if self._db.get(ORDERED) != self._db.get(_CHANGELOG):
            logger.info("store %(store)s: its timers are put in order of time", {"store": self.path})
            order_all(self._db, self.scan, LOGGED)
            self._db[ORDERED] = b"%d" % self.changelog_next

    def _before_logged(self, options: R.WriteOptions) -> None:
        if options is UNLOGGED:
            self._unlogged = True
        elif self._unlogged:
            self._db.flush()
            self._unlogged = False

    def touch(self, now_ms: int) -> None:
        """Note that the store is abreast of its changelog now; tombstones older than the topic keeps them
        can be missed otherwise.
        """
        try:
            self._before_logged(LOGGED)
            self._db[_TOUCHED] = b"%d" % now_ms
        except Exception as error:  # noqa: BLE001  all it can cost is a rebuild that was not needed
            logger.warning(
                "store %(store)s: cannot note that it is current: %(error)s",
                {"store": self.path, "error": error},
            )

    def close(self) -> None:
        """Close the store in good order, unless it is rotten; then it is not believed when it is opened
        next either.
        """
        if self.rotten is None:
            try:
                # As the writes before it: the note must never be on disk without them.
                self._db.put(
                    _CLOSED, b"%d" % self.changelog_next, write_opt=UNLOGGED if self._unlogged else LOGGED
                )
            except Exception as error:  # noqa: BLE001  all it can cost is a reading of the store at its next opening
                logger.info(
                    "store %(store)s: cannot note that it was closed: %(error)s",
                    {"store": self.path, "error": error},
                )
        self._shut()

    def _shut(self) -> None:
        self._before = None
        for pinned in list(self._pins):
            pinned.close()
        self._close_db()

    def _close_db(self) -> None:
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001
            # It flushes first, which a damaged store refuses; then only the end of the object gives the files
            # free.
            logger.info(
                "store %(store)s: closed without a flush: %(error)s", {"store": self.path, "error": error}
            )
            del self._db
