"""The proof of an outbox: of every published row, whether it is there once, in its key's order, in numbers
without a gap.

A fold over one destination partition keeps the books of every producer (holdfast.core.producers.ledger), the
last number of every key, and notes each deviation from the rules, with its offset.
`holdfast.core.producers.audit_verdict` judges the remaining rows once the whole partition is known. Both are
pure, so every engine reports the same (docs/outbox.md, "Proving it").

The rows of a partition:

    =<producer>      its book                     /totals  the sums, and records without a stamp
    k<key>           the key's last number        n<key>   with `Rules.number`: the numbers its rows have had
    f<offset>/<kind> a finding                    /found   how many findings there are, by kind
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import TypeAlias
from zlib import crc32

import msgspec

from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emits, Headers, Input
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.sequences import MAX_SEQUENCE, advance, distance
from holdfast.core.producers import ledger
from holdfast.core.producers.ledger import Book, Judgement, Totals
from holdfast.core.producers.row_digests import OURS, Digested, examine
from holdfast.core.producers.stamps import Stamp, read_stamp
from holdfast.errors import DecodeError

LIMIT_FINDINGS = 10_000
"""Findings kept of one partition; the others are only counted."""
LIMIT_NUMBERS = 256
"""Numbers remembered of one key; whether an older, lower one is a repetition cannot be decided."""
LIMIT_KEY_BYTES = 512
FOUND_KEY = "/found"
INPUTS: tuple[Input, ...] = ("key", "headers", "offset", "value", "partition")
"""The parts of a record that `decode` takes."""
_FITS = Digested(known=True)
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class FindingKind(StrEnum):
    """The kinds of faults of a published record."""

    LOST = "lost"
    """Numbers of a producer that are not there."""
    DUPLICATE = "duplicate"
    """A number, or a row, that was there before."""
    INVERSION = "inversion"
    """A record behind a later one of its key."""
    DISORDER = "out-of-order"
    """A number that came late, which no key's order suffers from."""
    ZOMBIE = "zombie"
    """A record of an epoch that had been replaced."""
    DOUBTFUL = "doubtful"
    """A number so late that it may have come before; only reported where very much is wrong already."""
    CHANGED = "changed"
    """A record whose key, value, headers or number are not those it was published with."""
    MISPLACED = "misplaced"
    """A record in another partition than it was published to, or than its key's."""
    UNREADABLE = "unreadable"
    """A record whose stamp or number cannot be read."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of an audit. *outbox* None takes every producer that stamps its records for one.

    *number* names a header by which the writing service numbers the rows of each key, ascending: then rows
    are proved as well, not only what harvesters say of them, and records without a stamp too (strategy mark).
    *at_least_once* takes repetitions of a row as allowed. *partitions* says that each key belongs to its
    partition by murmur2 among so many, for records without that in their digest.
    """

    outbox: str | None = None
    number: str | None = None
    at_least_once: bool = False
    partitions: int | None = None

    def covers(self, producer: str) -> bool:
        """Return whether *producer* is audited.

        >>> [Rules(outbox="shop").covers(name) for name in ("shop-0", "shop-12", "shop", "shop-eu-0", "other-0")]
        [True, True, False, False, False]
        """  # noqa: E501
        if self.outbox is None:
            return True
        name, _, shard = producer.rpartition("-")
        return name == self.outbox and shard.isdigit()


class KeyPosition(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="k"):
    """A key's position: its last record in the order of one producer's numbers."""

    producer: str
    sequence: int
    offset: int
    content: int = 0
    """Of its value and its own headers, 32 bits."""


class Numbers(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="n"):
    """The numbers that rows of one key have had: the highest, its offset, the last ones seen."""

    highest: int
    offset: int
    recent: tuple[int, ...]


class AuditFinding(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="f", kw_only=True):
    """One thing that is wrong in a partition. *offset* is that of the record to blame, and for lost ones of
    the first record behind them.

    *after* is the offset of the record that should not, or does not directly, precede it; -1 for none.
    *first* and *last* are the numbers concerned, -1 when none can be read.
    """

    kind: FindingKind
    offset: int
    after: int
    producer: str
    epoch: int
    first: int
    last: int
    key: str | None = None
    reason: str = ""

    @property
    def records(self) -> int:
        """Return how many records are concerned."""
        return (self.last - self.first & MAX_SEQUENCE) + 1 if self.kind is FindingKind.LOST else 1


class Found(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="c"):
    """Counts of one partition: findings, of which not all are kept, repetitions that are allowed, records
    without a digest, and records that equal the one before them of their key.
    """

    findings: int = 0
    repeated: int = 0
    undigested: int = 0
    alike: int = 0


AuditRow: TypeAlias = Book | Totals | KeyPosition | Numbers | AuditFinding | Found


class AuditedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as the audit sees it; *stamp* is None if its producer is not audited."""

    stamp: Stamp | None
    key: bytes | None
    number: int | None
    offset: int
    digested: Digested = Digested()
    content: int = 0
    event: bool = False
    """True if its headers name an event by an id of its own."""


def progress_topic(outbox: str) -> str:
    """Return the topic on which the leaders of *outbox* report their progress."""
    return f"{outbox}.progress"


# -- the fold


def decode(
    key: bytes | None, headers: Headers, offset: int, value: bytes | None, partition: int, *, rules: Rules
) -> AuditedRecord:
    """Return the audited parts of a record; for `INPUTS`. DecodeError for a malformed stamp or number."""
    stamp = read_stamp(headers)
    if stamp is not None and not rules.covers(stamp.producer):
        return AuditedRecord(None, key, None, offset)
    number = None
    if rules.number is not None:
        found = next((content or b"" for name, content in reversed(headers) if name == rules.number), None)
        if found is not None and found.isdigit() and len(found) <= 18:
            number = int(found)
        elif found is not None or stamp is not None:
            why = (
                "is missing"
                if found is None
                else f"{found[:40]!r} is not a number of ASCII digits below 10^18"
            )
            raise DecodeError(f"{rules.number} {why}, so the row's place among those of its key is not known")
    digested = Digested() if stamp is None else examine(stamp, partition, key, value, headers)
    if (
        not digested.known
        and rules.partitions is not None
        and key is not None
        and (stamp is not None or number is not None)
    ):
        own = of_key(key, rules.partitions)
        if own != partition:
            digested = Digested(misplaced=f"its key's partition among {rules.partitions} is {own}")
    content, event = (0, False) if stamp is None else _content(value, headers)
    return AuditedRecord(stamp, key, number, offset, digested, content, event)


def _content(value: bytes | None, headers: Headers) -> tuple[int, bool]:
    """Return 32 bits of a record's value and own headers, and whether these have a UUID as `id`."""
    content, event = crc32(value or b""), False
    for name, held in headers:
        if name not in OURS:
            content = crc32(held or b"", crc32(name.encode(), content))
            event = event or (name == "id" and held is not None and _UUID.fullmatch(held) is not None)
    return content, event


def fold(rows: Rows[AuditRow], seen: AuditedRecord, at_ms: int, *, rules: Rules) -> Emits:
    """Enter one record, and note its faults. Emits nothing."""
    stamp = seen.stamp
    if stamp is not None:
        _enter(rows, stamp, seen, at_ms)
    elif seen.number is None:
        ledger.record(rows, ledger.NOBODY, seen.offset, at_ms)  # type: ignore[arg-type]
    if seen.number is not None and seen.key is not None:
        _number(rows, seen, seen.number, rules)
    if seen.digested != _FITS:
        _digested(rows, seen)
    return None


def _digested(rows: Rows[AuditRow], seen: AuditedRecord) -> None:
    digested, stamp = seen.digested, seen.stamp or ledger.NOBODY
    number = -1 if seen.stamp is None else stamp.sequence
    if digested.changed:
        _note(rows, _finding(FindingKind.CHANGED, seen, stamp, number, number, -1, digested.changed))
    if digested.misplaced:
        _note(rows, _finding(FindingKind.MISPLACED, seen, stamp, number, number, -1, digested.misplaced))
    if not digested.known and seen.stamp is not None:
        found = _found(rows)
        rows[FOUND_KEY] = msgspec.structs.replace(found, undigested=found.undigested + 1)


def _enter(rows: Rows[AuditRow], stamp: Stamp, seen: AuditedRecord, at_ms: int) -> None:
    name = ledger.book_key(stamp.producer)
    known = rows.get(name)
    if isinstance(known, Book) and stamp.sequence == known.last_sequence + 1 and stamp.epoch == known.epoch:
        # Nearly every record there is, so it is entered directly.
        rows[name] = Book(
            known.epoch,
            stamp.sequence,
            seen.offset,
            at_ms,
            known.records + 1,
            known.first_sequence,
            known.first_offset,
            known.noted,
        )
        _place(rows, stamp, seen)
        return
    began = stamp.first or 0
    if known is None and distance(began, stamp.sequence) >= 0:
        # Its count began there, whatever is left of it here: then a number below the first one is late, and
        # not one that came twice.
        rows[name] = Book(stamp.epoch, advance(began, -1), -1, at_ms, 0, began, seen.offset)
    before, judgement = ledger.record(rows, stamp, seen.offset, at_ms)  # type: ignore[arg-type]
    if judgement in _STANDS:
        _place(rows, stamp, seen)
        if judgement is Judgement.NEW:
            return
    if before is None:
        return
    kind, first, last, after = _KINDS[judgement], stamp.sequence, stamp.sequence, before.last_offset
    if judgement is Judgement.GAP:
        first = (
            stamp.first
            if stamp.first is not None and stamp.epoch > before.epoch
            else advance(before.last_sequence, 1)
        )
        last = advance(stamp.sequence, -1)
    elif judgement is Judgement.LATE and seen.key is not None:
        place = rows.get(f"k{key_text(seen.key)}")
        if (
            isinstance(place, KeyPosition)
            and place.producer == stamp.producer
            and distance(place.sequence, stamp.sequence) < 0
        ):
            kind, after = FindingKind.INVERSION, place.offset
    _note(rows, _finding(kind, seen, stamp, first, last, after, _reason(kind, stamp, before, first, last)))


def _place(rows: Rows[AuditRow], stamp: Stamp, seen: AuditedRecord) -> None:
    """Note the position of the record's key, and whether the record equals the one before it under another
    number: a row that was published twice, or two equal rows.
    """
    if seen.key is None:
        return
    name = f"k{key_text(seen.key)}"
    before = rows.get(name)
    rows[name] = KeyPosition(stamp.producer, stamp.sequence, seen.offset, seen.content)
    if not isinstance(before, KeyPosition) or before.content != seen.content:
        return
    if seen.event:
        kind, why = FindingKind.DUPLICATE, f"its event was published before, as number {before.sequence}"
        number = stamp.sequence
        _note(rows, _finding(kind, seen, stamp, number, number, before.offset, why), "event")
        return
    found = _found(rows)
    rows[FOUND_KEY] = msgspec.structs.replace(found, alike=found.alike + 1)


_STANDS = frozenset({Judgement.NEW, Judgement.GAP})
_KINDS = {
    Judgement.GAP: FindingKind.LOST,
    Judgement.LATE: FindingKind.DISORDER,
    Judgement.DUPLICATE: FindingKind.DUPLICATE,
    Judgement.DOUBTFUL: FindingKind.DOUBTFUL,
    Judgement.ZOMBIE: FindingKind.ZOMBIE,
}


def _reason(kind: FindingKind, stamp: Stamp, before: Book, first: int, last: int) -> str:
    match kind:
        case FindingKind.LOST:
            return missing(first, last)
        case FindingKind.DUPLICATE:
            return f"number {stamp.sequence} has come before, the next is {advance(before.last_sequence, 1)}"
        case FindingKind.ZOMBIE:
            return f"epoch {stamp.epoch} was replaced by {before.epoch}"
        case FindingKind.DOUBTFUL:
            return (
                f"number {stamp.sequence} may have come before: more than {ledger.LIMIT_HOLES} ranges of"
                " numbers are missing"
            )
        case FindingKind.INVERSION:
            return f"number {stamp.sequence} came behind a later one of its key"
        case _:
            return f"number {stamp.sequence} came after {before.last_sequence}"


def missing(first: int, last: int) -> str:
    return f"number {first} is not there" if first == last else f"numbers {first} to {last} are not there"


def _number(rows: Rows[AuditRow], seen: AuditedRecord, number: int, rules: Rules) -> None:
    assert seen.key is not None
    name = f"n{key_text(seen.key)}"
    before = rows.get(name)
    if not isinstance(before, Numbers):
        rows[name] = Numbers(number, seen.offset, (number,))
        return
    if number > before.highest:
        rows[name] = Numbers(number, seen.offset, (*before.recent, number)[-LIMIT_NUMBERS:])
        return
    stamp = seen.stamp or ledger.NOBODY
    if number in before.recent:
        if rules.at_least_once:
            found = _found(rows)
            rows[FOUND_KEY] = msgspec.structs.replace(found, repeated=found.repeated + 1)
            return
        kind, reason = FindingKind.DUPLICATE, f"row {number} of the key has come before"
    elif len(before.recent) == LIMIT_NUMBERS and number < min(before.recent):
        kind, reason = (
            FindingKind.DOUBTFUL,
            f"row {number} of the key came after {before.highest}, and perhaps before",
        )
    else:
        kind, reason = FindingKind.INVERSION, f"row {number} of the key came after {before.highest}"
        rows[name] = Numbers(before.highest, before.offset, (*before.recent, number)[-LIMIT_NUMBERS:])
    _note(rows, _finding(kind, seen, stamp, number, number, before.offset, reason), "row")


def _finding(
    kind: FindingKind, seen: AuditedRecord, stamp: Stamp, first: int, last: int, after: int, reason: str
) -> AuditFinding:
    key = None if seen.key is None or kind is FindingKind.LOST else key_text(seen.key)
    return AuditFinding(
        kind=kind,
        offset=seen.offset,
        after=after,
        producer=stamp.producer,
        epoch=stamp.epoch,
        first=first,
        last=last,
        key=key,
        reason=reason,
    )


def _found(rows: Rows[AuditRow]) -> Found:
    found = rows.get(FOUND_KEY)
    return found if isinstance(found, Found) else Found()


def _note(rows: Rows[AuditRow], finding: AuditFinding, about: str = "") -> None:
    found = _found(rows)
    if found.findings < LIMIT_FINDINGS:
        rows[f"f{finding.offset:019d}/{finding.kind}{about}"] = finding
    rows[FOUND_KEY] = msgspec.structs.replace(found, findings=found.findings + 1)


def key_text(key: bytes) -> str:
    """Return a record's key as text: itself when it can be printed, `0x` and its bytes else, a digest when it
    is long.

    >>> key_text(b"order-1"), key_text(b"\\xff\\x00"), key_text(b"0x41"), key_text(b"x" * 600)[:12]
    ('order-1', '0xff00', '0x30783431', 'blake2b:dedb')
    """
    if len(key) > LIMIT_KEY_BYTES:
        return f"blake2b:{hashlib.blake2b(key, digest_size=16).hexdigest()}"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() and not text.startswith(("0x", "blake2b:")) else f"0x{key.hex()}"
