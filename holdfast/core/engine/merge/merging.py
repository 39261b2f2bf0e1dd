"""The records of several sources in one order: canonical, but for the choices that are recorded.

`Merger` gives a folder what has been fetched, `replayed` what lies in logs. Neither knows what a record says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.sources import LIMIT_SOURCES
from holdfast.core.engine.fold.ordering import MergeOrder, OwnTimes
from holdfast.core.engine.fold.stretches import Portion, Stretch, stretch_of
from holdfast.core.engine.positions import NO_TIME, Position
from holdfast.core.engine.state.global_rows import Vector, covers
from holdfast.errors import ChoicesError, Later

SOURCE_BITS = 3
SOURCE_MASK = (1 << SOURCE_BITS) - 1
assert SOURCE_MASK + 1 == LIMIT_SOURCES
LOWEST = -1 << 63
"""Below every canonical key."""
MOST_EVENTS = 4_096
"""About the most events of a source that are kept from the reading of their times to their fold."""
_HIGHEST = 1 << 63 + SOURCE_BITS
"""Above every canonical key: append times are of 64 bits, whatever clocks they are of."""


def canonical(reached_ms: int, source: int) -> int:
    """Return the key by which records are ordered between choices; offsets order equal ones of one source.

    >>> canonical(5, 1) < canonical(6, 0) < canonical(6, 1)
    True
    """
    return reached_ms << SOURCE_BITS | source


def last_key(position: Position) -> int:
    """Return the canonical key of the last record folded: no record with a lower key can follow it without a
    choice.
    """
    return LOWEST if position.last < 0 else canonical(position.order_ms[position.last], position.last)


class _Fetched:
    """The records that have been fetched of one source and are not settled, with a cursor in them."""

    __slots__ = (
        "_at",
        "_keys",
        "_order",
        "_own",
        "_portions",
        "_run",
        "_start",
        "applied",
        "by_event",
        "number",
        "offset_next",
        "ordered_ms",
        "reached_ms",
    )

    def __init__(self, number: int, applied: int, reached_ms: int, order: MergeOrder | None) -> None:
        self.number, self.applied, self.reached_ms = number, applied, reached_ms
        self.offset_next = applied + 1
        self._portions: deque[Portion] = deque()
        self._keys: deque[list[int]] = deque()
        self._at = self._start = 0  # the cursor: which portion, and where in it
        self._order, self.by_event, self.ordered_ms = order, 0, NO_TIME
        self._own: deque[OwnTimes | None] = deque()
        """The times that the records of each portion are ordered by, once they are read."""
        self._run: tuple[int, list[int]] | None = None
        """The first index with known keys in the portion at the cursor, ordered by event time; and the keys.
        """

    def order_by(self, by_event: int) -> None:
        """Order records from the cursor on by the event times of the sources in *by_event*."""
        self.by_event, self._own = by_event, deque([None] * len(self._portions))
        self.restart()

    def restart(self) -> None:
        """Forget the order so far: a choice lies between."""
        self.ordered_ms, self._run = NO_TIME, None

    @property
    def reach(self) -> int:
        """Return a key above which later records of this source will lie, or equal to theirs."""
        return canonical(self._ordered_reach() if self.by_event else self.reached_ms, self.number)

    def _ordered_reach(self) -> int:
        if self._at == len(self._portions):
            return self.ordered_ms
        keys = self._running()
        reach = keys[-1] >> SOURCE_BITS if len(keys) > self._start else self.ordered_ms
        for at in range(self._at, len(self._portions)):
            own = self._times(at)
            if at > self._at:
                reach = max(reach, own.highest)
            if own.failure is not None:
                break
        return reach

    @property
    def pending(self) -> int:
        """Return the number of records held."""
        return sum(map(len, self._keys))

    def offer(self, batch: Batch, offset_next: int | None) -> None:
        fresh = batch.after(self.offset_next - 1)
        if fresh.offsets:
            reached = _highest_until(fresh.times_ms, self.reached_ms)
            number = self.number
            self._portions.append(Portion(fresh, reached))
            self._keys.append([at_ms << SOURCE_BITS | number for at_ms in reached])
            self._own.append(None)
            self.offset_next, self.reached_ms = fresh.offsets[-1] + 1, reached[-1]
        self.offset_next = max(self.offset_next, offset_next or 0)

    def _times(self, at: int) -> OwnTimes:
        own = self._own[at]
        if own is None:
            assert self._order is not None, "who orders by event time knows how to read it"
            own = self._order.times(self.number, self._portions[at].batch, self.by_event)
            if sum(len(each.events or ()) for each in self._own if each is not None) > MOST_EVENTS:
                own = own._replace(events=None)
            self._own[at] = own
        return own

    def _running(self) -> list[int]:
        """Return the keys of the portion at the cursor, which are known from there on."""
        if self._run is None:
            start, number = self._start, self.number
            times = self._times(self._at).times[start:]
            reached = _highest_until(times, self.ordered_ms) if times else ()
            self._run = start, [*[LOWEST] * start, *[at_ms << SOURCE_BITS | number for at_ms in reached]]
        return self._run[1]

    def failure(self, offset_last: int | None) -> Later | None:
        """Return the failure for which the record at the end of the known times must wait, if it lies up to
        *offset_last*; None if it need not wait.
        """
        if not self.by_event or self._at == len(self._portions):
            return None
        own = self._times(self._at)
        if own.failure is None:
            return None
        offset = self._portions[self._at].batch.offsets[len(own.times)]
        return own.failure if offset_last is None or offset <= offset_last else None

    def ready(self, offset_last: int | None) -> tuple[list[int], int, int, bool]:
        """Return keys of the portion at the cursor with start and stop of what may be taken of it up to
        *offset_last*, and whether more may follow in the next portion.
        """
        if self._at == len(self._portions):
            return [], 0, 0, False
        keys, offsets = self._keys[self._at], self._portions[self._at].batch.offsets
        if self.by_event:
            keys = self._running()
        stop = len(keys)
        if offset_last is not None:
            stop = min(stop, bisect_right(offsets, offset_last))
        more = stop == len(offsets) and self._at + 1 < len(self._portions)
        return keys, self._start, max(self._start, stop), more

    def take(self, stop: int) -> Portion | None:
        """Move the cursor to *stop* in its portion and return what lies between."""
        if self._at == len(self._portions) or stop == self._start:
            return None
        portion, start = self._portions[self._at], self._start
        is_whole = stop - start == len(portion.reached_ms)
        taken = portion if is_whole else portion.slice(start, stop)
        if self.by_event:
            ordered_ms = [key >> SOURCE_BITS for key in self._running()[start:stop]]
            events = self._times(self._at).events
            of = None if events is None else events[start:stop]
            taken, self.ordered_ms = Portion(taken.batch, taken.reached_ms, ordered_ms, of), ordered_ms[-1]
        self._start, self.applied = stop, taken.batch.offsets[-1]
        if stop == len(portion.reached_ms):
            self._at, self._start, self._run = self._at + 1, 0, None
        return taken

    def settle(self, applied: int, ordered_ms: int) -> None:
        """Drop the records up to *applied*, and put the cursor after it; ask again for what had to wait."""
        while self._portions and self._portions[0].batch.offsets[-1] <= applied:
            self._portions.popleft()
            self._keys.popleft()
            self._own.popleft()
        if (
            applied < self.applied
        ):  # records that are taken again may have been folded: a fold may change its event
            self._own = deque(own and own._replace(events=None) for own in self._own)
        self.applied, self._at = applied, 0
        self._start = bisect_right(self._portions[0].batch.offsets, applied) if self._portions else 0
        self.ordered_ms, self._run = ordered_ms, None
        if self.by_event:
            self._own = deque(None if own is None or own.failure else own for own in self._own)


def _highest_until(times_ms: Sequence[int], before_ms: int) -> list[int]:
    """Return the highest time up to each, *before_ms* included."""
    times = list(times_ms)
    # Clocks seldom go back, and to sort a sorted list costs less than `accumulate`.
    if times[0] >= before_ms and times == sorted(times):
        return times
    return list(islice(accumulate(times, max, initial=before_ms), 1, None))


class Merger:
    """Merges the fetched records of the sources of one partition into stretches to fold.

    `offer` it batches, `take` stretches until there is none, fold them in one transaction, and `settle` at
    the position where that ended: records that were taken and not folded, because the transaction ended early
    or was aborted, are merged again with those that have come since.

    Without more knowledge it merges as far as the sources all reach: a later record of none of them can then
    lie below. A source that may be at its end is waited for, unless *ends* says that it is: see `take`. A
    record that does lie below a folded one is folded at once, after a barrier. To guess wrong costs that,
    and never a difference between two readings of the log.

    *recorded* are the choices that are known to be written, in order; those before the position of *marker*
    are passed over. They are obeyed before any is made. They may be an iterator, and are kept only until they
    are settled.

    *order* says by which times records are merged; without it, by append time. Between choices that are
    recorded it is as these say. Where the records folded since the last choice were ordered otherwise, a
    barrier comes first.
    """

    def __init__(
        self, marker: Position, recorded: Iterable[Choice] = (), order: MergeOrder | None = None
    ) -> None:
        self._sources = [
            _Fetched(number, applied, reached_ms, order)
            for number, (applied, reached_ms) in enumerate(
                zip(marker.applied, marker.reached_ms, strict=True)
            )
        ]
        self._fingerprint = marker.sources
        self._recorded, self._pulled = iter(recorded), deque[Choice]()
        self._wanted_tick_ms: int | None = None
        self._wanted_globals: tuple[Vector, ...] | None = None
        self._readable, self._wanted = (0, 0) if order is None else (order.readable, order.by_event)
        self._by_event, self._has_taken = 0, False
        self.settle(marker)

    def offer(self, source: int, batch: Batch, offset_next: int | None = None) -> None:
        """Take records of *source* that follow the last offered; those that came before are passed over.

        *offset_next* is the next offset to read, where that is further than the last record: the log may end
        with records that no reader is given.
        """
        self._sources[source].offer(batch, offset_next)

    def tick(self, now_ms: int) -> None:
        """Make the next stretch a tick at *now_ms*, unless recorded choices are left to obey, or the
        partition's ticks are as late already.
        """
        self._wanted_tick_ms = now_ms

    def see(self, vectors: tuple[Vector, ...]) -> None:
        """Make the next records folded see the globals at *vectors*: a choice before them says so, unless
        they are there already.

        Call it when a transaction begins; with nothing to fold there is no choice. Recorded choices that are
        left are obeyed first, and this is forgotten.
        """
        self._wanted_globals = vectors

    def settle(self, marker: Position) -> None:
        """Continue from *marker*, where the state is: records before it are dropped, and those taken after it
        are taken again.
        """
        by_event = marker.by_event & self._readable
        if marker.last >= 0 and by_event != self._by_event:
            self._order_by(by_event)
        ordered = marker.order_ms if by_event else (NO_TIME,) * len(self._sources)
        for source, applied, ordered_ms in zip(self._sources, marker.applied, ordered, strict=True):
            source.settle(applied, ordered_ms)
        self._has_taken = False
        self._last_key, self._number, self._tick_ms = last_key(marker), marker.choices, marker.tick_ms
        while self._pulled and self._pulled[0].number < marker.choices:
            self._pulled.popleft()
        self._wanted_tick_ms = self._wanted_globals = None
        self._globals = marker.globals

    def take(self, ends: Sequence[int | None] | None = None) -> Stretch | None:
        """Return the next stretch, or None when that is not known yet.

        *ends* are the end offsets of the sources, None for one to be waited for in any case (no *ends*: all).
        A source that has been read to its end holds no other back. Ends that were asked for *after* the other
        sources' records were fetched let a record be overtaken only within one ms, or where the clocks of
        brokers differ.

        Raises ChoicesError when a recorded choice is missing or does not fit the state, and Later where what
        comes first must wait for something before its time can be read: then nothing was taken since
        `settle`.
        """
        choice = self._next_recorded()
        self._agree(choice)
        held, limits = self._held(choice, ends), None if choice is None else choice.applied
        failures = self._failures(limits) if self._by_event else {}
        held += [source for source in self._sources if source.number in failures and source not in held]
        bound = min((source.reach for source in held), default=_HIGHEST)
        stretch = self._merged(bound, limits)
        if stretch is None and failures and not self._has_taken:
            raise next(iter(failures.values()))
        if stretch is not None or choice is None or held:
            return stretch
        return self._chosen(choice, decided=False)

    def waits_for(self, ends: Sequence[int | None] | None = None) -> int | None:
        """Return the source whose records `take` needs first to continue; None when it needs no source."""
        held = self._held(self._next_recorded(), ends)
        return min(held, key=lambda source: source.reach).number if held else None

    @property
    def pending(self) -> tuple[int, ...]:
        """Return the number of records of each source that are offered and not settled: a caller stops
        fetching a source with many, except the one that is waited for.
        """
        return tuple(source.pending for source in self._sources)

    @property
    def next_choice(self) -> Choice | None:
        """Return the recorded choice that is to be obeyed next, None after the last."""
        return self._next_recorded()

    def forget_taken(self) -> None:
        """Settle at the end of the records taken, for a reader that never goes back."""
        for source in self._sources:
            source.settle(source.applied, source.ordered_ms)
        self._has_taken = False
        while self._pulled and self._pulled[0].number < self._number:
            self._pulled.popleft()

    # -- by which times

    def _agree(self, choice: Choice | None) -> None:
        """Order the next records as they were when *choice* was made: without one, as is wanted. That waits
        for a choice, where the records folded since the last were ordered otherwise.
        """
        wanted = self._wanted if choice is None else choice.by_event & self._readable
        if wanted == self._by_event:
            return
        if self._last_key == LOWEST:
            self._order_by(wanted)
        elif choice is not None:
            raise _otherwise(f"choice {choice.number} was made of records that were ordered by other times")

    def _order_by(self, by_event: int) -> None:
        self._by_event = by_event
        for source in self._sources:
            source.order_by(by_event)

    def _failures(self, limits: Sequence[int] | None) -> dict[int, Later]:
        """Return the sources of which a record must wait, and what for."""
        found = [(each, each.failure(limits[each.number] if limits else None)) for each in self._sources]
        return {source.number: failure for source, failure in found if failure is not None}

    # -- records that are held back

    def _held(self, choice: Choice | None, ends: Sequence[int | None] | None) -> list[_Fetched]:
        """Return the sources of which a record that is not fetched yet may come next."""
        if choice is not None:
            return [
                source
                for source, last in zip(self._sources, choice.applied, strict=True)
                if source.offset_next <= last
            ]
        if ends is None:
            return [*self._sources]
        return [
            source
            for source, end in zip(self._sources, ends, strict=True)
            if end is None or source.offset_next < end
        ]

    def _merged(self, bound: int, limits: Sequence[int] | None) -> Stretch | None:
        """Return the records up to the key *bound* and the offsets *limits*, as far as one portion of each
        source goes; or the barrier or tick before them.
        """
        if limits is None and self._wanted_tick_ms is not None and self._wanted_tick_ms > self._tick_ms:
            return self._seen() or self._tick()
        ready = [source.ready(limits[source.number] if limits else None) for source in self._sources]
        for keys, start, stop, more in ready:
            if more and stop > start:
                bound = min(bound, keys[-1])
        stops = [bisect_right(keys, bound, start, stop) for keys, start, stop, _ in ready]
        merged: list[int] = []
        for (keys, start, _, _), stop in zip(ready, stops, strict=True):
            merged += keys[start:stop]
        if not merged:
            return None
        if limits is None and self._wanted_globals is not None and (seen := self._seen()) is not None:
            return seen
        if limits is None and self._by_event != self._wanted:
            return self._decide(None)
        merged.sort()  # finds the sorted runs and merges them
        if merged[0] < self._last_key:
            if limits is not None:
                raise _otherwise(f"choice {self._number} stands behind records that lie below what is folded")
            return self._decide(None)
        self._last_key, self._has_taken = merged[-1], True
        portions = tuple(source.take(stop) for source, stop in zip(self._sources, stops, strict=True))
        order = bytes([key & SOURCE_MASK for key in merged])
        if not self._by_event:
            return Stretch(portions, order, [key >> SOURCE_BITS for key in merged])
        times = [iter(() if portion is None else portion.reached_ms) for portion in portions]
        reached_ms = [*accumulate(map(next, map(times.__getitem__, order)), max)]
        return Stretch(portions, order, reached_ms, by_event=self._by_event)

    # -- choices

    def _tick(self) -> Stretch:
        now_ms, self._wanted_tick_ms = self._wanted_tick_ms, None
        return self._decide(now_ms)

    def _seen(self) -> Stretch | None:
        """Return the choice of the globals' positions before what comes next, None when they are there."""
        vectors, self._wanted_globals = self._wanted_globals, None
        if vectors is None or vectors == self._globals:
            return None
        return self._decide(None, vectors)

    def _decide(self, tick_ms: int | None, vectors: tuple[Vector, ...] | None = None) -> Stretch:
        choice = Choice(
            self._number,
            self._fingerprint,
            tuple(source.applied for source in self._sources),
            tick_ms=tick_ms,
            globals=vectors or (),
            by_event=self._by_event,
        )
        return self._chosen(choice, decided=True)

    def _chosen(self, choice: Choice, *, decided: bool) -> Stretch:
        if choice.globals:
            self._go_on(choice)
        if not decided:
            self._wanted_globals = None
        self._last_key, self._number, self._has_taken = LOWEST, choice.number + 1, True
        for source, last in zip(self._sources, choice.applied, strict=True):
            source.applied = max(source.applied, last)  # the record may be gone: compacted, or skipped since
            source.restart()
        if choice.tick_ms is not None:
            self._tick_ms = choice.tick_ms
        return Stretch((None,) * len(self._sources), choice=choice, decided=decided)

    def _go_on(self, choice: Choice) -> None:
        """Set the positions of globals to those of *choice*; raises ChoicesError for one that lies before."""
        before = self._globals
        if len(choice.globals) != len(before) or not all(map(covers, choice.globals, before)):
            raise ChoicesError(
                f"choice {choice.number} has globals at {[*map(list, choice.globals)]}, behind"
                f" {[*map(list, before)]} or of another processor: their topics were deleted and made again,"
                " or the processor reads others; give it another name"
            )
        self._globals = choice.globals

    def _next_recorded(self) -> Choice | None:
        """Return the first recorded choice that is not yet obeyed, None when there is none."""
        while not self._pulled or self._pulled[-1].number < self._number:
            pulled = next(self._recorded, None)
            if pulled is None:
                return None
            if self._pulled or pulled.number >= self._number:
                self._check(pulled)
                self._pulled.append(pulled)
        return self._pulled[self._number - self._pulled[0].number]

    def _check(self, choice: Choice) -> None:
        """Raise ChoicesError unless *choice* can come next."""
        number = self._pulled[-1].number + 1 if self._pulled else self._number
        if choice.number != number:
            raise ChoicesError(
                f"choice {number} is missing, {choice.number} comes next: the choices topic must be kept"
                " whole, as long as the sources"
            )
        if choice.sources != self._fingerprint or len(choice.applied) != len(self._sources):
            raise ChoicesError(
                f"choice {choice.number} is of other sources, or of the same in another order: give the"
                " processor another name"
            )
        applied = [source.applied for source in self._sources]
        if any(last < done for last, done in zip(choice.applied, applied, strict=True)):
            raise _otherwise(
                f"choice {choice.number} stands at {list(choice.applied)}, behind what is folded: {applied}"
            )


class LogOrder(Merger):
    """The records of one source in the order of their log: nothing is merged, waited for or decided."""

    def __init__(self, marker: Position) -> None:
        self._batches, self._at, self._offered = deque[Batch](), 0, marker.applied[0]
        self.settle(marker)

    def offer(self, source: int, batch: Batch, offset_next: int | None = None) -> None:
        fresh = batch.after(self._offered)
        if fresh.offsets:
            self._batches.append(fresh)
            self._offered = fresh.offsets[-1]

    def tick(self, now_ms: int) -> None:
        pass

    def see(self, vectors: tuple[Vector, ...]) -> None:
        pass

    def settle(self, marker: Position) -> None:
        self._applied, self._at = marker.applied[0], 0
        while self._batches and self._batches[0].offsets[-1] <= self._applied:
            self._batches.popleft()

    def take(self, ends: Sequence[int | None] | None = None) -> Stretch | None:
        if self._at == len(self._batches):
            return None
        self._at += 1
        return stretch_of(self._batches[self._at - 1].after(self._applied))

    def waits_for(self, ends: Sequence[int | None] | None = None) -> int | None:
        return 0 if ends is None or ends[0] is None else None

    @property
    def pending(self) -> tuple[int, ...]:
        return (sum(each.records for each in self._batches),)

    @property
    def next_choice(self) -> Choice | None:
        return None

    def forget_taken(self) -> None:
        while self._at:
            self._applied, self._at = self._batches.popleft().offsets[-1], self._at - 1


def merger_of(marker: Position, recorded: Iterable[Choice] = (), order: MergeOrder | None = None) -> Merger:
    """Return the merger of the records after *marker*: a `LogOrder` where their log has the order."""
    return Merger(marker, recorded, order) if marker.reached_ms else LogOrder(marker)


def _otherwise(what: str) -> ChoicesError:
    """Return the error of a table that has folded on where another version then decided otherwise."""
    return ChoicesError(
        f"{what}. Another version of the processor made it meanwhile: raise the version, which builds the"
        " table anew"
    )


def replayed(
    marker: Position,
    logs: Sequence[Iterable[Batch]],
    recorded: Iterable[Choice] = (),
    ends: Sequence[int] | None = None,
    *,
    order: MergeOrder | None = None,
    open_end: bool = False,
) -> Iterator[Stretch]:
    """Yield what follows *marker* in the order in which it was folded, from the log of each source and the
    recorded choices: at most a batch of each source is held at a time.

    A log whose batches end has ended. *ends* are the next offsets to read, where these are further than the
    last record, and *order* says by which times they are merged, as for a `Merger`. When the logs end before
    the last choice, the order of the rest is not known: with *open_end* the stretches end there, else raises
    ChoicesError.
    """
    merger, pending = merger_of(marker, recorded, order), [iter(log) for log in logs]
    waited: list[int | None] = [None] * len(pending)
    while True:
        while (stretch := merger.take(waited)) is not None:
            yield stretch
            merger.forget_taken()
        source = merger.waits_for(waited)
        if source is None:
            return
        if (batch := next(pending[source], None)) is not None:
            merger.offer(source, batch)
        elif waited[source] is None:
            waited[source] = 0  # it holds nothing back from here on
            merger.offer(source, Batch((), (), ()), None if ends is None else ends[source])
        elif open_end:
            return
        else:
            choice = merger.next_choice
            assert choice is not None
            raise ChoicesError(
                f"choice {choice.number} stands at offset {choice.applied[source]} of source {source}, whose"
                " records end before: read the sources as far as the choices, or the choices as far as the"
                " marker"
            )
