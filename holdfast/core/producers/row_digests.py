"""The digest that travels with each published row: what the row was, and where it was put (docs/producers.md,
Stamps).

    holdfast-digest: 6f0c2d9a51be7703/5/12

64 bits of BLAKE2b in hexadecimal; the partition the row was put in; and, for a row that its key placed, among
how many partitions. Hashed are the producer, its epoch and the row's sequence, partition and count, key,
value, and the other headers in their order. So a record whose key, value or headers changed on the way, or
that lies under another number or in another partition, does not fit its digest. It contains no secret: it
finds damage, copies and careless changes, but not a change with a new digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.producers.stamps import DIGEST, NAMES, Stamp

OURS: Final = frozenset({*NAMES, DIGEST})
_FORM = re.compile(rb"([0-9a-f]{16})/([0-9]{1,10})(?:/([1-9][0-9]{0,9}))?")

Header = tuple[str, bytes | None]


class RowDigests:
    """Computes the digests of what one producer publishes in one epoch.

    >>> digests = RowDigests(b"orders-0", b"7")
    >>> digests.header(b"1041", 5, 0, b"k", b"paid", [])
    b'2f6cc69d0eff70c4/5'
    """

    __slots__ = ("_begun",)

    def __init__(self, producer: bytes, epoch: bytes) -> None:
        self._begun = blake2b(b"%d/%s/%s/" % (len(producer), producer, epoch), digest_size=8)

    def header(
        self,
        sequence: bytes,
        partition: int,
        among: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header],
    ) -> bytes:
        """Return the value of the header; *among* is the count of partitions by which the key was placed,
        0 when it was not by the key.
        """
        # -1 distinguishes None from empty, and lengths keep one field's bytes from being taken for another's.
        sizes = -1 if key is None else len(key), -1 if value is None else len(value)
        parts = [b"%s/%d/%d/%d/%d/" % (sequence, partition, among, *sizes), key or b"", value or b""]
        for name, content in headers:
            if name not in OURS:
                encoded = name.encode()
                parts += (
                    b"%d/%d/" % (len(encoded), -1 if content is None else len(content)),
                    encoded,
                    content or b"",
                )
        hashed = self._begun.copy()
        hashed.update(b"".join(parts))
        place = b"%d/%d" % (partition, among) if among else b"%d" % partition
        return hashed.hexdigest().encode() + b"/" + place


class Digested(msgspec.Struct, frozen=True, gc=False):
    """The result of checking a record's digest.

    *changed* and *misplaced* are reasons, empty when nothing is wrong; *known* is False without one.
    """

    known: bool = False
    changed: str = ""
    misplaced: str = ""


_NONE, _RIGHT = Digested(), Digested(known=True)


def examine(
    stamp: Stamp, partition: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
) -> Digested:
    """Compare a record found in *partition* with the digest it bears.

    Of a header that is there twice, the last counts.
    """
    found = next((content for name, content in reversed(headers) if name == DIGEST), None)
    if found is None:
        return _NONE
    form = _FORM.fullmatch(found)
    if form is None:
        return Digested(known=True, changed=f"{DIGEST} {found[:40]!r} is not a harvester's digest")
    put, among = int(form[2]), int(form[3] or 0)
    computed = RowDigests(stamp.producer.encode(), b"%d" % stamp.epoch).header(
        b"%d" % stamp.sequence, put, among, key, value, headers
    )
    changed, misplaced = "", ""
    if computed != found:
        changed = f"key, value, headers or number are not those of its digest {found.decode()}"
    if put != partition:
        misplaced = f"it was published to partition {put}"
    elif among and key is not None and (own := of_key(key, among)) != partition and not changed:
        misplaced = f"its key's partition among {among} is {own}"
    return Digested(known=True, changed=changed, misplaced=misplaced) if changed or misplaced else _RIGHT
