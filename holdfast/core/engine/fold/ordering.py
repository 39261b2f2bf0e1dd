"""The times by which the records of several sources are merged: the events' own, or append times."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from operator import sub
from typing import Any, NamedTuple, Protocol

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import decode_all, framing
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.event_times import is_ahead, limit_of
from holdfast.core.engine.fold.patience import OnLater
from holdfast.core.engine.origins import LIMIT_TIME_MS, is_mark
from holdfast.core.engine.positions import NO_TIME, Position
from holdfast.errors import Later, UnknownSchemaError


class OwnTimes(NamedTuple):
    """The times that records of one source are ordered by: of all that were asked for, or with *failure* of
    those before one that must wait for something. *events* are the records' events, where all were read at
    once: a fold may take them once.
    """

    times: Sequence[int]
    highest: int
    failure: Later | None = None
    events: Sequence[Any] | None = None


class Portioned(Protocol):
    """Records of one source."""

    @property
    def batch(self) -> Batch: ...


class MergeOrder:
    """The times by which the records of a processor are merged, each source's own.

    *readable* has a bit for each source whose event times can be read: those with `time=`, where there are
    several sources. Records are merged by the times of the sources in *by_event* where no choice says
    otherwise. A record without a value, a mark, a record whose time cannot be read, and one whose time is
    further ahead of its append time than its source allows have NO_TIME.

    The time of a record must be the same whenever it is read. So one whose schema is unknown, which may be
    known later, is in *unread* from then on: it is refused even if it can be read when it is folded.
    *refused* has those that were refused so before. The times end before a record that must wait, unless
    *on_later* waits for it. *inputs* are the columns of each source's batches, where those are not the
    columns of the folds.
    """

    def __init__(
        self,
        processor: Processor[Any, Any],
        refused: Callable[[], Container[tuple[str, int]]] = tuple,
        inputs: Sequence[Sequence[Input]] | None = None,
        on_later: OnLater | None = None,
    ) -> None:
        folds = processor.folds
        columns = [each.inputs for each in folds] if inputs is None else inputs
        readers = [
            None
            if time is None or "value" not in has or len(folds) == 1
            else TimesReader(fold.source, time, has)
            for fold, time, has in zip(folds, processor.own_times, columns, strict=True)
        ]
        self._readers, self._topics = readers, processor.topics
        self._refused, self.on_later, self._table = refused, on_later, processor.table
        self.readable = sum(1 << at for at, reader in enumerate(readers) if reader is not None)
        self.by_event = self.readable
        self.unread: dict[tuple[str, int], UnknownSchemaError] = {}

    def as_at(self, marker: Position | None) -> MergeOrder:
        """Return an order that merges what lies between the last choice and *marker* as that says."""
        made = copy(self)
        if marker is not None and marker.last >= 0:
            made.by_event &= marker.by_event
        return made

    def times(self, source: int, batch: Batch, by_event: int) -> OwnTimes:
        """Return the times of the records of a source, where the sources of *by_event* are ordered by event
        time.
        """
        reader = self._readers[source] if by_event >> source & 1 else None
        if reader is None:
            return OwnTimes(batch.times_ms, max(batch.times_ms))
        topic, refused = self._topics[source], self._refused()
        times = None if refused else reader.read_all(batch)
        return self._one_by_one(reader, topic, batch, refused) if times is None else times

    def check_read(self, portions: Iterable[Portioned | None]) -> None:
        """Raise the error that was met if the time of one of the records could not be read."""
        for topic, portion in zip(self._topics, portions, strict=True):
            if portion is not None:
                offsets = set(portion.batch.offsets)
                for (of, offset), error in self.unread.items():
                    if of == topic and offset in offsets:
                        raise error

    def forget(self, applied: Mapping[str, int]) -> None:
        """Forget the folded records: of each topic all up to an offset."""
        self.unread = {
            (topic, offset): error
            for (topic, offset), error in self.unread.items()
            if offset > applied[topic]
        }

    def _one_by_one(
        self, reader: TimesReader, topic: str, batch: Batch, refused: Container[tuple[str, int]]
    ) -> OwnTimes:
        times = list[int]()
        for at, offset in enumerate(batch.offsets):
            place = topic, offset
            while True:
                try:
                    known = place not in refused and place not in self.unread
                    times.append(reader.read(batch, at) if known else NO_TIME)
                except UnknownSchemaError as error:
                    self.unread[place] = error
                    times.append(NO_TIME)
                except Later as later:
                    later.at = place
                    if self.on_later is None:
                        return OwnTimes(times, max(times, default=NO_TIME), later)
                    self.on_later(later, f"{self._table}: offset {offset} of {topic}")
                    continue
                break
        return OwnTimes(times, max(times))


class TimesReader:
    """Reads the event times of one source's records."""

    def __init__(self, source: Any, time: Callable[[Any], int], columns: Sequence[Input]) -> None:
        self.topic = str(source.topic)
        self._serde, self._frames = source.serde, framing(source.serde)
        self._time, (self._limit_ms, _) = getattr(time, "read", time), limit_of(time)
        self._value = columns.index("value")
        self._headers = columns.index("headers") if "headers" in columns else None

    def _headers_of(self, batch: Batch) -> Sequence[Any]:
        at = self._headers
        return () if at is None or at >= len(batch.columns) else batch.columns[at]

    def read_all(self, batch: Batch) -> OwnTimes | None:
        """Return the times of all records at once; None where one of them has to be looked at by itself."""
        values, headers = batch.columns[self._value], self._headers_of(batch)
        if None in values or (self._frames is not None and any(headers)):
            return None
        try:
            events = [*decode_all(self._serde, values)]
            times = [*map(self._time, events)]
            if set(map(type, times)) != {int} or len(times) != len(values) or min(times) < 0:
                return None
        except (MemoryError, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: BLE001  it comes up again, of one record
            return None
        highest = max(times)
        is_plain = highest < LIMIT_TIME_MS and max(map(sub, times, batch.times_ms)) <= self._limit_ms
        return OwnTimes(times, highest, None, events) if is_plain else None

    def read(self, batch: Batch, at: int) -> int:
        """Return the time of one record; raises Later and UnknownSchemaError, which may end."""
        value, headers = batch.columns[self._value][at], self._headers_of(batch)
        if headers and is_mark(headers[at]):
            return NO_TIME
        try:
            framed = value if self._frames is None else self._frames(value, headers[at] if headers else ())
            event = self._serde.decode(framed)
            at_ms = NO_TIME if event is None else self._time(event)
        except (MemoryError, KeyboardInterrupt, Later, UnknownSchemaError):
            raise
        except BaseException:  # noqa: BLE001  whoever needs the event refuses it
            return NO_TIME
        if type(at_ms) is not int or not 0 <= at_ms < LIMIT_TIME_MS:
            return NO_TIME
        return NO_TIME if is_ahead(at_ms, batch.times_ms[at], self._limit_ms) else at_ms
