"""The ledger of stamped records: for each producer and partition, the records that came, that came twice,
late, or from a zombie, and those that are missing.

Every stamped topic may be folded into such a table (`decode`, `fold`). The same ledger decides which records
are copied to a clean topic (cleaning.py; docs/producers.md, The ledgers).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TypeAlias

import msgspec

from holdfast.core.engine.declared.processor import Emits, Headers
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.sequences import MAX_SEQUENCE, NO_SEQUENCE, advance, distance
from holdfast.core.producers.stamps import DIGEST, EPOCH, PRODUCER, SEQUENCE, Stamp, read_stamp

LIMIT_HOLES = 64
TOTALS_KEY = "/totals"
"""Row of the partition's sums; no book's key, since those begin with `=`."""
NOBODY = Stamp("", 0, 0)


class Judgement(Enum):
    """The ledger's verdict on a record.

    No StrEnum, which would make each row be looked at (holdfast/core/engine/state/row_types.py).
    """

    NEW = "new"
    GAP = "gap"
    LATE = "out-of-order"
    DUPLICATE = "duplicate"
    DOUBTFUL = "doubtful"
    ZOMBIE = "zombie"


KEPT = frozenset({Judgement.NEW, Judgement.GAP, Judgement.LATE})
"""The verdicts whose records are copied to the clean topic: each number once."""


class Hole(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Numbers that have not come, both ends included."""

    first: int
    last: int


class LedgerTrouble(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The last record that was not simply the next one."""

    kind: Judgement
    offset: int
    at_ms: int
    epoch: int
    sequence: int


class Faults(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The faults of one producer on one partition; most have none.

    *holes* are the numbers still missing, at most 64 ranges; numbers up to *forgotten* may be missing without
    being listed there.
    """

    restarts: int = 0
    gaps: int = 0
    late: int = 0
    duplicates: int = 0
    doubtful: int = 0
    zombies: int = 0
    holes: tuple[Hole, ...] = ()
    forgotten: int = NO_SEQUENCE
    trouble: LedgerTrouble | None = None

    @property
    def missing(self) -> int:
        """Return how many numbers have not come, as far as is known."""
        return sum((hole.last - hole.first & MAX_SEQUENCE) + 1 for hole in self.holes)


NO_FAULTS = Faults()


class Book(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="b"):
    """The ledger's entry for one producer on one partition. *records* counts those that were new,
    *first_offset* is where the entry begins.

    *noted* are its faults, None while there were none: the row of a producer that behaves stays small.
    """

    epoch: int
    last_sequence: int
    last_offset: int
    last_at_ms: int
    records: int
    first_sequence: int
    first_offset: int
    noted: Faults | None = None

    @property
    def faults(self) -> Faults:
        return NO_FAULTS if self.noted is None else self.noted


class Totals(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="t"):
    """The sums over a partition's books, and its records without a stamp: metrics use them instead of every
    book.
    """

    producers: int = 0
    unstamped: int = 0
    restarts: int = 0
    gaps: int = 0
    missing: int = 0
    late: int = 0
    duplicates: int = 0
    doubtful: int = 0
    zombies: int = 0


BookRow: TypeAlias = Book | Totals


def book_key(producer: str) -> str:
    """Return the row key of a producer's book: `=` and its name."""
    return f"={producer}"


def producer_of_key(key: str) -> str | None:
    """Return whose book a row is; None for the row of sums."""
    return key[1:] if key.startswith("=") else None


# -- the rules


def judge(book: Book | None, stamp: Stamp) -> Judgement:
    """Return the verdict on *stamp* by a producer's book.

    A newer epoch fences the older ones from its first record on. It continues the count, or restarts it if
    its stamps say where it began. The first record of an unknown producer may have any number.

    >>> book = Book(epoch=2, last_sequence=9, last_offset=9, last_at_ms=0, records=10, first_sequence=0, first_offset=0)
    >>> [judge(book, Stamp("p", *pair)).value for pair in ((2, 10), (3, 10), (2, 12), (2, 9), (3, 9), (1, 10), (3, 0, 0))]
    ['new', 'new', 'gap', 'duplicate', 'duplicate', 'zombie', 'new']
    """  # noqa: E501
    if book is None:
        return Judgement.NEW
    if stamp.epoch < book.epoch:
        return Judgement.ZOMBIE
    sequence, last = stamp.sequence, book.last_sequence
    if stamp.epoch > book.epoch and stamp.first is not None:
        return Judgement.NEW if distance(stamp.first, sequence) <= 0 else Judgement.GAP
    ahead = distance(last, sequence)
    if ahead > 0:
        return Judgement.NEW if ahead == 1 else Judgement.GAP
    if any(_covers(hole, sequence) for hole in book.faults.holes):
        return Judgement.LATE
    known = book.faults.forgotten
    forgotten = known != NO_SEQUENCE and distance(sequence, known) >= 0
    return Judgement.DOUBTFUL if forgotten else Judgement.DUPLICATE


def _covers(hole: Hole, sequence: int) -> bool:
    return (sequence - hole.first & MAX_SEQUENCE) <= (hole.last - hole.first & MAX_SEQUENCE)


def enter(book: Book | None, stamp: Stamp, judgement: Judgement, offset: int, at_ms: int) -> Book:
    """Return the book after a record that was judged so."""
    sequence = stamp.sequence
    if book is None:
        return Book(stamp.epoch, sequence, offset, at_ms, 1, sequence, offset)
    if judgement is Judgement.ZOMBIE:
        return _noted(book, stamp, judgement, offset, at_ms, zombies=book.faults.zombies + 1)
    if stamp.epoch > book.epoch:
        book = _succeeded(book, stamp)
    faults = book.faults
    match judgement:
        case Judgement.DUPLICATE:
            return _noted(book, stamp, judgement, offset, at_ms, duplicates=faults.duplicates + 1)
        case Judgement.DOUBTFUL:
            return _noted(book, stamp, judgement, offset, at_ms, doubtful=faults.doubtful + 1)
        case Judgement.LATE:
            after = msgspec.structs.replace(book, records=book.records + 1)
            return _noted(
                after,
                stamp,
                judgement,
                offset,
                at_ms,
                late=faults.late + 1,
                holes=tuple(_without(faults.holes, sequence)),
            )
    after = _next(book, sequence, offset, at_ms)
    if judgement is Judgement.NEW:
        return after
    hole = Hole(advance(book.last_sequence, 1), advance(sequence, -1))
    holes, forgotten = _bounded((*faults.holes, hole), faults.forgotten)
    return _noted(
        after, stamp, judgement, offset, at_ms, gaps=faults.gaps + 1, holes=holes, forgotten=forgotten
    )


def _next(book: Book, sequence: int, offset: int, at_ms: int) -> Book:
    return Book(
        book.epoch,
        sequence,
        offset,
        at_ms,
        book.records + 1,
        book.first_sequence,
        book.first_offset,
        book.noted,
    )


def _succeeded(book: Book, stamp: Stamp) -> Book:
    """Return the book under a newer epoch; one that restarts the count voids the numbers of the old count,
    holes included.
    """
    if stamp.first is None:
        return msgspec.structs.replace(book, epoch=stamp.epoch)
    first = stamp.first if distance(stamp.first, stamp.sequence) >= 0 else stamp.sequence
    faults = msgspec.structs.replace(
        book.faults, holes=(), forgotten=NO_SEQUENCE, restarts=book.faults.restarts + 1
    )
    return msgspec.structs.replace(
        book, epoch=stamp.epoch, last_sequence=advance(first, -1), first_sequence=first, noted=faults
    )


def _noted(book: Book, stamp: Stamp, kind: Judgement, offset: int, at_ms: int, **changes: object) -> Book:
    trouble = LedgerTrouble(kind, offset, at_ms, stamp.epoch, stamp.sequence)
    return msgspec.structs.replace(
        book, noted=msgspec.structs.replace(book.faults, trouble=trouble, **changes)
    )


def _without(holes: tuple[Hole, ...], sequence: int) -> Iterator[Hole]:
    for hole in holes:
        if not _covers(hole, sequence):
            yield hole
            continue
        if hole.first != sequence:
            yield Hole(hole.first, advance(sequence, -1))
        if sequence != hole.last:
            yield Hole(advance(sequence, 1), hole.last)


def _bounded(holes: tuple[Hole, ...], forgotten: int) -> tuple[tuple[Hole, ...], int]:
    """Forget the oldest holes beyond the limit: what comes for one of those later is doubtful."""
    dropped = holes[: max(0, len(holes) - LIMIT_HOLES)]
    return holes[len(dropped) :], dropped[-1].last if dropped else forgotten


# -- the fold of any stamped topic


LedgerEntry: TypeAlias = tuple[str, int, int, int | None, int]
"""A record as the ledger sees it: row key, epoch, sequence, first and offset. "=" is the key of one without a
stamp. A plain tuple, since there is one for each record and nothing else is as cheap."""

# Names and epochs recur: a look-up is cheaper than to decode them again. Both hold only values that were
# decoded and found good.
_KEYS: dict[bytes, str] = {}
_EPOCHS: dict[bytes, int] = {}
_LIMIT_KNOWN = 100_000
_NO_KEY = "="


def decode(headers: Headers, offset: int) -> LedgerEntry:
    """Return the entry of a record; for inputs ("headers", "offset").

    Three headers in the order in which every producer writes them are taken apart here; all else, good or
    bad, goes the careful way.
    """
    try:
        # What outboxes publish bears a digest before its stamp.
        (one, producer), (two, epoch), (three, sequence) = (
            headers[1:] if len(headers) == 4 and headers[0][0] == DIGEST else headers
        )
        if (
            one == PRODUCER
            and two == EPOCH
            and three == SEQUENCE
            and len(sequence) < 10  # type: ignore[arg-type]
            and sequence.isdigit()  # type: ignore[union-attr]
        ):
            return _KEYS[producer], _EPOCHS[epoch], int(sequence), None, offset  # type: ignore[index,arg-type]
    except (ValueError, KeyError, TypeError):
        pass
    stamp = read_stamp(headers)
    if stamp is None:
        return _NO_KEY, 0, 0, None, offset
    _remember(stamp)
    return book_key(stamp.producer), stamp.epoch, stamp.sequence, stamp.first, offset


def _remember(stamp: Stamp) -> None:
    for known in (_KEYS, _EPOCHS):
        if len(known) >= _LIMIT_KNOWN:
            known.clear()
    _KEYS[stamp.producer.encode()] = book_key(stamp.producer)
    _EPOCHS[b"%d" % stamp.epoch] = stamp.epoch


def fold(rows: Rows[BookRow], entry: LedgerEntry, at_ms: int) -> Emits:
    """Enter a record into its producer's book. Emits nothing."""
    key, epoch, sequence, first, offset = entry
    book: Book | None = rows.get(key)  # type: ignore[assignment]
    if book is not None and sequence == book.last_sequence + 1 and epoch == book.epoch:
        # Nearly every record there is, so it is entered directly.
        rows[key] = Book(
            epoch,
            sequence,
            offset,
            at_ms,
            book.records + 1,
            book.first_sequence,
            book.first_offset,
            book.noted,
        )
        return None
    record(rows, NOBODY if key == _NO_KEY else Stamp(key[1:], epoch, sequence, first), offset, at_ms)
    return None


def record(rows: Rows[BookRow], stamp: Stamp, offset: int, at_ms: int) -> tuple[Book | None, Judgement]:
    """Enter a record into its producer's book; return the book as it was, and what the record is to it."""
    if stamp is NOBODY:
        totals = totals_of(rows)
        rows[TOTALS_KEY] = msgspec.structs.replace(totals, unstamped=totals.unstamped + 1)
        return None, Judgement.NEW
    key = "=" + stamp.producer
    before: Book | None = rows.get(key)  # type: ignore[assignment]
    judgement = judge(before, stamp)
    after = rows[key] = enter(before, stamp, judgement, offset, at_ms)
    if before is None or judgement is not Judgement.NEW or before.epoch != after.epoch:
        rows[TOTALS_KEY] = _added(totals_of(rows), before, after)
    return before, judgement


def totals_of(rows: Rows[BookRow]) -> Totals:
    """Return the partition's sums."""
    found = rows.get(TOTALS_KEY)
    return found if isinstance(found, Totals) else Totals()


def _added(totals: Totals, before: Book | None, after: Book) -> Totals:
    if before is None:
        return msgspec.structs.replace(totals, producers=totals.producers + 1)
    old, new = before.faults, after.faults
    return Totals(
        totals.producers,
        totals.unstamped,
        totals.restarts + new.restarts - old.restarts,
        totals.gaps + new.gaps - old.gaps,
        totals.missing + new.missing - old.missing,
        totals.late + new.late - old.late,
        totals.duplicates + new.duplicates - old.duplicates,
        totals.doubtful + new.doubtful - old.doubtful,
        totals.zombies + new.zombies - old.zombies,
    )
