"""A topic that folds emit to, declared with what lies in it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from holdfast.core.engine.declared.declaring import is_serde, is_topic
from holdfast.core.engine.declared.retention import retention_ms, spoken
from holdfast.core.engine.declared.serdes import Serde, Text, of_topic
from holdfast.core.engine.emits import Emit, Headers
from holdfast.errors import ConfigError

T = TypeVar("T")


class Stream(str, Generic[T]):
    """A topic to emit to, and what lies in it: `enriched = Stream("enriched", Json(Enriched))`.

    It is the topic's name, so it stands wherever one does: in a processor's `emits`, and in what is emitted.
    *retention* is that of a `Source`: "7d", "forever" or "landed". Without one a stream that is folded is
    kept forever, and any other as the brokers say.

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
    _topic: str

    def __new__(
        cls,
        topic: str,
        serde: Serde[T],
        key: Serde[Any] | None = None,
        retention: str | int | None = None,
    ) -> Stream[T]:
        _check(topic, serde, key)
        made = super().__new__(cls, topic)
        made._take(serde, key)
        made.retention_ms = retention_ms(retention, f"stream {topic!r}")
        return made

    def _take(self, serde: Serde[T], key: Serde[Any] | None) -> None:
        self._topic = str(self)  # no subclass, and made once: each record emitted has it
        self.serde = of_topic(serde, str(self), "value")
        self.key = Text() if key is None else of_topic(key, str(self), "key")

    def emit(self, key: Any, value: T, *, headers: Headers = (), partition: int | None = None) -> Emit:
        """Return a record of this topic for a fold to yield; raises FoldError when *key* or *value* is not of
        the declared type, so that the record being folded is refused.

        *partition* None leaves it to murmur2 of the key.
        """
        return Emit(self._topic, self.key.encode(key), self.serde.encode(value), headers, partition)

    def __reduce__(self) -> tuple[Any, ...]:
        found_ms = self.retention_ms
        retention = found_ms if found_ms is None or found_ms > 0 else spoken(found_ms)
        return Stream, (str(self), self.serde, self.key, retention)


class Internal(Stream[T]):
    """A topic between processors of one application: `words = Internal("words", Text(), version=2)`.

    Its name ends with the *version* of the processor that emits to it, which must be the same. So what
    another version emits goes to another topic, and no table behind it takes in twice what both have emitted.
    Readers name it as their source, by `Source(words, words.serde)` or `source=words`, and are raised
    together with its writer.

    >>> from holdfast.core.engine.declared.serdes import Text
    >>> words = Internal("words", Text(), version=2)
    >>> str(words), words.version
    ('words.v2', 2)
    """

    base: str
    version: int

    def __new__(
        cls, topic: str, serde: Serde[T], key: Serde[Any] | None = None, *, version: int = 1
    ) -> Internal[T]:
        if type(version) is not int or version < 1:
            raise ConfigError(
                f"internal topic {topic!r:.200}: version {version!r:.100}; it is that of the processor that"
                " emits to it, from 1"
            )
        _check(f"{topic}.v{version}", serde, key)
        made = str.__new__(cls, f"{topic}.v{version}")
        made._take(serde, key)
        made.base, made.version = topic, version
        made.retention_ms = None  # holdfast keeps it, and trims it
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _internal, (self.base, self.serde, self.key, self.version)


def _check(topic: object, serde: object, key: object) -> None:
    if not is_topic(topic):
        raise ConfigError(
            f"stream {topic!r:.200} is not a valid Kafka topic name: write Stream('totals', Json(int)), say"
        )
    for each, name in ((serde, "serde"), (key, "key")):
        if not is_serde(each, "encode") and not (name == "key" and each is None):
            raise ConfigError(f"the {name} of stream {topic!r:.200} is {each!r:.200}; write Json(...), say")


def _internal(topic: str, serde: Serde[Any], key: Serde[Any], version: int) -> Internal[Any]:
    return Internal(topic, serde, key, version=version)
