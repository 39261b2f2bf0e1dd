"""What a processor of several sources reads: topics with what lies in them, and what each fold is told of a
record.

The sources of a processor are co-partitioned: partition *n* of its table is folded from partition *n* of
each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args
from zlib import crc32

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.declaring import is_serde, is_topic
from holdfast.core.engine.declared.retention import kept
from holdfast.core.engine.declared.serdes import Serde, Text, of_topic
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.state.rows import Rows
from holdfast.core.engine.state.timers import NEVER
from holdfast.errors import ConfigError, DecodeError

T = TypeVar("T")

Input = Literal["value", "key", "headers", "offset", "partition"]
INPUTS: tuple[Input, ...] = get_args(Input)
"""What the columns of a batch may be."""
DecoderInput = Literal["value", "key", "headers", "offset", "partition", "timestamp", "topic"]
DECODER_INPUTS: tuple[DecoderInput, ...] = get_args(DecoderInput)
"""What a decoder of one source may take: columns of a batch, the append times that each batch has, and its topic."""
Asked = Literal["key", "headers", "offset", "partition", "timestamp", "topic", "event_ms"]
ASKED: tuple[Asked, ...] = get_args(Asked)
"""What a fold may ask for besides the event."""
LIMIT_SOURCES = 8
EventTime = Callable[[Any, int], int]
"""Gives the event time in ms of what was decoded, at a stream time; -NEVER for none."""


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[T]):
    """A topic to fold: `orders = Source("orders", Json(Order))`.

    *time* tells an event's own time in ms, for folds that ask for "event_ms" and for the event clock. *key* reads the records' keys,
    for folds that ask for "key". ConfigError for what is no topic or no serde.

    *retention* tells how long the topic keeps its records: a duration such as "7d", ms, or "forever", which it also is without
    one. `holdfast topics create` makes the topic so, and `topics check` compares: a state cannot be built again from records that
    are gone. With "landed" `holdfast -A ... pipeline land` deletes what the lake and all tables have; a table then begins by `holdfast bootstrap --lake`. Without one, a topic that others made with a limit is only warned of. All declarations of one topic must agree. An internal topic has none, since holdfast keeps and trims it.
    """

    topic: str
    serde: Serde[T]
    time: Callable[[T], int] | None = None
    key: Serde[Any] = field(default_factory=Text)
    retention: str | int | None = None

    def __post_init__(self) -> None:
        if not is_topic(self.topic):
            raise ConfigError(
                f"source {self.topic!r:.200} is not a valid Kafka topic name: write Source('orders', Json(Order)), say"
            )
        for serde, name in ((self.serde, "serde"), (self.key, "key")):
            if not is_serde(serde, "decode"):
                raise ConfigError(
                    f"the {name} of source {self.topic!r:.200} is {serde!r:.200}; write Json(...), say"
                )
        if self.retention is not None and isinstance(self.topic, Internal):
            raise ConfigError(
                f"source {str(self.topic)!r} is an internal topic, which holdfast keeps until it is trimmed: leave out retention="
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
    called. It is a declaration, not an object with everything in it, so that nothing is read, shipped to Spark
    or made for a record but what its fold looks at.

    | | |
    |---|---|
    | `key` | the record's key, read by the source's `key` (text, or None for none) |
    | `headers` | pairs of name and bytes |
    | `timestamp` | the record's own append time in ms, which may lie before *at_ms*, the stream time; -1 for none |
    | `topic`, `partition`, `offset` | where it lies |
    | `event_ms` | what the source's `time` makes of the event; of a record without a value, its append time |
    """

    fold: Callable[..., Emits]
    inputs: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class FoldColumns:
    """A fold of events that *decode* makes of the columns *inputs* of a record, as processors of one source do; the serde of
    the source is not asked.
    """

    fold: Callable[[Rows[Any], Any, int], Emits]
    decode: Callable[..., Any]
    inputs: tuple[DecoderInput, ...]


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
    """A source and its fold as folders call them: `decode` of `columns` of a record, then `fold` of what that gives.
    With *asks*, its append time follows the columns.

    *inputs* are the columns that batches of this source must have.
    """

    __slots__ = ("_call", "_takes", "asks", "decode", "fold", "inputs", "number", "source")

    def __init__(
        self, number: int, source: Source[Any], fold: Callable[..., Emits] | FoldWith | FoldColumns
    ) -> None:
        self.number, self.source = number, source
        self.inputs: tuple[Input, ...] = ("value",)
        self._takes: tuple[DecoderInput, ...] = ("value",)
        self.decode: Callable[..., Any] = source.serde.decode
        self._call = fold.fold if isinstance(fold, FoldWith | FoldColumns) else fold
        self.fold: Callable[[Rows[Any], Any, int], Emits] = self._call
        self.asks = isinstance(fold, FoldWith) and bool(fold.inputs)
        if isinstance(fold, FoldWith) and self.asks:
            columns: list[Input] = [name for name in fold.inputs if name in INPUTS]
            self.inputs = ("value", *dict.fromkeys(columns))
            self.decode, self.fold = _asking(source, fold, self.inputs), self._spread
            self._takes = self.inputs
        elif isinstance(fold, FoldColumns):
            self.inputs, self.decode, self._takes = columns_in(fold.inputs), fold.decode, tuple(fold.inputs)

    def columns(self, batch: Batch) -> tuple[Sequence[Any], ...]:
        """Return the columns that `decode` takes."""
        columns = decoder_columns(self._takes, self.source.topic, batch)
        return (*columns, batch.times_ms) if self.asks else columns

    def event_ms(self, told: Any, stream_ms: int) -> int:
        """Return the event time of what was decoded, see `event_time`."""
        return event_time(self.source.topic, self.source.time, told[0] if self.asks else told, stream_ms)

    def _spread(self, rows: Rows[Any], told: tuple[Any, ...], at_ms: int) -> Emits:
        return self._call(rows, told[0], at_ms, *told[1:])


def _asking(source: Source[Any], fold: FoldWith, inputs: Sequence[Input]) -> Callable[..., tuple[Any, ...]]:
    """Return what makes of a record's columns, its append time last, all that its fold is told."""
    decode, told = source.serde.decode, [_teller(source, name, inputs) for name in fold.inputs]

    def read(*record: Any) -> tuple[Any, ...]:
        event = decode(record[0])
        return event, *[tell(event, record) for tell in told]

    return read


def _teller(
    source: Source[Any], name: Asked, inputs: Sequence[Input]
) -> Callable[[Any, tuple[Any, ...]], Any]:
    match name:
        case "topic":
            topic = str(source.topic)  # a fold may keep it in a row: no subclass
            return lambda event, record: topic
        case "timestamp":
            return lambda event, record: record[-1]
        case "event_ms":
            return lambda event, record: _event_ms(source, event, record[-1])
        case "key":
            at = inputs.index(name)
            return lambda event, record: source.key.decode(record[at])
        case _:
            at = inputs.index(name)
            return lambda event, record: record[at]


def _event_ms(source: Source[Any], event: Any, timestamp: int) -> int:
    assert source.time is not None
    at_ms = timestamp if event is None else source.time(event)
    if type(at_ms) is not int:
        raise DecodeError(f"time of {source.topic} gives {at_ms!r:.100}, which is not a time in whole ms")
    return at_ms


def event_time(topic: str, time: Callable[[Any], int] | None, event: Any, stream_ms: int) -> int:
    """Return the event time in ms of an event: what *time* gives or, without it, the stream time, if there is one. An event of None, of a
    record without a value, has none: -NEVER.

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
