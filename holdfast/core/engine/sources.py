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

from holdfast.core.engine.declaring import is_serde, is_topic
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.retention import kept
from holdfast.core.engine.rows import Rows
from holdfast.core.engine.serdes import Serde, Text
from holdfast.core.engine.streams import Internal
from holdfast.errors import ConfigError, DecodeError

T = TypeVar("T")

Input = Literal["value", "key", "headers", "offset", "partition"]
INPUTS: tuple[Input, ...] = get_args(Input)
"""What the columns of a batch may be."""
Asked = Literal["key", "headers", "offset", "partition", "timestamp", "topic", "event_ms"]
ASKED: tuple[Asked, ...] = get_args(Asked)
"""What a fold may ask for besides the event."""
LIMIT_SOURCES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Source(Generic[T]):
    """A topic to fold: `orders = Source("orders", Json(Order))`.

    *time* tells an event's own time in ms, for folds that ask for "event_ms". *key* reads the records' keys,
    for folds that ask for "key". ConfigError for what is no topic or no serde.

    *retention* tells how long the topic keeps its records: a duration such as "7d", ms, "forever", or None for what the
    brokers say. `holdfast topics create` makes the topic so, and `topics check` compares: a state cannot be built again from records that
    are gone. All declarations of one topic must agree. An internal topic has none, since holdfast keeps and trims it.
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
    inputs: tuple[Input, ...]


class SourceFold:
    """A source and its fold as folders call them: `decode` of the columns of a record, then `fold` of what
    that gives. With *asks*, its append time follows the columns.

    *inputs* are the columns that batches of this source must have.
    """

    __slots__ = ("_call", "asks", "decode", "fold", "inputs", "number", "source")

    def __init__(
        self, number: int, source: Source[Any], fold: Callable[..., Emits] | FoldWith | FoldColumns
    ) -> None:
        self.number, self.source = number, source
        self.inputs: tuple[Input, ...] = ("value",)
        self.decode: Callable[..., Any] = source.serde.decode
        self._call = fold.fold if isinstance(fold, FoldWith | FoldColumns) else fold
        self.fold: Callable[[Rows[Any], Any, int], Emits] = self._call
        self.asks = isinstance(fold, FoldWith) and bool(fold.inputs)
        if isinstance(fold, FoldWith) and self.asks:
            columns: list[Input] = [name for name in fold.inputs if name in INPUTS]
            self.inputs = ("value", *dict.fromkeys(columns))
            self.decode, self.fold = _asking(source, fold, self.inputs), self._spread
        elif isinstance(fold, FoldColumns):
            self.inputs, self.decode = fold.inputs, fold.decode

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


def fingerprint(topics: Sequence[str]) -> int:
    """Return a number that tells other topics, or the same in another order, apart: positions and choices
    number the sources.

    >>> fingerprint(["a", "b"]) == fingerprint(["b", "a"])
    False
    """
    return crc32("\0".join(topics).encode())
