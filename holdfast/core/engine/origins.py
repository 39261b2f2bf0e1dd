"""Origins: the log that a record of a step comes from, and the progress of that log.

A step gives each record that it sends to an internal topic one small header, and writes marks to the
partitions that got no record. So lateness downstream of it, and the closing of windows, follow from the
sources' logs, at whatever pace they are read (docs/adr/0022-watermarks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import msgspec

from holdfast.core.engine.emits import Headers
from holdfast.core.engine.event_times import check_ahead, limit_of
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError, DecodeError

ORIGIN, MARK = "holdfast-origin", "holdfast-mark"
"""The names of the header of a record of a step, and of that of a mark, which has no key and no value."""
_OF_STEPS = frozenset((ORIGIN, MARK))
UNHEARD = -(1 << 62)
"""The watermark of an origin that has said nothing."""
NAMELESS = -1
"""The origin of records without the header: of a source that no step writes, or of an older holdfast."""
ALONE = 0
"""The number of origins in a mark of a partition that gets records of no origin but this one."""
_NEVER = 1 << 62
LIMIT_ORIGINS = 1 << 20
LIMIT_TIME_MS = 10**15
"""Event times of which watermarks are made lie in [0, this), as those of windows do."""

_FORMAT = 1
_RECORD, _MARKED = Struct(">Biqq"), Struct(">Biq?i")
_WATERMARK, _TOLD = Struct(">q"), Struct(">xiqq")
_pack, _unpack, _iter_unpack = _RECORD.pack, _TOLD.unpack, _TOLD.iter_unpack


class RecordOrigin(NamedTuple):
    """The header of a record: its *origin*, and the watermarks before and after it.

    *before_ms* is that of the log in which the record was first: lateness depends on it alone.
    *after_ms* is that of the partition of the step that wrote it.
    """

    origin: int
    before_ms: int
    after_ms: int


class Mark(NamedTuple):
    """A mark: the watermark of *origin*, and *has_ended* if it stays at the end of its log and holds nothing
    back.

    *origins* is the number of all origins whose records this partition gets, or ALONE.
    """

    origin: int
    watermark_ms: int
    has_ended: bool
    origins: int


class StepReached(NamedTuple):
    """The watermark of a partition that reports it to readers of its emits, and *has_ended* if it stays at
    the end of its log and holds nothing back.
    """

    watermark_ms: int
    has_ended: bool


class HeldBack(NamedTuple):
    """The origin that holds stream time back, of the source with this number: None for one that has said
    nothing, and then *lag_ms* is None too. Else it is by how much event time others are ahead.
    """

    source: int
    origin: int | None
    lag_ms: int | None


def is_mark(headers: Headers) -> bool:
    """Return whether a record with *headers* is a mark, which no fold of users sees."""
    return bool(headers) and headers[0][0] == MARK


def record_header(origin: int, before_ms: int, after_ms: int) -> tuple[str, bytes]:
    """Return the header of a record.

    >>> told_of((record_header(3, 5, 7),))
    RecordOrigin(origin=3, before_ms=5, after_ms=7)
    """
    return ORIGIN, _pack(_FORMAT, origin, before_ms, after_ms)


def early(header: tuple[str, bytes | None]) -> tuple[str, bytes]:
    """Return the header of a record, without the watermark after it: for all but the last of the records that
    are sent for one, since these may be earlier than that watermark.

    >>> told_of((early(record_header(3, 5, 7)),)) == RecordOrigin(3, 5, UNHEARD)
    True
    """
    name, value = header
    assert value is not None, "written by record_header"
    return name, value[: -_WATERMARK.size] + _WATERMARK.pack(UNHEARD)


def mark_headers(mark: Mark) -> tuple[tuple[str, bytes]]:
    """Return the headers of a mark.

    >>> mark_of(mark_headers(Mark(3, 7, True, 4)))
    Mark(origin=3, watermark_ms=7, has_ended=True, origins=4)
    """
    return ((MARK, _MARKED.pack(_FORMAT, *mark)),)


def told_of(headers: Headers) -> RecordOrigin | None:
    """Return the origin and watermarks in the headers of a record; None without such a header.

    DecodeError for one that no step of this version wrote.
    """
    for name, value in reversed(headers):
        if name == ORIGIN:
            if value is None or len(value) != _RECORD.size or value[0] != _FORMAT:
                raise _unfit(name, value)
            told = RecordOrigin(*_RECORD.unpack(value)[1:])
            if not 0 <= told.origin < LIMIT_ORIGINS:
                raise _unfit(name, value)
            return told
    return None


def quickly_told_of(headers: Headers) -> tuple[int, int, int] | None:
    """Return the same as `told_of` for a record with that header alone; None for all others, which may have
    it.
    """
    try:
        ((name, value),) = headers
        if name == ORIGIN and value and value[0] == _FORMAT:
            told: tuple[int, int, int] = _unpack(value)
            return told if 0 <= told[0] < LIMIT_ORIGINS else None
    except (ValueError, StructError):
        pass
    return None


def all_told(headers: Sequence[Headers]) -> list[tuple[int, int, int]] | None:
    """Return the same as `told_of` for each of *headers* if all of them are that one header alone; else None.

    >>> all_told([(record_header(3, 5, 7),), (record_header(3, 7, 7),)])
    [(3, 5, 7), (3, 7, 7)]
    """
    try:
        values = [value for ((name, value),) in headers if name == ORIGIN]
        packed = b"".join(values)  # type: ignore[arg-type]  # a header without a value raises TypeError
    except (ValueError, TypeError):
        return None
    size, count = _RECORD.size, len(headers)
    if len(values) < count or {*map(len, values)} != {size} or packed[::size].count(_FORMAT) < count:  # type: ignore[arg-type]
        return None
    told: list[tuple[int, int, int]] = [*_iter_unpack(packed)]
    origins = {each[0] for each in told}
    return told if min(origins) >= 0 and max(origins) < LIMIT_ORIGINS else None


def mark_of(headers: Headers) -> Mark:
    """Return the mark in *headers*; DecodeError for one that no step of this version wrote."""
    name, value = headers[0]
    if value is None or len(value) != _MARKED.size or value[0] != _FORMAT:
        raise _unfit(name, value)
    mark = Mark(*_MARKED.unpack(value)[1:])
    if not (0 <= mark.origin < LIMIT_ORIGINS and ALONE <= mark.origins <= LIMIT_ORIGINS):
        raise _unfit(name, value)
    return mark


def _unfit(name: str, value: bytes | None) -> DecodeError:
    told = "is malformed: no step wrote it"
    if value and value[0] > _FORMAT:
        told = f"has format {value[0]}, this version reads {_FORMAT}: upgrade the workers"
    return DecodeError(f"header {name} {told}")


def plain(headers: Headers) -> Headers:
    """Return *headers* without that of the origin: what users see.

    >>> plain((("a", b"1"), record_header(0, 1, 2)))
    (('a', b'1'),)
    """
    if headers and any(name == ORIGIN for name, _ in headers):
        return tuple(each for each in headers if each[0] != ORIGIN)
    return headers


def unclaimed(headers: Headers) -> Headers:
    """Return *headers* without those that steps alone write: of a record that no step wrote.

    >>> unclaimed((("a", b"1"), record_header(0, 1, 2), *mark_headers(Mark(0, 7, True, 1))))
    (('a', b'1'),)
    """
    if headers and any(name in _OF_STEPS for name, _ in headers):
        return tuple(each for each in headers if each[0] not in _OF_STEPS)
    return headers


class OriginWatermarks:
    """The watermarks of the origins of one source partition, and the least of those that will say more.

    An origin without a record or mark yet holds all back, and so does an unknown number of origins, which
    marks carry. Records without the header are of one origin together. It counts alone while there is no
    other, and once there are records or marks of all others it holds nothing back.

    >>> both = OriginWatermarks()
    >>> both.hear(0, 70)
    True
    >>> both.least_ms == UNHEARD  # the number of origins is not known yet
    True
    >>> both.mark(Mark(1, 50, False, 2))
    >>> both.least_ms
    50
    >>> both.mark(Mark(1, 50, True, 2))  # at its end
    >>> both.least_ms
    70
    """

    __slots__ = ("_others", "ended", "known_least_ms", "marks", "origins")

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.ended: set[int] = set()
        self.origins: int | None = None
        self.known_least_ms: int | None = UNHEARD
        """The value of `least_ms`, None where that has to be found first."""
        self._others: int | None = None
        """No other origin that holds time back is below this, apart from the one with the least watermark:
        None for unknown. Up to here that one may come without a look at the others, whose watermarks only
        increase.
        """

    def of(self, origin: int) -> int:
        """Return the watermark of *origin*."""
        return self.marks.get(origin, UNHEARD)

    def hear(self, origin: int, watermark_ms: int) -> bool:
        """Take in a record: *origin* has reached *watermark_ms*, and is not at its end. Return whether that
        changes anything.
        """
        before = self.marks.get(origin)
        if before is None or (self.ended and origin in self.ended):
            self.ended.discard(origin)
            self.known_least_ms = self._others = None
            if before is None or watermark_ms > before:
                self.marks[origin] = watermark_ms
            return True
        if watermark_ms <= before:
            return False
        self.marks[origin] = watermark_ms
        if before == self.known_least_ms or origin == NAMELESS:
            others = self._others
            if others is None or watermark_ms > others or (origin == NAMELESS and len(self.marks) > 1):
                self.known_least_ms = self._others = None
            else:
                self.known_least_ms = watermark_ms
        return True

    def mark(self, mark: Mark) -> None:
        """Take in a mark."""
        self.hear(mark.origin, mark.watermark_ms)
        if mark.has_ended:
            self.ended.add(mark.origin)
        self.known_least_ms = self._others = None
        if self.origins is None or mark.origins > self.origins:
            self.origins = mark.origins

    def restore(self, origin: int, watermark_ms: int, *, has_ended: bool, origins: int) -> None:
        """Take in an origin as stored; *origins* is the stored number of all, below 0 for unknown."""
        self.marks[origin] = watermark_ms
        if has_ended:
            self.ended.add(origin)
        if origins >= 0 and (self.origins is None or origins > self.origins):
            self.origins = origins
        self.known_least_ms = self._others = None

    @property
    def least_ms(self) -> int:
        """Return the least watermark of the origins that will say more: of none, the highest of all."""
        if self.known_least_ms is None:
            self.known_least_ms, self._others = self._found()
        return self.known_least_ms

    def others_ms(self, origin: int) -> int:
        """Return the least watermark of the origins but *origin* that will say more, which is one of them:
        up to that, its own is the least.
        """
        least_ms = self.least_ms
        if self.marks[origin] != least_ms:
            return least_ms
        self.known_least_ms, self._others = self._found()
        return least_ms if self._others is None else self._others

    @property
    def is_named(self) -> bool:
        """Return whether there is a record or mark of any origin with a number."""
        return len(self.marks) > (NAMELESS in self.marks)

    @property
    def has_ended(self) -> bool:
        """Return whether all origins are known, and at their ends."""
        return self._all_heard and all(each in self.ended for each in self.marks if each != NAMELESS)

    @property
    def _all_heard(self) -> bool:
        named = len(self.marks) - (NAMELESS in self.marks)
        if self.origins is None or not named:
            return False
        # A partition that a source has got since then sends records before the others count it in marks.
        return self.origins == ALONE or named >= max(self.origins, 1 + max(self.marks))

    def _found(self) -> tuple[int, int | None]:
        """Return the least watermark, and the least of the others, None for unknown."""
        marks, ended = self.marks, self.ended
        if len(marks) == (NAMELESS in marks):
            return marks.get(NAMELESS, UNHEARD), _NEVER if marks else None
        if not self._all_heard:
            return UNHEARD, None
        held = [mark for origin, mark in marks.items() if origin not in ended and origin != NAMELESS]
        if not held:
            return max(marks.values()), None
        held.sort()
        return held[0], held[1] if len(held) > 1 else _NEVER

    @property
    def held_back(self) -> tuple[int | None, int] | None:
        """Return the origin that holds stream time back, None for one without a record yet, and how many ms
        the farthest is ahead of it; None where nothing is held back.
        """
        named = [mark for origin, mark in self.marks.items() if origin != NAMELESS]
        if not named:
            return None
        highest = max(named)
        if not self._all_heard:
            return None, highest - min(named)
        last = self.last
        return None if last is None or self.marks[last] == highest else (last, highest - self.marks[last])

    @property
    def last(self) -> int | None:
        """Return the origin of the least watermark among those that are known and not at their ends."""
        held = [origin for origin in self.marks if origin not in self.ended and origin != NAMELESS]
        return min(held, key=self.marks.__getitem__, default=None)


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The state of a step's clock; see `StepClock`."""

    format: int
    watermark_ms: int
    sources: tuple[tuple[int | None, tuple[int, ...], tuple[tuple[int, int], ...]], ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode
CLOCK_FORMAT = 1


def decode_clock(value: bytes) -> _Stored:
    """Return the state in *value*; ChangelogError for what no worker of this format wrote."""
    try:
        stored = _decode(value)
    except UNFIT as error:
        raise ChangelogError(f"the note of watermarks is malformed ({error}): no worker wrote it") from error
    if stored.format != CLOCK_FORMAT:
        raise ChangelogError(
            f"the note of watermarks has format {stored.format}, this version reads {CLOCK_FORMAT}: upgrade"
            " the workers"
        )
    return stored


class StepClock:
    """The progress of the sources of one partition of a step, and the headers of its records.

    *times* has for each source the function that reads an event's time, or None. A source that no step writes
    is one origin; without event time it holds nothing back. *behind* says which are written by steps. The
    state covers the records up to the position; `encode` gives it, and *stored* is that of an earlier owner.
    `rollback` undoes a transaction that was aborted.
    """

    __slots__ = ("_before", "_holding", "_limits", "_of", "_times", "watermark_ms")

    def __init__(
        self,
        times: Sequence[Callable[[Any], int] | None],
        stored: bytes | None = None,
        behind: Sequence[bool] = (),
    ) -> None:
        self._limits = [limit_of(each) for each in times]
        self._times = [getattr(each, "read", each) for each in times]
        self._of = [OriginWatermarks() for _ in times]
        by_step = behind or [True] * len(times)
        self._holding = [
            (at, self._of[at]) for at, time in enumerate(times) if time is not None or by_step[at]
        ]
        self.watermark_ms = UNHEARD
        self._before = stored
        self._restore(stored)

    def _restore(self, stored: bytes | None) -> None:
        self.watermark_ms = UNHEARD
        for at, each in enumerate(self._of):
            each.__init__()  # type: ignore[misc]
            if stored is not None:
                note = decode_clock(stored)
                self.watermark_ms = note.watermark_ms
                if at < len(note.sources):
                    each.origins, ended, marks = note.sources[at]
                    each.ended, each.marks, each.known_least_ms = set(ended), dict(marks), None

    @property
    def speaks(self) -> bool:
        """Return whether it writes headers and marks: a source has event times, or follows such a step."""
        return any(time is not None for time in self._times) or any(each.marks for each in self._of)

    def encode(self) -> bytes | None:
        """Return the state as it is stored; None before the first record or mark of an origin."""
        if not any(each.marks for each in self._of):
            return None
        sources = tuple(
            (each.origins, tuple(sorted(each.ended)), tuple(sorted(each.marks.items()))) for each in self._of
        )
        return _encode(_Stored(CLOCK_FORMAT, self.watermark_ms, sources))

    @property
    def changed(self) -> bytes | None:
        """Return the state where the transaction has changed it, else None."""
        now = self.encode()
        return None if now == self._before else now

    def commit(self) -> None:
        """Take the transaction as durable."""
        self._before = self.encode()

    def rollback(self) -> None:
        """Forget the transaction."""
        if self.encode() != self._before:
            self._restore(self._before)

    def mark(self, source: int, mark: Mark) -> None:
        """Take in a mark of a source."""
        self._of[source].mark(mark)
        self._pass()

    def told(self, source: int, event: Any, headers: Headers, partition: int, append_ms: int) -> Headers:
        """Take in a record; return the headers that it is sent on with. FutureTimeError for one whose event
        time is too far ahead of *append_ms*, unless its source holds such records.
        """
        of, time = self._of[source], self._times[source]
        told = (quickly_told_of(headers) or told_of(headers)) if headers else None
        if told is not None:
            origin, before_ms, after_ms = told
            of.hear(origin, after_ms)
        elif time is None:
            return headers
        else:
            before_ms = of.marks.get(NAMELESS, UNHEARD)
            at_ms = time_or_none(time, event)
            limit_ms, holds = self._limits[source]
            moves = at_ms is not None and check_ahead("", at_ms, append_ms, limit_ms, holds=holds)
            if at_ms is not None and at_ms > before_ms and moves:
                of.hear(NAMELESS, at_ms)
        self._pass()
        header = (ORIGIN, _pack(_FORMAT, partition, before_ms, self.watermark_ms))
        if not headers or (told is not None and len(headers) == 1):
            return (header,)
        return (*(headers if told is None else plain(headers)), header)

    def header(
        self, source: int, event: Any, headers: Headers, partition: int, append_ms: int
    ) -> tuple[str, bytes]:
        """Take in a record; return the header of its origin for what a fold emits. A record whose source has
        no event time has the watermark of the partition.
        """
        time = self._times[source]
        if headers or time is None:
            sent = self.told(source, event, headers, partition, append_ms)
            if sent and sent[-1][0] == ORIGIN:
                return sent[-1]  # type: ignore[return-value]  # written above
            return record_header(partition, self.watermark_ms, self.watermark_ms)
        of, at_ms = self._of[source], time_or_none(time, event)
        before_ms = of.marks.get(NAMELESS, UNHEARD)
        if at_ms is not None and at_ms > before_ms:
            limit_ms, holds = self._limits[source]
            if at_ms - append_ms <= limit_ms or check_ahead("", at_ms, append_ms, limit_ms, holds=holds):
                of.hear(NAMELESS, at_ms)
                self._pass()
        return ORIGIN, _pack(_FORMAT, partition, before_ms, self.watermark_ms)

    def told_all(
        self,
        events: Sequence[Any],
        headers: Sequence[Headers],
        partitions: Iterable[int],
        append_times: Sequence[int],
    ) -> Sequence[Headers | bytes]:
        """Do as `told` does for records of the first source, which is the only one, and of no step. Where a
        record has no other headers, return the content of the one that it is sent on with.
        """
        of, time = self._of[0], self._times[0]
        if time is None:
            return headers
        before_ms = of.marks.get(NAMELESS, UNHEARD)
        highest = highest_of(before_ms, self._moving(time, events, append_times))
        after = highest[1:]
        if self.watermark_ms > before_ms:
            after = [max(each, self.watermark_ms) for each in after]
        made = [*map(_pack, repeat(_FORMAT), partitions, highest, after)]
        if highest[-1] != UNHEARD:
            of.hear(NAMELESS, highest[-1])
        self._pass()
        if not any(headers):
            return made
        return [(*old, (ORIGIN, own)) if old else own for old, own in zip(headers, made, strict=True)]

    def _moving(
        self, time: Callable[[Any], int], events: Sequence[Any], append_times: Sequence[int]
    ) -> list[int]:
        """Return the time of each event, UNHEARD for one that moves no watermark."""
        limit_ms, holds = self._limits[0]
        try:
            at_ms = [UNHEARD if event is None else time(event) for event in events]
        except (Exception, SystemExit):  # noqa: BLE001  the fold, which needs the time, refuses the record
            at_ms = []
        if (
            {*map(type, at_ms)} == {int}
            and min(at_ms) >= 0
            and (latest := max(at_ms)) < LIMIT_TIME_MS
            and latest - min(append_times) <= limit_ms
        ):
            return at_ms
        found = []
        for event, append_ms in zip(events, append_times, strict=True):
            each = time_or_none(time, event)
            moves = each is not None and check_ahead("", each, append_ms, limit_ms, holds=holds)
            found.append(each if each is not None and moves else UNHEARD)
        return found

    def passed_all(self, told: Iterable[tuple[int, int, int]], partitions: Iterable[int]) -> list[bytes]:
        """Do as `told` does for records of the first source, which is the only one, with the origins that
        `all_told` returns. Return the content of the header that each is sent on with: it has no other.
        """
        of, reached_ms, made = self._of[0], self.watermark_ms, list[bytes]()
        for (origin, before_ms, after_ms), partition in zip(told, partitions, strict=True):
            of.hear(origin, after_ms)
            reached_ms = max(reached_ms, of.least_ms)
            made.append(_pack(_FORMAT, partition, before_ms, reached_ms))
        self.watermark_ms = reached_ms
        return made

    def _pass(self) -> None:
        holding = self._holding
        least_ms = holding[0][1].least_ms if len(holding) == 1 else min(of.least_ms for _, of in holding)
        self.watermark_ms = max(self.watermark_ms, least_ms)

    def reached_with(self, at_end: frozenset[int]) -> StepReached:
        """Return the progress of the partition if sources *at_end* stay at the ends of their logs.

        The end of a topic that a step writes shows nothing of the step's origins: its writer may be slow, or
        stopped for a while. Such a source holds nothing back when marks of all its origins say so.
        """
        held = [
            each.least_ms
            for at, each in self._holding
            if not (each.has_ended if each.is_named else at in at_end)
        ]
        least_ms = min(held) if held else max(each.least_ms for each in self._of)
        return StepReached(max(self.watermark_ms, least_ms), not held)

    @property
    def has_ended(self) -> bool:
        """Return whether every source is of a step, and all of its origins are at their ends."""
        return all(each.has_ended for _, each in self._holding)


def highest_of(before_ms: int, times_ms: Sequence[int]) -> list[int]:
    """Return the highest of *before_ms* and the times so far: before the first, and after each.

    >>> highest_of(3, [2, 5, 4])
    [3, 3, 5, 5]
    """
    if times_ms and times_ms[0] >= before_ms and times_ms == sorted(times_ms):  # as in most logs
        return [before_ms, *times_ms]
    return [*accumulate(times_ms, max, initial=before_ms)]


def time_or_none(time: Callable[[Any], int], event: Any) -> int | None:
    """Return the event's time; None without one, and for one that moves no watermark.

    A record whose time cannot be read is sent on all the same: who needs the time refuses it.
    """
    if event is None:
        return None
    try:
        at_ms = time(event)
    except (Exception, SystemExit):  # noqa: BLE001
        return None
    return at_ms if type(at_ms) is int and 0 <= at_ms < LIMIT_TIME_MS else None
