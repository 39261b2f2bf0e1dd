"""The three headers by which a record says who sent it, in which epoch, and its sequence number
(docs/producers.md, Stamps).

    holdfast-producer: billing        the producer's name, the same over restarts
    holdfast-epoch: 7                 raised with each new owner of the name; ASCII digits
    holdfast-sequence: 1041           contiguous for each producer and partition, 0 after 2147483647; ASCII
    digits
    holdfast-first: 0                 optional: this epoch's count restarts, from here

A broker's own producer ids do not outlive a process and are not shown to consumers; these do and are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core.engine.declared.processor import Headers
from holdfast.core.kafka.sequences import MAX_SEQUENCE
from holdfast.errors import ConfigError, DecodeError

PRODUCER: Final = "holdfast-producer"
EPOCH: Final = "holdfast-epoch"
SEQUENCE: Final = "holdfast-sequence"
FIRST: Final = "holdfast-first"
NAMES: Final = (PRODUCER, EPOCH, SEQUENCE, FIRST)
DIGEST: Final = "holdfast-digest"
"""In rows of an outbox, next to the stamp: see `row_digests`."""

LIMIT_NAME_BYTES = 249
LIMIT_EPOCH = 10**18


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """The producer of a record, its epoch, and the record's sequence.

    *first* is the number with which this epoch's own count began; None continues the count.
    """

    producer: str
    epoch: int
    sequence: int
    first: int | None = None


def check_name(name: str) -> str:
    """Return *name* if it may be a producer's; ConfigError for one that is empty, too long, or not printable.

    >>> check_name("billing/eu-1")
    'billing/eu-1'
    """
    if (
        not isinstance(name, str)
        or not name.strip()
        or not name.isprintable()
        or len(name.encode()) > LIMIT_NAME_BYTES
    ):
        raise ConfigError(f"producer name {name!r:.80}: use 1 to {LIMIT_NAME_BYTES} bytes of printable text")
    return name


def stamp_headers(stamp: Stamp) -> Headers:
    """Return the headers to send with a record.

    >>> stamp_headers(Stamp("billing", 7, 1041))
    (('holdfast-producer', b'billing'), ('holdfast-epoch', b'7'), ('holdfast-sequence', b'1041'))
    """
    headers: Headers = (
        (PRODUCER, stamp.producer.encode()),
        (EPOCH, b"%d" % stamp.epoch),
        (SEQUENCE, b"%d" % stamp.sequence),
    )
    return headers if stamp.first is None else (*headers, (FIRST, b"%d" % stamp.first))


def read_stamp(headers: Headers) -> Stamp | None:
    """Return the stamp among *headers*, None when there is none; DecodeError when it is not whole or not what
    it must be.

    Of a header that is there twice, the last counts.
    """
    producer = epoch = sequence = first = None
    for name, value in headers:
        if name == PRODUCER:
            producer = value
        elif name == EPOCH:
            epoch = value
        elif name == SEQUENCE:
            sequence = value
        elif name == FIRST:
            first = value
    if producer is None and epoch is None and sequence is None:
        return None
    if not producer or len(producer) > LIMIT_NAME_BYTES:
        raise DecodeError(
            f"{PRODUCER} {(producer or b'')[:80]!r}: a stamp names its producer in 1 to {LIMIT_NAME_BYTES}"
            " bytes"
        )
    # isdigit() is what the fields must be, and much cheaper than int() on bytes that are something else
    if epoch is None or not epoch.isdigit() or len(epoch) > 18:
        raise _no_number(EPOCH, epoch, "10^18")
    if (
        sequence is None
        or not sequence.isdigit()
        or len(sequence) > 10
        or (number := int(sequence)) > MAX_SEQUENCE
    ):
        raise _no_number(SEQUENCE, sequence, "2^31")
    if first is not None and (not first.isdigit() or len(first) > 10 or int(first) > MAX_SEQUENCE):
        raise _no_number(FIRST, first, "2^31")
    try:
        return Stamp(producer.decode(), int(epoch), number, None if first is None else int(first))
    except UnicodeDecodeError:
        raise DecodeError(f"{PRODUCER} {producer[:80]!r} is not UTF-8") from None


def _no_number(name: str, value: bytes | None, limit: str) -> DecodeError:
    shown = "is missing" if value is None else f"{value[:40]!r} is not a number of ASCII digits below {limit}"
    return DecodeError(f"{name} {shown}: a stamp has a producer, an epoch and a sequence")
