"""Ranges: one partition worked on by several members at once, block by block, for work without order
(PROTOCOL.md#ranges).

    low            high
     v               v
     |done|open|done|open|   ... the log may end anywhere in here, and blocks may begin after its end

Every record of the topic is a wish; the fold, the same for every reader, says which of them count. Time is
that of the records.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.core.untrusted import UNFIT
from holdfast.errors import ConfigError

RANGES_TOPIC = "holdfast.ranges"
LIMIT_AHEAD = 64
"""Blocks beyond the low-water offset, done or not: how far the fastest may be ahead of the slowest."""
LIMIT_BLOCK_MESSAGES = 100_000
LIMIT_FORMER_MARKS = 4
"""Topics that were deleted and that a row remembers."""
FORGOTTEN_AFTER_MS = 30 * 86_400_000
"""A row without a record for so long is not kept any more."""


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets from *start* to before *end*. All below *progress* is done; from there to before *given*, all
    was handed out *deliveries* times.

    *epoch* counts owners: a record with another one does not count. *at_ms* is the owner's last sign of life,
    -1 once it gave the block back.
    """

    start: int
    end: int
    progress: int
    owner: str
    instance: str
    epoch: int
    deliveries: int
    given: int
    at_ms: int

    @property
    def done(self) -> bool:
        return self.progress >= self.end

    def is_free(self, now_ms: int, lease_ms: int) -> bool:
        """Return whether another member may take it at *now_ms* of the log's time."""
        return not self.done and (self.at_ms < 0 or now_ms - self.at_ms >= lease_ms)


class Ranges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One partition in one group: all below *low* is done, the *blocks* from there to *high* are
    contiguous and in order.
    """

    low: int
    blocks: tuple[Block, ...] = ()

    @property
    def high(self) -> int:
        return self.blocks[-1].end if self.blocks else self.low

    def block(self, start: int) -> Block | None:
        return next((each for each in self.blocks if each.start == start), None)


class Base(msgspec.Struct, frozen=True, tag="base", forbid_unknown_fields=True):
    """The row as it is after the record at *after* (-1: no row has been written yet).

    Where reading can begin.
    """

    after: int
    row: Ranges


class Take(msgspec.Struct, frozen=True, tag="take", forbid_unknown_fields=True):
    """*owner* wants a block: a free one, or the next after the last."""

    start: int
    end: int
    owner: str
    instance: str


class Keep(msgspec.Struct, frozen=True, tag="keep", forbid_unknown_fields=True):
    """The owner is at work and has done all below *progress*; with *free* it gives the rest back.

    With *given* it is about to hand out the messages from *progress* to before that: a delivery. The frame
    comes before the messages, since they may kill their consumer.
    """

    start: int
    epoch: int
    instance: str
    progress: int
    free: bool = False
    given: int = -1


class OfTopic(msgspec.Struct, frozen=True, tag="topic", omit_defaults=True):
    """The row counts offsets of the topic with this *mark*; with *was*, those before were of another, which
    was deleted, and all of the new topic before *low* is passed. Readers of earlier releases pass it over.
    """

    mark: int
    was: int = 0
    low: int = 0


Wish: TypeAlias = Base | Take | Keep | OfTopic
_WISHES: msgspec.json.Decoder[Wish] = msgspec.json.Decoder(Wish)


class RangeRow(NamedTuple):
    """A row, where its last record that counted lies, and how many counted since the last Base; the mark of
    the topic that it counts offsets of, 0 if unknown, and of those of that name before.
    """

    row: Ranges
    offset: int
    since_base: int
    mark: int = 0
    former: tuple[int, ...] = ()


def range_key(group: str, topic: str, partition: int) -> str:
    """Return the key of the records about one partition in one group."""
    if "/" in group or "/" in topic:
        raise ConfigError(f"group {group!r}, topic {topic!r}: '/' is not allowed in either; rename it")
    return f"{group}/{topic}/{partition}"


def encode_wish(wish: Wish) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(wish)


def decode_wish(value: bytes) -> Wish | None:
    """Return the request in a record, None for other content.

    >>> decode_wish(encode_wish(Take(0, 10, "a", "i"))), decode_wish(b"{}")
    (Take(start=0, end=10, owner='a', instance='i'), None)
    """
    try:
        return _WISHES.decode(value)
    except UNFIT:
        return None


def fold_range(
    before: RangeRow | None, wish: Wish, offset: int, at_ms: int, lease_ms: int, previous: int = -1
) -> RangeRow | None:
    """Return the row after the record at *offset*, written at *at_ms* of the log's time; *before* itself when
    it does not count.

    *previous* is where the record about the same row lies that was read just before, -1 for none. A Base that
    follows the record it was made after counts for everybody: so it sets right who began to read in the
    middle of the log, at a Base perhaps that never counted.
    """
    match wish:
        case Base(after=after, row=row):
            if before is None:
                return RangeRow(row, offset, 0)
            if before.offset == after or (after >= 0 and after == previous):
                return before._replace(row=row, offset=offset, since_base=0)
            return before
        case OfTopic():
            return None if before is None else _of_topic(before, wish, offset)
        case Take():
            changed = None if before is None else _taken(before.row, wish, at_ms, lease_ms)
        case Keep():
            changed = None if before is None else _kept(before.row, wish, at_ms)
    if before is None or changed is None:
        return before
    return before._replace(row=changed, offset=offset, since_base=before.since_base + 1)


def _of_topic(before: RangeRow, wish: OfTopic, offset: int) -> RangeRow:
    """Return the row once its topic is known: for a recreated topic, a new row."""
    if wish.mark in (before.mark, *before.former) or before.mark not in (0, wish.was):
        return before
    counted = before._replace(offset=offset, since_base=before.since_base + 1, mark=wish.mark)
    if not wish.was:
        return counted
    return counted._replace(row=Ranges(wish.low), former=(*before.former, wish.was)[-LIMIT_FORMER_MARKS:])


def _taken(row: Ranges, wish: Take, at_ms: int, lease_ms: int) -> Ranges | None:
    if wish.start == row.high:
        if len(row.blocks) >= LIMIT_AHEAD or not 0 < wish.end - wish.start <= LIMIT_BLOCK_MESSAGES:
            return None
        block = Block(wish.start, wish.end, wish.start, wish.owner, wish.instance, 1, 0, wish.start, at_ms)
        return Ranges(row.low, (*row.blocks, block))
    found = row.block(wish.start)
    if found is None or found.end != wish.end or not found.is_free(at_ms, lease_ms):
        return None
    # Taking is no delivery: a consumer that dies or leaves before it hands out a message proves nothing about
    # the block.
    block = msgspec.structs.replace(
        found, owner=wish.owner, instance=wish.instance, epoch=found.epoch + 1, at_ms=at_ms
    )
    return _with(row, block)


def _kept(row: Ranges, wish: Keep, at_ms: int) -> Ranges | None:
    found = row.block(wish.start)
    if found is None or (found.epoch, found.instance) != (wish.epoch, wish.instance) or found.at_ms < 0:
        return None
    if not found.progress <= wish.progress <= found.end:
        return None
    deliveries, given = found.deliveries, found.given
    if wish.progress > found.progress:
        deliveries, given = 0, wish.progress
    if wish.given >= 0:
        if wish.free or not wish.progress < wish.given <= found.end:
            return None
        # Only what every delivery held can have been what they all died of.
        deliveries, given = deliveries + 1, min(given, wish.given) if deliveries else wish.given
    return _with(
        row,
        msgspec.structs.replace(
            found,
            progress=wish.progress,
            at_ms=-1 if wish.free else at_ms,
            deliveries=deliveries,
            given=given,
        ),
    )


def _with(row: Ranges, block: Block) -> Ranges:
    """Replace the block of the same start by *block*, and drop finished blocks from the low-water offset
    on.
    """
    blocks = [block if each.start == block.start else each for each in row.blocks]
    low = row.low
    while blocks and blocks[0].done:
        low = blocks.pop(0).end
    return Ranges(low, tuple(blocks))


class _Kept(NamedTuple):
    """The offset and time of the last record about a row, and from where on its records are needed."""

    last: int
    at_ms: int
    needed_from: int


class Horizon:
    """The beginning of one log of requests that is no longer needed, whatever groups and topics share it.

    A row's records are needed from the last Base on that counts for every reader. Rows without records for
    FORGOTTEN_AFTER_MS do not hold the log: such a group begins at its offset committed to Kafka.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def note(self, key: str, wish: Wish, offset: int, at_ms: int) -> int:
        """Note a record, in order of the log; return where the one about the same row before it lies, -1
        for none.
        """
        before = self._kept.get(key)
        if before is None:
            self._kept[key] = _Kept(offset, at_ms, offset)
            return -1
        settles = isinstance(wish, Base) and wish.after >= 0 and wish.after == before.last
        self._kept[key] = _Kept(offset, at_ms, offset if settles else before.needed_from)
        return before.last

    def last(self, key: str) -> int:
        """Return where the last record about a row lies, -1 for none."""
        kept = self._kept.get(key)
        return -1 if kept is None else kept.last

    def lacks(self, key: str, begin: int) -> bool:
        """Return whether who begins to read at *begin* lacks records of a row that is known here."""
        kept = self._kept.get(key)
        return kept is not None and kept.needed_from < begin

    def begin(self, end: int, now_ms: int) -> int:
        """Return the offset, *end* at most, before which everything can be deleted at *now_ms* of the log's
        time.

        >>> horizon = Horizon()
        >>> [horizon.note("g/t/0", wish, at, 0) for at, wish in enumerate((Base(-1, Ranges(0)), Take(0, 9, "a", "i"), Base(1, Ranges(0))))]
        [-1, 0, 1]
        >>> horizon.begin(3, 0), horizon.begin(3, FORGOTTEN_AFTER_MS + 1)
        (2, 3)
        """  # noqa: E501
        idle = {key for key, kept in self._kept.items() if now_ms - kept.at_ms > FORGOTTEN_AFTER_MS}
        begin = min((kept.needed_from for key, kept in self._kept.items() if key not in idle), default=end)
        # A forgotten row goes as a whole or not at all: part of its records would be read as if they were
        # all.
        for kept in sorted((self._kept[key] for key in idle), key=lambda each: -each.last):
            if kept.last >= begin:
                begin = min(begin, kept.needed_from)
        return begin


def low_water(row: Ranges) -> int:
    """Return where a reader that knows no blocks would begin: all before it is done."""
    return row.blocks[0].progress if row.blocks else row.low


def shows(row: Ranges, wish: Wish) -> bool:
    """Return whether a request counted, by a later *row*, for a reader that cannot read its record any more.

    >>> shows(Ranges(9), Keep(0, 1, "i", 9)), shows(Ranges(9), Take(0, 9, "a", "i"))
    (True, False)
    """
    if isinstance(wish, Base | OfTopic):
        return False
    found = row.block(wish.start)
    if found is None:  # all of the block is done, so nothing of it can be handed out
        return isinstance(wish, Keep) and wish.given < 0 and wish.start < wish.progress <= row.low
    if found.instance != wish.instance:
        return False
    if isinstance(wish, Take):
        return found.at_ms >= 0
    return found.epoch == wish.epoch and found.progress >= wish.progress and (found.at_ms >= 0 or wish.free)


def next_take(
    row: Ranges, owner: str, instance: str, *, now_ms: int, lease_ms: int, size: int, ahead_of: int
) -> Take | None:
    """Return the block to take next: the first free one with work before *ahead_of*, else a new one that
    begins before it, else None.
    """
    for block in row.blocks:
        if block.progress < ahead_of and block.is_free(now_ms, lease_ms):
            return Take(block.start, block.end, owner, instance)
    if len(row.blocks) >= LIMIT_AHEAD or row.high >= ahead_of:
        return None
    return Take(row.high, row.high + size, owner, instance)
