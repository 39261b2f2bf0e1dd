"""The log of a topic as a fold reads it: batches of one partition, in the order of their offsets."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.fold.skips import OffsetRanges, behind
from holdfast.pipeline.topic import Span, TopicLog, TopicReader


class RecordLog(Protocol):
    """The records of one topic. It can be pickled."""

    @property
    def uri(self) -> str:
        """Return where the records are, for people."""

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        """Yield the records of *span* in offset order with the columns *inputs*, each batch with its size in
        bytes.
        """

    def close(self) -> None:
        """Close connections that were kept for the next call."""


class _Readers:
    """Readers, each for one partition after another. Another process closes each after its use."""

    def __init__(self, *, closed: bool = False) -> None:
        self._idle, self._used, self._closed = list[TopicReader](), list[TopicReader](), closed

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_Readers, closed=True), ()

    def take(self, make: Callable[[], TopicReader]) -> TopicReader:
        reader = self._idle.pop() if self._idle else make()
        self._used.append(reader)
        return reader

    def put(self, reader: TopicReader) -> None:
        if reader in self._used:
            self._used.remove(reader)
        if self._closed:
            reader.close()
        elif not reader.closed:
            self._idle.append(reader)

    def close(self) -> None:
        """Close the readers, and those that are put here later. One that is in use has not read its partition
        to the end, and its thread would hold up the end of the process.
        """
        self._closed = True
        for each in (*self._idle, *self._used):
            each.close()
        self._idle, self._used = [], []


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecords:
    """The records of *topic* in Kafka, without those of *skips*.

    A reader reads one partition at a time. It is kept for the next call, and `close` closes it.
    """

    settings: Settings
    topic: str
    skips: Mapping[int, OffsetRanges] = field(default_factory=dict)
    readers: _Readers = field(default_factory=_Readers, repr=False, compare=False)

    @property
    def uri(self) -> str:
        return f"topic {self.topic}"

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        if span.first == span.end:
            return
        reader = self.readers.take(lambda: TopicReader(self.settings, self.topic, self.skips))
        try:
            yield from reader.batches(partition, span, inputs)
        except Exception:
            reader.close()
            raise
        finally:
            self.readers.put(reader)

    def close(self) -> None:
        self.readers.close()


class OpenLog(NamedTuple):
    """A log as it is now: what there is of it, the offsets of it that the application skips, its missing
    parts in words, and Kafka's id of its topic.
    """

    log: RecordLog
    spans: Mapping[int, Span]
    skips: Mapping[int, OffsetRanges]
    holes: tuple[str, ...] = ()
    topic_id: str = ""


def open_topic(
    settings: Settings,
    topic: str,
    skips: Mapping[int, OffsetRanges],
    begin: Mapping[int, int] = MappingProxyType({}),
    wanted: Container[int] | None = None,
) -> OpenLog:
    """Return the records of *topic* in Kafka, of which those before the offsets in *begin*, by partition, are
    not needed. Only *wanted* partitions (None: all) are looked at for holes.
    """
    with TopicLog(settings, topic) as log:
        spans = log.spans()
    holes = tuple(
        f"topic {topic} partition {partition} begins at offset {span.first}: earlier records were deleted"
        for partition, span in spans.items()
        if span.first > begin.get(partition, 0) and (wanted is None or partition in wanted)
    )
    return OpenLog(TopicRecords(settings=settings, topic=topic, skips=skips), spans, skips, holes)


def left_of(read: Iterable[tuple[Batch, int]], skips: OffsetRanges) -> Iterator[tuple[Batch, int]]:
    """Yield the records that are not skipped."""
    for batch, size_bytes in read:
        left = without(batch, skips) if skips else batch
        if left.offsets:
            yield left, size_bytes


def without(batch: Batch, skips: OffsetRanges) -> Batch:
    """Return the records of *batch* that are not skipped."""
    offsets = batch.offsets
    if all(last < offsets[0] or first > offsets[-1] for first, last in skips):
        return batch
    left = [at for at, offset in enumerate(offsets) if behind(skips, offset) == offset]

    def of(column: Sequence[Any]) -> list[Any]:
        return [column[at] for at in left]

    return Batch(of(offsets), of(batch.times_ms), tuple(map(of, batch.columns)))
