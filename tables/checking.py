"""Checks a store against its changelog: alongside folding, slowly, in bounded memory, and without a replay.

The changelog is read once more into a scratch store next to the real one, as a restore would; then both are
walked in key order. The state compared is one that was pinned: later changes are left out, whatever a
compaction has made of them.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import rocksdict as R
from confluent_kafka import KafkaException, Message, TopicPartition

from holdfast.clock import system_clock
from holdfast.core.engine.state.codec import META, ROW_KINDS, place_of_row
from holdfast.errors import BrokerError
from holdfast.kafka.codes import ends_reading, is_end
from holdfast.tables.aside import scratch_of
from holdfast.tables.partition import Partition
from holdfast.tables.pins import Pinned, PinnedState, passing_by
from holdfast.tables.restore import changelog_consumer, drain
from holdfast.tables.rocks import UNLOGGED, Budget

RECORDS_PER_S, BYTES_PER_S = 20_000, 16 << 20
"""The rate at which the changelog is read again, whichever is reached first."""
READ_RECORDS = 2_000
SLICE_ROWS = 512
REST = 3
_LATER = META + b"later/"
_FIRST = META + b"\xff"
_WATERMARKS_TIMEOUT_S = 30.0
_UNKNOWN, _LAST = -1, 1 << 62


class CheckStopped(Exception):
    """The check was stopped, or the store went away: nothing is known."""


def check(
    part: Partition,
    state: PinnedState,
    client: Mapping[str, Any],
    name: str,
    budget: Budget,
    stop: threading.Event,
    stall_timeout_s: float,
) -> str | None:
    """Return why the store of *state* is rotten, naming the first key that differs, or None when it agrees
    with its agrees with its changelog.

    Blocks; closes *state*. Raises CheckStopped, StoreError when the store was closed, BrokerError when the
    changelog cannot be read.
    """
    path = scratch_of(part.store_path)
    try:
        shutil.rmtree(path, ignore_errors=True)
        scratch = R.Rdict(str(path), budget.options())
        try:
            _read(part, state.changelog_next, scratch, client, name, stop, stall_timeout_s)
            return _compare(state, scratch, stop)
        finally:
            scratch.close()
    finally:
        state.close()
        shutil.rmtree(path, ignore_errors=True)


def _read(
    part: Partition,
    upto: int,
    scratch: R.Rdict,
    client: Mapping[str, Any],
    name: str,
    stop: threading.Event,
    stall_timeout_s: float,
) -> None:
    """Bring *scratch* to what the changelog holds before *upto*, and note the keys that changed from there
    on.
    """
    where = f"changelog {part.changelog} partition {part.partition}"
    consumer = changelog_consumer(client, f"{name}-check", wait_ms=200)
    try:
        log = TopicPartition(part.changelog, part.partition)
        low, _ = consumer.get_watermark_offsets(log, timeout=_WATERMARKS_TIMEOUT_S)
        consumer.assign([TopicPartition(part.changelog, part.partition, low)])
        progress_s, end = system_clock.monotonic_s(), _UNKNOWN
        while True:
            if stop.is_set():
                raise CheckStopped
            began_s = system_clock.monotonic_s()
            piece = _Piece(upto)
            for message in drain(consumer, READ_RECORDS, 0.5):
                piece.take(message, where)
            scratch.write(piece.batch, UNLOGGED)
            if end == _UNKNOWN and piece.reached >= upto - 1:
                # Asked only now: a row whose older value was compacted away while it was looked for was
                # written again before this end.
                _, end = consumer.get_watermark_offsets(log, timeout=_WATERMARKS_TIMEOUT_S)
            if piece.reached == _LAST or (end != _UNKNOWN and piece.reached >= end - 1):
                return
            now_s = system_clock.monotonic_s()
            if piece.records:
                progress_s = now_s
                stop.wait(max(0.0, piece.least_s - (now_s - began_s)))
            elif now_s - progress_s > stall_timeout_s:
                raise BrokerError(f"{where}: nothing read for {stall_timeout_s:.0f} s")
    except KafkaException as error:
        raise BrokerError(f"{where}: {error.args[0].str()}") from error
    finally:
        consumer.close()


class _Piece:
    """The rows of one fetch for the scratch store; *upto* is the first offset that the state does not
    include.
    """

    def __init__(self, upto: int) -> None:
        self._upto, self._bytes = upto, 0
        self.batch = R.WriteBatch(raw_mode=True)
        self.records = 0
        self.reached = -1
        """The last offset read; _LAST at the end of the log, which control records may close."""

    @property
    def least_s(self) -> float:
        """Return the least seconds that so much may take if the rate is to be kept."""
        return max(self.records / RECORDS_PER_S, self._bytes / BYTES_PER_S)

    def take(self, message: Message, where: str) -> None:
        error, offset = message.error(), message.offset() or 0
        if error is None:
            key, value = message.key(), message.value()
            self.records, self.reached = self.records + 1, offset
            self._bytes += len(key or b"") + len(value or b"")
            if key is None or key[:1] == META:
                return
            if offset >= self._upto:
                self.batch.put(_LATER + key, b"")
            elif value is None:
                self.batch.delete(key)
            else:
                self.batch.put(key, value)
        elif is_end(error):
            self.reached = max(self.reached, _LAST)
        elif ends_reading(error):
            raise BrokerError(f"{where}: {error.str()}")


def _compare(state: PinnedState, scratch: R.Rdict, stop: threading.Event) -> str | None:
    pinned = Pinned(scratch.iter(passing_by()))
    try:
        mine, theirs = _walk(state, stop), _walk(pinned, stop)
        one, other = next(mine, None), next(theirs, None)
        while one is not None or other is not None:
            if one == other:
                one, other = next(mine, None), next(theirs, None)
                continue
            key = min(each[0] for each in (one, other) if each is not None)
            here = one[1] if one is not None and one[0] == key else None
            there = other[1] if other is not None and other[0] == key else None
            if here != there and _LATER + key not in scratch:
                return _difference(key, here, there)
            one = next(mine, None) if here is not None else one
            other = next(theirs, None) if there is not None else other
        return None
    finally:
        pinned.close()


def _walk(state: PinnedState | Pinned, stop: threading.Event) -> Iterator[tuple[bytes, bytes]]:
    start = _FIRST
    while True:
        began_s = system_clock.monotonic_s()
        found = state.step(start, SLICE_ROWS)
        if not found:
            return
        rest_s = REST * (system_clock.monotonic_s() - began_s)
        yield from found
        start = found[-1][0] + b"\x00"
        if stop.wait(rest_s):
            raise CheckStopped


def _difference(key: bytes, here: bytes | None, there: bytes | None) -> str:
    table, name = place_of_row(key)
    what = (f"row of table {table}" if table else "row") if key[:1] in ROW_KINDS else "timer"
    if there is None:
        return f"{what} {name!r:.200} is not in its changelog"
    return f"{what} {name!r:.200} is {'missing' if here is None else 'not that of its changelog'}"
