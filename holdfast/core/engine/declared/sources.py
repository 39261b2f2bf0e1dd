"""What a processor of several sources reads: topics with what lies in them, and what each fold is told of a
record.

The sources of a processor are co-partitioned: partition *n* of its table is folded from partition *n* of
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat, tee
from typing import Any, Generic, Literal, TypeVar, get_args
from zlib import crc32

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.declaring import is_serde, is_topic
from holdfast.core.engine.declared.retention import kept
from holdfast.core.engine.declared.serdes import Serde, Text, decode_all, framing, of_topic
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.origins import is_mark, mark_of, plain
from holdfast.core.engine.state.rows import Rows
from holdfast.core.engine.state.timers import NEVER
from holdfast.errors import ConfigError, DecodeError

T = TypeVar("T")

Input = Literal["value", "key", "headers", "offset", "partition"]
INPUTS: tuple[Input, ...] = get_args(Input)
"""What the columns of a batch may be."""
DecoderInput = Literal["value", "key", "headers", "offset", "partition", "timestamp", "topic"]
DECODER_INPUTS: tuple[DecoderInput, ...] = get_args(DecoderInput)
"""What a decoder of one source may take: columns of a batch, the append times that each batch has, and its
topic.
"""
Asked = Literal["key", "headers", "offset", "partition", "timestamp", "topic", "event_ms"]
ASKED: tuple[Asked, ...] = get_args(Asked)
"""What a fold may ask for besides the event."""
LIMIT_SOURCES = 8
EventTime = Callable[[Any, int], int]
"""Gives the event time in ms of what was decoded, at a stream time; -NEVER for none."""


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[T]):
    """A topic to fold: `orders = Source("orders", Json(Order))`.

    *time* tells an event's own time in ms, for folds that ask for "event_ms" and for the event clock. *key*
    reads the records' keys, for folds that ask for "key". ConfigError for what is no topic or no serde.

    *retention* tells how long the topic keeps its records: a duration such as "7d", ms, or "forever", which
    it also is without one. `holdfast topics create` makes the topic so, and `topics check` compares: a state
    cannot be built again from records that are gone. With "landed" `holdfast -A ... pipeline land` deletes
    what the lake and all tables have; a table then begins by `holdfast bootstrap --lake`. Without one, a
    topic that others made with a limit is only warned of. All declarations of one topic must agree. An
    internal topic has none, since holdfast keeps and trims it.
    """

    topic: str
    serde: Serde[T]
    time: Callable[[T], int] | None = None
    key: Serde[Any] = field(default_factory=Text)
    retention: str | int | None = None

    def __post_init__(self) -> None:
        if not is_topic(self.topic):
            raise ConfigError(
                f"source {self.topic!r:.200} is not a valid Kafka topic name: write Source('orders',"
                " Json(Order)), say"
            )
        for serde, name in ((self.serde, "serde"), (self.key, "key")):
            if not is_serde(serde, "decode"):
                raise ConfigError(
                    f"the {name} of source {self.topic!r:.200} is {serde!r:.200}; write Json(...), say"
                )
        if self.retention is not None and isinstance(self.topic, Internal):
            raise ConfigError(
                f"source {str(self.topic)!r} is an internal topic, which holdfast keeps until it is trimmed:"
                " leave out retention="
            )
        # The name carries it, since that is what is left of a source in declarations that take one.
        topic = kept(self.topic, self.retention, f"source {str(self.topic)!r}")
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "serde", of_topic(self.serde, str(topic), "value"))
        object.__setattr__(self, "key", of_topic(self.key, str(topic), "key"))


@dataclass(frozen=True, slots=True)
class FoldWith:
    """A fold that is told more than the event: *inputs* follow its three arguments, in that order.

    `on={orders: FoldWith(enrich, ("key", "timestamp"))}` has `enrich(rows, event, at_ms, key, timestamp)`
    called. It is a declaration, not an object with everything in it, so that nothing is read, shipped to
    Spark or made for a record but what its fold looks at.

    | | |
    |---|---|
    | `key` | the record's key, read by the source's `key` (text, or None for none) |
    | `headers` | pairs of name and bytes |
    | `timestamp` | the record's own append time in ms, which may lie before *at_ms*, the stream time; -1 for none |
    | `topic`, `partition`, `offset` | where it lies |
    | `event_ms` | what the source's `time` makes of the event; of a record without a value, its append time |
    """  # noqa: E501

    fold: Callable[..., Emits]
    inputs: tuple[Asked, ...]
    marks: bool = False
    """Whether it is also given marks in place of events, and headers with those of origins."""


@dataclass(frozen=True, slots=True)
class FoldColumns:
    """A fold of events that *decode* makes of the columns *inputs* of a record, as processors of one source
    do; the serde of the source is not asked.
    """

    fold: Callable[[Rows[Any], Any, int], Emits]
    decode: Callable[..., Any]
    inputs: tuple[DecoderInput, ...]
    marks: bool = False
    """Whether *decode* is also given the columns of marks, and headers with those of origins."""


def columns_in(inputs: Sequence[DecoderInput]) -> tuple[Input, ...]:
    """Return what of *inputs* are columns of a batch; append times and the topic are with every batch.

    >>> columns_in(("value", "timestamp", "key"))
    ('value', 'key')
    """
    return tuple(name for name in inputs if name in INPUTS)


def decoder_columns(inputs: Sequence[DecoderInput], topic: str, batch: Batch) -> tuple[Sequence[Any], ...]:
    """Return the columns that a decoder of *inputs* takes, of a batch that has those of `columns_in`.

    >>> decoder_columns(("topic", "value", "timestamp"), "clicks", Batch([7], [99], ([b"x"],)))
    (('clicks',), [b'x'], [99])
    """
    if len(inputs) == len(batch.columns):
        return batch.columns
    columns, topics = iter(batch.columns), (topic,) * len(batch.offsets)
    told = {"timestamp": batch.times_ms, "topic": topics}
    return tuple(told[name] if name in told else next(columns) for name in inputs)


class SourceFold:
    """A source and its fold as folders call them: with rows, an event, the stream time, and then what the
    fold asks for.

    *inputs* are the columns that batches of this source must have.
    """

    __slots__ = (
        "_asked",
        "_frames",
        "_frames_key",
        "_takes",
        "decode",
        "fold",
        "inputs",
        "marks",
        "meets_marks",
        "number",
        "source",
    )

    def __init__(
        self, number: int, source: Source[Any], fold: Callable[..., Emits] | FoldWith | FoldColumns
    ) -> None:
        self.number, self.source = number, source
        self._takes: tuple[DecoderInput, ...] = ()
        self._asked: tuple[Asked, ...] = ()
        self.inputs: tuple[Input, ...] = ("value",)
        self.decode: Callable[..., Any] = source.serde.decode
        self.fold: Callable[..., Emits] = fold.fold if isinstance(fold, FoldWith | FoldColumns) else fold
        if isinstance(fold, FoldWith):
            self._asked = tuple(fold.inputs)
            self.inputs = ("value", *dict.fromkeys(name for name in fold.inputs if name in INPUTS))
        self._frames, self._frames_key = framing(source.serde), framing(source.key)
        if isinstance(fold, FoldColumns):
            self._frames = None
            self.inputs, self.decode, self._takes = columns_in(fold.inputs), fold.decode, tuple(fold.inputs)
        self.meets_marks = isinstance(source.topic, Internal)
        self.marks = self.meets_marks and isinstance(fold, FoldWith | FoldColumns) and fold.marks
        framed = self._frames or (self._frames_key and "key" in self.inputs)
        if self.meets_marks or (framed and not self._takes):
            self.inputs = tuple(dict.fromkeys((*self.inputs, "headers")))

    def told(self, batch: Batch, *, quickly: bool = False) -> list[Iterable[Any]]:
        """Return the events of *batch*, then of each thing that the fold asks for the values, all in step
        with its records and read as they are taken.

        Where something cannot be read, what is read *quickly* may raise another error than the serde's own.
        Where a mark lies, the event is a `Mark` for a fold that takes marks, else SKIPPED.
        """
        if not self.meets_marks or len(batch.columns) < len(self.inputs):
            return self._told(batch, quickly)
        at = self.inputs.index("headers")
        headers = batch.columns[at]
        if not any(headers):
            return self._told(self._without_headers(batch, at), quickly)
        marks = [*map(is_mark, headers)]
        if not self.marks:
            shown: Sequence[Any] = [*map(plain, headers)]
            batch = Batch(
                batch.offsets, batch.times_ms, (*batch.columns[:at], shown, *batch.columns[at + 1 :])
            )
        if True not in marks or (self.marks and self._takes):
            return self._told(self._without_headers(batch, at), quickly)
        records = [number for number, mark in enumerate(marks) if not mark]
        rest = self._told(self._without_headers(_picked(batch, records), at), quickly)
        told: list[Iterable[Any]] = [_woven(marks, rest[0], headers, takes=self.marks)]
        for name, each in zip(self._asked, rest[1:], strict=True):
            known: Sequence[Any] | None = None
            if name in ("headers", "partition", "offset"):
                known = batch.columns[self.inputs.index(name)] if name != "offset" else batch.offsets
            told.append(known if known is not None else _spread(marks, each))
        return told

    def _without_headers(self, batch: Batch, at: int) -> Batch:
        """Return *batch* with the columns that a decoder of columns takes, of one with those of `inputs`."""
        if not self._takes or "headers" in self._takes or at != len(self.inputs) - 1:
            return batch
        return Batch(batch.offsets, batch.times_ms, batch.columns[:-1])

    def _told(self, batch: Batch, quickly: bool) -> list[Iterable[Any]]:
        if self._takes:
            return [map(self.decode, *decoder_columns(self._takes, self.source.topic, batch))]
        decoded = decode_all if quickly else _decode_each
        columns = dict(zip(self.inputs, batch.columns, strict=False))  # headers may be left out
        headers = columns.get("headers", ())
        for name, frames in (("value", self._frames), ("key", self._frames_key)):
            if frames is not None and name in columns and any(headers):
                columns[name] = list(map(frames, columns[name], headers))
        events = iter(decoded(self.source.serde, columns["value"]))
        told: list[Iterable[Any]] = [events]
        for name in self._asked:
            match name:
                case "topic":  # a fold may keep it in a row: no subclass
                    told.append(repeat(str(self.source.topic), batch.records))
                case "timestamp":
                    told.append(batch.times_ms)
                case "event_ms":
                    told[0], again = tee(told[0])
                    told.append(map(partial(_event_ms, self.source), again, batch.times_ms))
                case "key":
                    told.append(decoded(self.source.key, columns[name]))
                case _:
                    told.append(columns[name])
        return told

    def event_ms(self, event: Any, stream_ms: int) -> int:
        """Return the event time of what was decoded, see `event_time`."""
        return event_time(self.source.topic, self.source.time, event, stream_ms)


class SkippedMark:
    """What stands for a mark where a fold takes none."""

    __slots__ = ()


SKIPPED = SkippedMark()


def _picked(batch: Batch, numbers: Sequence[int]) -> Batch:
    def of(column: Sequence[Any]) -> list[Any]:
        return [column[number] for number in numbers]

    return Batch(of(batch.offsets), of(batch.times_ms), tuple(map(of, batch.columns)))


def _woven(
    marks: Sequence[bool], events: Iterable[Any], headers: Sequence[Any], *, takes: bool
) -> Iterable[Any]:
    """Yield *events*, and what stands for marks where they lie."""
    left = iter(events)
    for at, mark in enumerate(marks):
        if mark:
            yield mark_of(headers[at]) if takes else SKIPPED
        else:
            yield from islice(left, 1)


def _spread(marks: Sequence[bool], values: Iterable[Any]) -> Iterable[Any]:
    left = iter(values)
    for mark in marks:
        if mark:
            yield None
        else:
            yield from islice(left, 1)


def _decode_each(serde: Serde[Any], values: Sequence[bytes | None]) -> Iterable[Any]:
    return map(serde.decode, values)


def _event_ms(source: Source[Any], event: Any, timestamp: int) -> int:
    assert source.time is not None
    at_ms = timestamp if event is None else source.time(event)
    if type(at_ms) is not int:
        raise DecodeError(f"time of {source.topic} gives {at_ms!r:.100}, which is not a time in whole ms")
    return at_ms


def event_time(topic: str, time: Callable[[Any], int] | None, event: Any, stream_ms: int) -> int:
    """Return the event time in ms of an event: what *time* gives or, without it, the stream time, if there is
    one. An event of None, of a record without a value, has none: -NEVER.

    Raises DecodeError for what is not a time in whole ms.
    """
    if time is None:
        return stream_ms if stream_ms >= 0 else -NEVER
    if event is None:
        return -NEVER
    at_ms = time(event)
    if type(at_ms) is not int or not -NEVER < at_ms < NEVER:
        raise DecodeError(f"time of {topic} gives {at_ms!r:.100}, which is not a time in whole ms")
    return at_ms


def fingerprint(topics: Sequence[str]) -> int:
    """Return a number that tells other topics, or the same in another order, apart: positions and choices
    number the sources.

    >>> fingerprint(["a", "b"]) == fingerprint(["b", "a"])
    False
    """
    return crc32("\0".join(topics).encode())
