"""Rules for rows on their way from an outbox to Kafka, without either: numbering, progress, batch sizes.

One *shard* of an outbox has one leader at a time and one producer name for ever. Every record it publishes
carries that name, the epoch of the leader and a sequence that is contiguous per destination partition, across
leaders. With the records of a transaction go its *progress records*: which rows it published, and how far
the sequences are. A leader that comes reads them first, so the crash of the one before it, at whatever
moment, costs nothing (docs/PROTOCOL.md, "Outbox progress").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.engine.declared.processor import Headers
from holdfast.core.kafka.sequences import NO_SEQUENCE, advance
from holdfast.core.outbox.created_times import LIMIT_MS
from holdfast.core.outbox.row_marks import (
    Known,
    RowMarks,
    WrittenBefore,
    fits,
    read_marks,
    written_before,
)
from holdfast.core.untrusted import UNFIT
from holdfast.errors import DecodeError

PRODUCER_HEADER, EPOCH_HEADER, SEQUENCE_HEADER = "holdfast-producer", "holdfast-epoch", "holdfast-sequence"
VERSION = 1
BUCKETS = 256
LIMIT_CACHED_KEYS = 1 << 16
LIMIT_IDS = 1_000_000
"""The most rows that one progress record may name: ten times those of the largest transaction."""
LIMIT_ALL_IDS = 4 * LIMIT_IDS
"""The most rows that all producers' records may name together; some 300 MB during a check."""

Destination = tuple[str, int]
Header = tuple[str, bytes | None]


def producer_name(outbox: str, shard: int) -> str:
    """Return the name under which *shard* of *outbox* publishes; its transactional id is made of it too.

    >>> producer_name("orders", 3)
    'orders-3'
    """
    return f"{outbox}-{shard}"


# --- progress records: key is the producer's name and what the record is about, so that a compacted topic
# keeps the last of each


class RowsProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows that were published and are not known to be deleted: those of this transaction and of all before
    it that matter.

    *rows* is `pack_ids` of their ids.
    """

    version: int
    producer: str
    epoch: int
    rows: list[int]


class SequencesProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last sequence in each partition of one destination topic that the producer ever wrote to, as
    [partition, sequence] pairs.
    """

    version: int
    producer: str
    epoch: int
    topic: str
    last: list[tuple[int, int]]


ROWS_KEY, SEQUENCES_KEY = "rows", "sequences"

_rows_decoder = msgspec.json.Decoder(RowsProgress)
_sequences_decoder = msgspec.json.Decoder(SequencesProgress)


def rows_key(producer: str) -> bytes:
    """Return the key of a producer's `RowsProgress`.

    >>> rows_key("orders-3"), sequences_key("orders-3", "paid")
    (b'rows/orders-3', b'sequences/orders-3/paid')
    """
    return f"{ROWS_KEY}/{producer}".encode()


def sequences_key(producer: str, topic: str) -> bytes:
    """Return the key of a producer's `SequencesProgress` for one topic."""
    return f"{SEQUENCES_KEY}/{producer}/{topic}".encode()


def decode_progress(key: bytes | None, value: bytes | None) -> RowsProgress | SequencesProgress | None:
    """Return the content of a progress record, None for a tombstone; DecodeError if it is malformed or of a
    newer version.
    """
    if key is None:
        raise DecodeError("a progress record without a key")
    if value is None:
        return None
    kind = key.partition(b"/")[0].decode(errors="replace")
    found: RowsProgress | SequencesProgress
    try:
        if kind == ROWS_KEY:
            found = _rows_decoder.decode(value)
        elif kind == SEQUENCES_KEY:
            found = _sequences_decoder.decode(value)
        else:
            raise DecodeError(
                f"progress record {key!r}: the kind {kind!r} is not known; was it written by a newer version?"
            )
    except UNFIT as error:
        raise DecodeError(f"progress record {key!r}: {error}") from error
    if found.version != VERSION:
        raise DecodeError(
            f"progress record {key!r} has version {found.version}, this is {VERSION}: do not go back to an"
            " older holdfast"
        )
    return found


def pack_ids(ids: Iterable[int]) -> list[int]:
    """Return *ids* as gap, length, gap, length ... of their ascending runs; the first gap is from 0.

    >>> pack_ids([12, 10, 11, 20]), unpack_ids([10, 3, 7, 1])
    ([10, 3, 7, 1], [10, 11, 12, 20])
    """
    out: list[int] = []
    end = 0
    for each in sorted(ids):
        if out and each == end:
            out[-1] += 1
        else:
            out += (each - end, 1)
        end = each + 1
    return out


def unpack_ids(packed: Iterable[int]) -> list[int]:
    """Return the ids that `pack_ids` was given, ascending.

    Earlier releases published rows with ids below 0 and named them: of those, the first gap is negative.

    >>> unpack_ids([-5, 2, 3, 1])
    [-5, -4, 0]
    """
    out: list[int] = []
    end = 0
    numbers = list(packed)
    if len(numbers) % 2:
        raise DecodeError(f"packed ids of {len(numbers)} numbers: they come in pairs")
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        if (gap < 0 and out) or length < 1 or len(out) + length > LIMIT_IDS:
            raise DecodeError(
                f"packed ids with gap {gap} and length {length}: a progress record names {LIMIT_IDS} rows at"
                " most"
            )
        out.extend(range(end + gap, end + gap + length))
        end += gap + length
    return out


class ProducerProgress:
    """One producer's progress: its epoch, the sequences it has reached, the rows it published that may still
    lie in the table.

    Changes become true by `commit`, when the transaction that carries them was committed; until then nothing
    moves.
    """

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self.epoch = 0
        self.last: dict[Destination, int] = {}
        self.published: set[int] = set()
        self.outbox = ""
        """The token of the outbox that the rows are of; empty while unknown."""
        self.highest = 0
        """The highest number that this producer published since numbers last began."""
        self.again_from = self.again_ms = 0
        """After which number, and when, they began again; 0 for never."""
        self._marks: dict[int, Known | WrittenBefore] = {}
        """Of each published row what identifies it beyond its number."""
        self._also: dict[int, list[Known | WrittenBefore]] = {}
        """Of numbers that several producers name, with different rows, what the others say."""
        self._partitions: dict[str, set[int]] = {}
        self._rows: dict[str, tuple[list[int], RowMarks | WrittenBefore]] = {}
        self._packed = 0

    def restore(
        self, key: bytes | None, value: bytes | None, headers: Headers = (), at_ms: int = LIMIT_MS
    ) -> None:
        """Take in one progress record written at *at_ms*, in log order. Rows of every producer count,
        sequences only of this one.

        When an outbox is given another number of shards, a row may have been published by the leader of
        another one.
        """
        found = decode_progress(key, value)
        if isinstance(found, RowsProgress):
            before = self._rows.get(found.producer)
            self._packed += len(found.rows) - (0 if before is None else len(before[0]))
            if self._packed > 2 * LIMIT_ALL_IDS:
                raise _too_many()
            marks = read_marks(headers, sum(found.rows[1::2]))
            self._rows[found.producer] = found.rows, marks or written_before(headers, at_ms)
            if marks is not None and found.producer == self.producer:
                self.outbox, self.highest = marks.outbox, marks.highest
                self.again_from, self.again_ms = marks.again_from, marks.again_ms
        if found is None or found.producer != self.producer:
            return
        self.epoch = max(self.epoch, found.epoch)
        if isinstance(found, SequencesProgress):
            for partition, sequence in found.last:
                self._note((found.topic, partition), sequence)

    def begin(self) -> None:
        """All progress records are in: a new term begins, in the next epoch.

        DecodeError when they name more rows than there can be.
        """
        self.published, self._marks, self._also = set(), {}, {}
        for packed, said in self._rows.values():
            ids = unpack_ids(packed)
            self.published.update(ids)
            if len(self.published) > LIMIT_ALL_IDS:
                raise _too_many()
            marks = said.marks if isinstance(said, RowMarks) else [said] * len(ids)
            for each in self._marks.keys() & set(ids):
                self._also.setdefault(each, []).append(self._marks[each])
            self._marks.update(zip(ids, marks, strict=True))
        self.highest = max(self.highest, max(self.published, default=0))
        self._rows.clear()
        self._packed = 0
        self.epoch += 1

    def _note(self, destination: Destination, sequence: int) -> None:
        self.last[destination] = sequence
        self._partitions.setdefault(destination[0], set()).add(destination[1])

    def number(self, destinations: Iterable[Destination]) -> tuple[list[bytes], dict[Destination, int]]:
        """Return the sequence of each record in turn, as its header holds it, and the value of `last` after
        them.

        >>> progress = ProducerProgress("orders-0")
        >>> progress.number([("paid", 0), ("paid", 1), ("paid", 0)])
        ([b'0', b'0', b'1'], {('paid', 0): 1, ('paid', 1): 0})
        """
        ahead: dict[Destination, int] = {}
        last = self.last
        out = []
        for destination in destinations:
            before = ahead.get(destination)
            if before is None:
                before = last.get(destination, NO_SEQUENCE)
            ahead[destination] = sequence = advance(before, 1)
            out.append(b"%d" % sequence)
        return out, ahead

    def headers(self) -> tuple[Header, Header]:
        """Return the headers that are the same for every record of this term."""
        return (PRODUCER_HEADER, self.producer.encode()), (EPOCH_HEADER, b"%d" % self.epoch)

    def is_published(
        self, row_id: int, mark: int, created_ms: int | None, *, may_be_another: bool = False
    ) -> bool:
        """Return whether the row of that number, mark and time of creation is one that was published, and
        not another of the same number. With *may_be_another* a number alone proves nothing.
        """
        if row_id not in self._marks:
            return False
        for each in (self._marks[row_id], *self._also.get(row_id, ())):
            if isinstance(each, WrittenBefore):
                if each.names(created_ms) and not (may_be_another and created_ms is None):
                    return True
            elif fits(mark, each):
                return True
        return False

    def marks_published(self) -> list[Known]:
        """Return the marks of the rows that the progress names, as far as it has them."""
        return [each for each in self._marks.values() if isinstance(each, int)]

    def began_again(self, at_ms: int) -> None:
        """Numbers began again: the highest number belongs to rows that are gone."""
        self.again_from, self.again_ms, self.highest = self.highest, at_ms, 0

    def records(self, ids: Iterable[int], ahead: Mapping[Destination, int]) -> list[tuple[bytes, bytes]]:
        """Return the progress records of a transaction that publishes the rows *ids* and brings the
        sequences to *ahead*.
        """
        rows = RowsProgress(VERSION, self.producer, self.epoch, pack_ids(self.published.union(ids)))
        out = [(rows_key(self.producer), msgspec.json.encode(rows))]
        for topic in sorted({topic for topic, _ in ahead}):
            partitions = self._partitions.get(topic, set()) | {
                partition for name, partition in ahead if name == topic
            }
            pairs = [
                (partition, ahead.get((topic, partition), self.last.get((topic, partition), 0)))
                for partition in sorted(partitions)
            ]
            out.append(
                (
                    sequences_key(self.producer, topic),
                    msgspec.json.encode(SequencesProgress(VERSION, self.producer, self.epoch, topic, pairs)),
                )
            )
        return out

    def marks_header(self, marks: Mapping[int, Known]) -> tuple[str, bytes] | None:
        """Return the header that goes with the record of rows when those of *marks* are published: what
        identifies every row that the record names.

        None while rows are named of which no mark is known, those of an earlier release's record: they are
        deleted before anything is published.
        """
        named = {**self._marks, **marks}
        known = [each for each in map(named.__getitem__, sorted(named)) if isinstance(each, int)]
        if len(known) < len(self.published.union(marks)):
            return None
        return RowMarks(
            outbox=self.outbox,
            highest=max(self.highest, max(marks, default=0)),
            again_from=self.again_from,
            again_ms=self.again_ms,
            marks=known,
        ).encode()

    def commit(
        self,
        ids: Iterable[int],
        ahead: Mapping[Destination, int],
        marks: Mapping[int, Known] | None = None,
    ) -> None:
        """The transaction with these was committed."""
        self.published.update(ids)
        if marks:
            self._marks.update(marks)
            self.highest = max(self.highest, *marks)
        for destination, sequence in ahead.items():
            self._note(destination, sequence)

    def deleted(self, ids: Iterable[int]) -> None:
        """These rows are known to be gone from the table."""
        gone = self.published.intersection(ids)
        self.published -= gone
        for each in gone:
            self._marks.pop(each, None)
            self._also.pop(each, None)


def _too_many() -> DecodeError:
    return DecodeError(
        f"progress records name more than {LIMIT_ALL_IDS} published rows, which no harvesters leave: who else"
        " may write the progress topic?"
    )


class Partitioning:
    """The partition of each key in its topic: murmur2, as Kafka's Java clients and Faust choose it,
    remembered for hot keys.
    """

    def __init__(self) -> None:
        self._hashes: dict[bytes, int] = {}

    def of_key(self, key: bytes, count: int) -> int:
        """Return the partition of *key* among *count*.

        >>> [Partitioning().of_key(key, 8) for key in (b"key-0", b"1")]
        [1, 7]
        """
        found = self._hashes.get(key)
        if found is None:
            if len(self._hashes) >= LIMIT_CACHED_KEYS:
                self._hashes.clear()
            found = self._hashes[key] = murmur2(key) & 0x7FFFFFFF
        return found % count

    @staticmethod
    def of_bucket(bucket: int, count: int) -> int | None:
        """Return the partition among *count* if the low byte of the hash determines it, else None.

        >>> Partitioning.of_bucket(murmur2(b"key-0") & 255, 8), Partitioning.of_bucket(41, 12)
        (1, None)
        """
        return None if BUCKETS % count else bucket % count


def buckets_of(shard: int, shards: int) -> range:
    """Return the buckets that *shard* of *shards* owns; every bucket has one owner.

    >>> buckets_of(0, 3), buckets_of(2, 3)
    (range(0, 85), range(170, 256))
    """
    return range(BUCKETS * shard // shards, BUCKETS * (shard + 1) // shards)


@dataclass(slots=True)
class BatchSize:
    """The number of rows to take next: few when live, many under backlog, never more than the bytes allow.

    >>> size = BatchSize(least=64, most=1000, limit_bytes=1 << 20)
    >>> size.taken(64, 6400); size.rows
    128
    >>> size.taken(128, 128 << 13); size.rows
    128
    """

    least: int
    most: int
    limit_bytes: int
    rows: int = 0

    def __post_init__(self) -> None:
        self.least = min(self.least, self.most)
        self.rows = self.least

    def taken(self, rows: int, size_bytes: int) -> None:
        """Note what a take of `rows` brought."""
        if rows >= self.rows:
            self.rows = min(self.rows * 2, self.most)
        elif rows < self.rows // 4:
            self.rows = max(self.rows // 2, self.least)
        if rows:
            self.rows = max(1, min(self.rows, self.limit_bytes * rows // max(size_bytes, 1)))
