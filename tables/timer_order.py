"""Timers of a store in order of time, in addition to the timers themselves: so that of millions only the
first are read.

    00 due/ kind time key    nothing: time has 8 bytes, in whose order times are

It is bookkeeping: made of the timers, of no digest, and not on the changelog.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import rocksdict as R

from holdfast.core.engine.state.codec import META, TIMER_KINDS, decode_due
from holdfast.core.engine.state.timers import Timer
from holdfast.tables.rocks import BY_KEY, Put

DUE = META + b"due/"
ORDERED = META + b"ordered"
"""The changelog offset up to which timers are in order: an older version continues without."""
_BIAS = 1 << 63
_PIECE = 4_000


def _place_of(key: bytes, due: bytes) -> bytes:
    """Return the key of a timer in the order of time, given its stored key and value."""
    return DUE + key[:1] + (decode_due(due) + _BIAS).to_bytes(8, "big") + key[1:]


def order(db: R.Rdict, batch: R.WriteBatch, rows: Sequence[Put]) -> None:
    """Add to *batch*, which writes *rows* in the order of their keys, what puts the timers among them in
    order of time.
    """
    timers: list[Put] = []
    for kind in TIMER_KINDS:
        first = bisect_left(rows, kind, key=BY_KEY)
        timers += rows[first : bisect_left(rows, bytes([kind[0] + 1]), first, key=BY_KEY)]
    if not timers:
        return
    before: Sequence[bytes | None] = db.get([key for key, _ in timers]) or ()
    for (key, due), was in zip(timers, before, strict=True):
        if was is not None:
            batch.delete(_place_of(key, was))
        if due is not None:
            batch.put(_place_of(key, due), b"")


def order_all(
    db: R.Rdict, scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]], options: R.WriteOptions
) -> None:
    """Put all timers of a store in order: a version wrote it that did not."""
    db.delete_range(DUE, DUE + b"\xff")
    batch = R.WriteBatch(raw_mode=True)
    for kind in TIMER_KINDS:
        for key, due in scan(kind):
            batch.put(_place_of(key, due), b"")
            if batch.len() >= _PIECE:
                db.write(batch, options)
                batch = R.WriteBatch(raw_mode=True)
    db.write(batch, options)


def first_of(
    scan: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]], kind: bytes, after: Timer, limit: int
) -> list[Timer]:
    """Return the first *limit* timers of a *kind* after *after*; *scan* yields the keys with a prefix, from a
    key on.
    """
    prefix = DUE + kind
    start = prefix + (after[0] + _BIAS).to_bytes(8, "big") + after[1].encode() + b"\x00"
    names: list[bytes] = []
    for name, _ in scan(prefix, start):
        names.append(name)
        if len(names) == limit:
            break
    at = len(prefix)
    return [(int.from_bytes(name[at : at + 8], "big") - _BIAS, name[at + 8 :].decode()) for name in names]
