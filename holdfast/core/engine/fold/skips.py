"""Skips: offsets of a source that cannot be read, recorded before anything after them is folded.

A skip is a record of `{app}-skips`, keyed by topic, partition and last offset. An operator *asks* for one,
under a key of its own: the topic is compacted, and a late request must not displace a skip that was made. A
worker that owns the partition *makes* it. A made skip holds for all tables, versions and replays of the
application: the source is its log without the skipped offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from holdfast.core.kafka.topic_partition import Place
from holdfast.core.untrusted import careful
from holdfast.errors import DecodeError

LIMIT_OFFSETS = 10_000_000
"""No batch has as many records as a skip that spans more offsets than this would claim."""

OffsetRanges: TypeAlias = tuple[tuple[int, int], ...]
"""Offsets of one partition that are skipped: (first, last), both included, ascending, none touching
another.
"""


class Skip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Offsets *first* to *last*, both included, of one batch. With *made* False, an operator asks the worker
    that is stopped before it to skip it.

    One that is *allowed* is no skip: an operator lets this one record be refused where `on_error="stop"`
    stops the partition.

    *error* and *reason* say why it cannot be read, *by* names the author (a worker's URL, or a person's
    name), *at_ms* is the time. *topic_id* is Kafka's id of the topic in the cluster with *cluster_id*:
    offsets of a topic that was deleted and created again are others. Without an id, as earlier releases
    write, a skip is of whatever topic has the name.
    """

    topic: str
    partition: int
    first: int
    last: int
    made: bool
    error: str = ""
    reason: str = ""
    by: str = ""
    at_ms: int = -1
    allowed: bool = False
    topic_id: str = ""
    cluster_id: str = ""

    @property
    def key(self) -> bytes:
        """Return the record's key: compaction keeps the last request for a batch, and apart from it the skip
        that was made.
        """
        kind = "" if self.made else "/allowed" if self.allowed else "/asked"
        return f"{self.topic}/{self.partition}/{self.last}{kind}".encode()

    @property
    def batch(self) -> tuple[str, int, int]:
        """Return the batch that is skipped: topic, partition and last offset.

        Any reader that finds the end of the batch finds the same, whatever its own position within it.
        """
        return self.topic, self.partition, self.last

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def is_of_another(self, cluster_id: str, topic_id: str) -> bool:
        """Return whether this is known to be about another topic of the name than the one with *topic_id*.

        A cluster that was copied has ids of its own, which prove nothing.

        >>> skip = Skip(topic="t", partition=0, first=1, last=1, made=True, topic_id="a", cluster_id="c")
        >>> [skip.is_of_another(*ids) for ids in (("c", "a"), ("c", "b"), ("copied", "b"), ("c", ""))]
        [False, True, False, False]
        """
        known = "" not in (self.topic_id, topic_id) and self.cluster_id == cluster_id
        return known and self.topic_id != topic_id

    def covers(self, first: int, last: int) -> bool:
        """Return whether *first* to *last* share an offset with this."""
        return self.first <= last and first <= self.last


_decode = careful(msgspec.json.Decoder(Skip).decode)


def encode_skip(skip: Skip) -> bytes:
    return msgspec.json.encode(skip)


def decode_skip(key: bytes | None, value: bytes) -> Skip:
    """Read one record of the topic; DecodeError for what no tool of holdfast writes."""
    try:
        skip = _decode(value)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not a skip: {error}") from error
    ends = skip.first if skip.allowed else skip.first + LIMIT_OFFSETS - 1
    if not 0 <= skip.first <= skip.last <= ends or skip.partition < 0 or (skip.made and skip.allowed):
        raise DecodeError(f"not a skip: partition {skip.partition}, offsets {skip.first} to {skip.last}")
    if key != skip.key:
        raise DecodeError(f"a skip of {skip.key.decode()} under the key {key!r:.200}")
    return skip


class Skips:
    """The records of `{app}-skips`: the last record of each batch counts, and a made skip before any request.
    *has_topic* is False if the topic does not exist. *of_others* are records that skip nothing: of topics
    that have been deleted and created again.

    >>> made = Skip(topic="orders", partition=0, first=5, last=7, made=True)
    >>> Skips([made]).made("orders", 0), Skips([made]).made("orders", 1)
    (((5, 7),), ())
    """

    def __init__(
        self, records: Iterable[Skip] = (), *, has_topic: bool = True, of_others: Iterable[Skip] = ()
    ) -> None:
        self._records = dict[tuple[str, int, int], Skip]()
        self._allowed = dict[tuple[str, int, int], Skip]()
        self.has_topic, self.of_others = has_topic, tuple(of_others)
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, skip: Skip) -> None:
        """Take a record. A skip that was made stays made, whatever later requests ask."""
        if skip.allowed:
            self._allowed[skip.batch] = skip
            return
        known = self._records.get(skip.batch)
        if known is None or skip.made or not known.made:
            self._records[skip.batch] = skip

    def all(self) -> list[Skip]:
        """Return every record that counts, by topic, partition and offset."""
        found = [*self._records.values(), *self._allowed.values()]
        return sorted(found, key=lambda each: (each.topic, each.partition, each.first))

    def allows(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether an operator lets this record be refused."""
        return (topic, partition, offset) in self._allowed

    def made(self, topic: str, partition: int) -> OffsetRanges:
        """Return the skipped offsets of a partition."""
        return merged(
            (each.first, each.last)
            for each in self._records.values()
            if each.made and each.place == (topic, partition)
        )

    def of_topic(self, topic: str) -> dict[int, OffsetRanges]:
        """Return the skipped offsets of each partition of *topic* that has a skip."""
        partitions = {each.partition for each in self._records.values() if each.made and each.topic == topic}
        return {partition: self.made(topic, partition) for partition in sorted(partitions)}

    def asked(self, topic: str, partition: int, first: int, last: int) -> Skip | None:
        """Return the request that holds for a batch which cannot be read, None when there is none."""
        found = (
            each
            for each in self._records.values()
            if not each.made and each.place == (topic, partition) and each.covers(first, last)
        )
        return next(found, None)


def merged(ranges: Iterable[tuple[int, int]]) -> OffsetRanges:
    """Return *ranges* ascending, those that touch joined.

    >>> merged([(8, 9), (1, 3), (2, 5), (10, 10)])
    ((1, 5), (8, 10))
    """
    out: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return tuple(out)


def behind(ranges: OffsetRanges, offset: int) -> int:
    """Return the first offset from *offset* on that is not skipped.

    >>> [behind(((1, 5), (8, 10)), offset) for offset in (0, 1, 5, 6, 9, 11)]
    [0, 6, 6, 6, 11, 11]
    """
    at = bisect_right(ranges, (offset, LIMIT_OFFSETS + offset)) - 1
    return ranges[at][1] + 1 if at >= 0 and offset <= ranges[at][1] else offset


def kept(ranges: OffsetRanges, first: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of *first* to *end* (not included) that are not skipped, as (first, end).

    >>> kept(((1, 5), (8, 10)), 0, 10), kept(((1, 5),), 2, 4)
    ([(0, 1), (6, 8)], [])
    """
    out, at = [], first
    for low, high in ranges:
        if high < at:
            continue
        if low >= end:
            break
        if low > at:
            out.append((at, low))
        at = high + 1
    if at < end:
        out.append((at, end))
    return out


def gaps(ranges: OffsetRanges, first: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of *first* to *end* (not included) that are skipped, as (first, last).

    >>> gaps(((1, 5), (8, 10)), 3, 9)
    [(3, 5), (8, 8)]
    """
    return [(max(low, first), min(high, end - 1)) for low, high in ranges if low < end and high >= first]
