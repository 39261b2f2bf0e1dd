"""A topic that folds emit to, declared with what lies in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from holdfast.core.engine.declared.declaring import is_serde, is_topic
from holdfast.core.engine.declared.retention import retention_ms, spoken
from holdfast.core.engine.declared.serdes import (
    KEY_ID,
    VALUE_ID,
    Serde,
    Text,
    of_topic,
    without_ids,
    writes_anew,
)
from holdfast.core.engine.emits import Emit, Headers
from holdfast.errors import ConfigError

T = TypeVar("T")


class Stream(str, Generic[T]):
    """A topic to emit to, and what lies in it: `enriched = Stream("enriched", Json(Enriched))`.

    It is the topic's name, so it can be used as one: in a processor's `emits`, and as the topic of an emit.
    *retention* is that of a `Source`: "7d", "forever" or "landed". Without one a stream that is folded is
    kept forever, and any other as the brokers say. *time* reads the event time in ms of a value, for what
    folds the stream (`source=enriched`); "append" says that it is the append time.

    With *watermarks* its records have the header `holdfast-origin`, and records without key and value, which
    have the header `holdfast-mark`, lie among them, as in topics between processors: so windows and joins of
    another application, which declare the same, go by the origins of its records. Other readers must pass
    over the marks.

    >>> from holdfast.core.engine.declared.serdes import Json
    >>> totals = Stream("totals", Json(int))
    >>> totals.emit("a", 3)
    Emit(topic='totals', key=b'a', value=b'3', headers=(), partition=None)
    >>> totals == "totals"
    True
    """

    serde: Serde[T]
    key: Serde[Any]
    retention_ms: int | None
    time: Callable[[T], int] | None
    by_append: bool
    watermarks: bool = False
    """True if its records carry their origins, with marks between them."""
    step: str = ""
    """The name of the step that writes it; "" for none."""
    mixed: bool = False
    """True if the step reads several logs in a partition, so that the order in which it sends depends on
    pace.
    """
    tells: bool = False
    """True if that step reports the progress of its sources, also while it has nothing to send."""
    _topic: str
    _stale: tuple[str, ...]

    def __new__(
        cls,
        topic: str,
        serde: Serde[T],
        key: Serde[Any] | None = None,
        retention: str | int | None = None,
        time: Callable[[T], int] | Literal["append"] | None = None,
        *,
        watermarks: bool = False,
    ) -> Stream[T]:
        _check(topic, serde, key)
        if type(watermarks) is not bool:
            raise ConfigError(f"stream {topic!r}: watermarks is {watermarks!r:.100}; write True or False")
        made = super().__new__(cls, topic)
        made._take(serde, key, time)
        made.watermarks = watermarks
        made.retention_ms = retention_ms(retention, f"stream {topic!r}")
        return made

    def _take(
        self,
        serde: Serde[T],
        key: Serde[Any] | None,
        time: Callable[[T], int] | Literal["append"] | None,
    ) -> None:
        if isinstance(time, str) and time != "append":
            raise ConfigError(
                f"stream {str(self)!r}: time is {time!r:.100}; write a function of the value, or"
                ' "append" for the append time'
            )
        self.by_append = isinstance(time, str)
        self.time = None if isinstance(time, str) else time
        self._topic = str(self)  # no subclass, and made once: each record emitted has it
        self.serde = of_topic(serde, str(self), "value")
        self.key = Text() if key is None else of_topic(key, str(self), "key")
        written = ((self.serde, VALUE_ID), (self.key, KEY_ID))
        self._stale = tuple(name for each, name in written if writes_anew(each))

    def emit(self, key: Any, value: T, *, headers: Headers = (), partition: int | None = None) -> Emit:
        """Return a record of this topic for a fold to yield; raises FoldError when *key* or *value* is not of
        the declared type, so that the record being folded is refused.

        *partition* None leaves it to murmur2 of the key. Of *headers*, the schema ids of the record that was
        read are left out: key and value are encoded again.
        """
        if headers and self._stale:
            headers = without_ids(headers, *self._stale)
        return Emit(self._topic, self.key.encode(key), self.serde.encode(value), headers, partition)

    def written_by(
        self,
        step: str,
        time: Callable[[T], int] | Literal["append"] | None,
        *,
        mixed: bool = False,
        tells: bool = False,
    ) -> Stream[T]:
        """Return this stream as the one that *step* writes; *time* counts unless the stream has one."""
        if self.time is not None or self.by_append:
            time = "append" if self.by_append else self.time
        function, arguments = self.__reduce__()
        return function(*arguments[:-4], time, step, mixed, tells)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        found_ms = self.retention_ms
        retention = found_ms if found_ms is None or found_ms > 0 else spoken(found_ms)
        time = "append" if self.by_append else self.time
        told = self.watermarks, time, self.step, self.mixed, self.tells
        return _stream, (str(self), self.serde, self.key, retention, *told)


class Internal(Stream[T]):
    """A topic between processors of one application: `words = Internal("words", Text(), version=2)`.

    Its name ends with the *version* of the processor that emits to it, which must be the same. So what
    another version emits goes to another topic, and no downstream table takes in twice what both have
    emitted. Readers name it as their source, by `source=words`, and are raised together with its writer.

    >>> from holdfast.core.engine.declared.serdes import Text
    >>> words = Internal("words", Text(), version=2)
    >>> str(words), words.version
    ('words.v2', 2)
    """

    base: str
    version: int

    def __new__(
        cls,
        topic: str,
        serde: Serde[T],
        key: Serde[Any] | None = None,
        *,
        version: int = 1,
        time: Callable[[T], int] | Literal["append"] | None = None,
    ) -> Internal[T]:
        if type(version) is not int or version < 1:
            raise ConfigError(
                f"internal topic {topic!r:.200}: version {version!r:.100}; it is that of the processor that"
                " emits to it, from 1"
            )
        _check(f"{topic}.v{version}", serde, key)
        made = str.__new__(cls, f"{topic}.v{version}")
        made._take(serde, key, time)
        made.base, made.version = topic, version
        made.retention_ms = None  # holdfast keeps it, and trims it
        made.watermarks = True
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        time = "append" if self.by_append else self.time
        told = time, self.step, self.mixed, self.tells
        return _internal, (self.base, self.serde, self.key, self.version, *told)


def _check(topic: object, serde: object, key: object) -> None:
    if not is_topic(topic):
        raise ConfigError(
            f"stream {topic!r:.200} is not a valid Kafka topic name: write Stream('totals', Json(int)), say"
        )
    for each, name in ((serde, "serde"), (key, "key")):
        if not is_serde(each, "encode") and not (name == "key" and each is None):
            raise ConfigError(f"the {name} of stream {topic!r:.200} is {each!r:.200}; write Json(...), say")


def _stream(
    topic: str,
    serde: Serde[Any],
    key: Serde[Any],
    retention: Any,
    watermarks: bool = False,
    time: Any = None,
    step: str = "",
    mixed: bool = False,
    tells: bool = False,
) -> Stream[Any]:
    made = Stream(topic, serde, key, retention, time, watermarks=watermarks)
    made.step, made.mixed, made.tells = step, mixed, tells
    return made


def _internal(
    topic: str,
    serde: Serde[Any],
    key: Serde[Any],
    version: int,
    time: Any = None,
    step: str = "",
    mixed: bool = False,
    tells: bool = False,
) -> Internal[Any]:
    made = Internal(topic, serde, key, version=version, time=time)
    made.step, made.mixed, made.tells = step, mixed, tells
    return made


def tells_origins(topic: str) -> bool:
    """Return whether the records of *topic* are declared to carry their origins, as those of internal topics
    do.
    """
    return getattr(topic, "watermarks", False) is True
