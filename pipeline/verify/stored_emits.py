"""Records in emitted topics, and those that a replay emits, by topic, partition and key: in memory up to a
limit that topics share, and all in a temporary file where there are more.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from holdfast.core.engine.emits import Headers
from holdfast.pipeline.folds.spilling import ROW_BYTES, SpillingStore

ANYWHERE = -1
"""The partition of an emit without key and partition: any."""
HELD_BYTES = 8 << 20
"""So much of what one key has is held while it is compared; of more, it is read from the store as often as
needed.
"""
INDEX_ROWS = 10_000
"""The number of rows of an index that are stored at once."""

_ENTRY, _INDEX = b"e", b"i"
_FOUND, _EXPECTED = b"f", b"x"
_GROUP = Struct(">sHII")  # what it is, the topic, the partition + 1, the length of the key + 1 or 0 for none
_ORDER = Struct(">IQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes | None, Headers]).decode


class EmitContent(NamedTuple):
    """The part of a record that a fold decides."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    def __str__(self) -> str:
        names = [name for name, _ in self.headers]
        # A header may come twice, and then only their order distinguishes two records.
        headers = dict(self.headers) if len({*names}) == len(names) else list(self.headers)
        return f"{self.value!r:.200}{f', headers {headers}' if headers else ''}"


def told_apart(one: EmitContent | None, other: EmitContent | None) -> tuple[str | None, str | None]:
    """Return two records in words, with where their values differ if the words do not show that.

    >>> told_apart(EmitContent(b"k", b"v" * 300, ()), EmitContent(b"k", b"v" * 301, ()))[0][-40:]
    'vvvvvv (300 bytes, they differ from 300)'
    """
    texts = (None if one is None else str(one), None if other is None else str(other))
    if one is None or other is None or texts[0] != texts[1]:
        return texts
    mine, theirs = one.value or b"", other.value or b""
    pairs = enumerate(zip(mine, theirs, strict=False))
    at = next((at for at, (left, right) in pairs if left != right), min(len(mine), len(theirs)))
    return (
        f"{texts[0]} ({len(mine)} bytes, they differ from {at})",
        f"{texts[1]} ({len(theirs)} bytes, they differ from {at})",
    )


class EmitPlace(NamedTuple):
    """The group in which records are compared: those of one key, in one partition or ANYWHERE."""

    partition: int
    key: bytes | None


class StoredEmit(NamedTuple):
    """One record: *number* is its offset in partition *part*, or of an expected one, in which order source
    partition *part* emits it. *body* is all but its key.
    """

    part: int
    number: int
    is_due: bool
    body: bytes

    @property
    def has_value(self) -> bool:
        return _decode(self.body)[0] is not None

    def content(self, key: bytes | None) -> EmitContent:
        return EmitContent(key, *_decode(self.body))


class OfContent(NamedTuple):
    """A record by what it is, those found before those expected."""

    digest: bytes
    side: bytes
    part: int
    number: int
    is_due: bool

    @property
    def is_found(self) -> bool:
        return self.side == _FOUND


def body_of(value: bytes | None, headers: Any) -> bytes:
    """Return value and headers as they are compared: equal ones have equal bytes."""
    return _encode((value, tuple((name, each) for name, each in headers or ())))


class EmitRun:
    """The records of one side of a group, in order: held, or else read from the store each time."""

    def __init__(self, store: SpillingStore, prefix: bytes) -> None:
        self._store, self._prefix, self._count = store, prefix, 0
        self._held: list[StoredEmit] | None = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StoredEmit]:
        return self.scan(0, 0)

    def scan(self, part: int, number: int) -> Iterator[StoredEmit]:
        """Yield them from one of them on."""
        if self._held is not None:
            # A shorter tuple comes before all longer ones that begin with it.
            return islice(self._held, bisect_left(self._held, (part, number)), None)
        start = self._prefix + _ORDER.pack(part, number)
        return (_emit(key, value) for key, value in self._store.scan(self._prefix, start))

    def add(self, each: StoredEmit) -> None:
        """Count one more, and hold it unless they were let go."""
        self._count += 1
        if self._held is not None:
            self._held.append(each)

    def let_go(self) -> None:
        """Hold none any more."""
        self._held = None


class EmitGroup:
    """The records found and expected in one group. *due* counts the expected ones that are due."""

    def __init__(self, store: SpillingStore, prefix: bytes) -> None:
        self._store, self._prefix = store, prefix
        self.found, self.expected = EmitRun(store, prefix + _FOUND), EmitRun(store, prefix + _EXPECTED)
        self.due, self._bytes, self._sources = 0, 0, set[int]()

    @property
    def place(self) -> EmitPlace:
        _, _, place, length = _GROUP.unpack_from(self._prefix)
        return EmitPlace(place - 1, self._prefix[_GROUP.size :] if length else None)

    @property
    def has_order(self) -> bool:
        """Return whether all were emitted in one order: they have a key, and come from one source
        partition.
        """
        return self.place.key is not None and len(self._sources) <= 1

    @property
    def is_held(self) -> bool:
        return self._bytes <= HELD_BYTES

    def add(self, side: bytes, each: StoredEmit) -> None:
        """Take the next one, those found before those expected."""
        if side == _FOUND:
            self.found.add(each)
        else:
            self.expected.add(each)
            self.due += each.is_due
            self._sources.add(each.part)
        if self.is_held:
            self._bytes += ROW_BYTES + len(each.body)
            if not self.is_held:
                self.found.let_go()
                self.expected.let_go()

    def by_content(self) -> Iterator[OfContent]:
        """Yield all, equal ones next to each other, and those in order."""
        if self.is_held:
            yield from sorted(self._of_content())
            return
        prefix, rows = _INDEX + self._prefix[1:], self._of_content()
        while lot := [*islice(rows, INDEX_ROWS)]:
            self._store.apply(
                (
                    prefix + each.digest + each.side + _ORDER.pack(each.part, each.number),
                    bytes([each.is_due]),
                )
                for each in sorted(lot)
            )
        for key, value in self._store.scan(prefix):
            digest, rest = key[len(prefix) :][:_DIGEST_BYTES], key[len(prefix) + _DIGEST_BYTES :]
            part, number = _ORDER.unpack(rest[1:])
            yield OfContent(digest, rest[:1], part, number, bool(value[0]))

    def _of_content(self) -> Iterator[OfContent]:
        for side, run in ((_FOUND, self.found), (_EXPECTED, self.expected)):
            for each in run:
                yield OfContent(hashlib.sha256(each.body).digest(), side, each.part, each.number, each.is_due)


class StoredEmits:
    """The records found in the topic with a number among those that are compared, and the expected ones, in a
    store shared with others.

    The opener of the store closes it, after which it cannot be read.
    """

    def __init__(self, store: SpillingStore, number: int) -> None:
        self._store, self._number = store, number
        self.found = self.expected = 0

    def find(self, emits: Iterable[tuple[EmitPlace, StoredEmit]]) -> None:
        """Take records as they lie there."""
        self.found += self._put(_FOUND, emits)

    def expect(self, emits: Iterable[tuple[EmitPlace, StoredEmit]]) -> None:
        """Take records that should."""
        self.expected += self._put(_EXPECTED, emits)

    def _put(self, side: bytes, emits: Iterable[tuple[EmitPlace, StoredEmit]]) -> int:
        # In order, since neighbours in a file cost less.
        rows = sorted(
            (
                self._prefix(place) + side + _ORDER.pack(each.part, each.number),
                bytes([each.is_due]) + each.body,
            )
            for place, each in emits
        )
        self._store.apply(rows)
        return len(rows)

    def _prefix(self, place: EmitPlace) -> bytes:
        key = place.key
        length = 0 if key is None else len(key) + 1
        return _GROUP.pack(_ENTRY, self._number, place.partition + 1, length) + (key or b"")

    def groups(self) -> Iterator[EmitGroup]:
        """Yield the groups to compare, one at a time."""
        group, prefix, end = None, b"", 0
        for key, value in self._store.scan(_GROUP.pack(_ENTRY, self._number, 0, 0)[:3]):
            if group is None or not key.startswith(prefix):  # it has its own length in it
                if group is not None:
                    yield group
                end = _group_end(key)
                prefix = key[:end]
                group = EmitGroup(self._store, prefix)
            group.add(key[end : end + 1], _emit(key, value))
        if group is not None:
            yield group


def _group_end(key: bytes) -> int:
    length: int = _GROUP.unpack_from(key)[3]
    return _GROUP.size + max(0, length - 1)


def _emit(key: bytes, value: bytes) -> StoredEmit:
    part, number = _ORDER.unpack_from(key, len(key) - _ORDER.size)
    return StoredEmit(part, number, bool(value[0]), value[1:])
