"""Declarations of the results that a processor sends: when, to which topic, and how they are encoded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.fold.stepping import LIMIT_BYTES
from holdfast.errors import ConfigError, FoldError

encode_json: Callable[[Any], bytes] = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Updates:
    """Results as they change; see `updates`."""

    topic: str
    encode: Callable[[Any], bytes | None]
    every_ms: int = 0


@dataclass(frozen=True, slots=True)
class Final:
    """One result of each window when it is closed; see `final`."""

    topic: str
    encode: Callable[[Any], bytes | None]


def updates(
    topic: str, *, encode: Callable[[Any], bytes | None] | None = None, every: str | int | None = None
) -> Updates:
    """Return a declaration that sends a result to *topic* at each change, with the row's key as its key.

    *encode* makes its value: of a `WindowResult` for windows, of the row for other aggregations. Without it,
    the serde of a `Stream` does, or JSON. With *every*, of windows only, a window's results are at least so
    much stream time apart; the last one is always sent.
    """
    made = _encoder(topic, encode)
    return Updates(topic, made, 0 if every is None else duration_ms(every, "every of updates"))


def final(topic: str, *, encode: Callable[[Any], bytes | None] | None = None) -> Final:
    """Return a declaration that sends exactly one result of each window to *topic*, when it is closed, with
    the row's key as its key.

    *encode* makes its value of a `WindowResult`; without it, the serde of a `Stream` does, or JSON. It is
    called at each change too: a record is refused if it makes a result that cannot be sent. A window is
    closed by a later record of its partition, whatever its key: a partition without traffic closes nothing,
    unless the windows are declared with `idle=`. Those closed by one record are sent by end, then by row key.
    """
    return Final(topic, _encoder(topic, encode))


def _encoder(topic: str, encode: Callable[[Any], bytes | None] | None) -> Callable[[Any], bytes | None]:
    """Return the function that encodes the values of results to *topic*."""
    if not isinstance(topic, str):
        raise ConfigError(f"results to {topic!r:.100}: give the name of a topic, or a Stream")
    if isinstance(topic, Stream) and not isinstance(topic.key, Text):
        raise ConfigError(
            f"results to {topic}: their keys are those of rows, as text: leave out key= of the stream"
        )
    if encode is None:
        return topic.serde.encode if isinstance(topic, Stream) else encode_json
    if (why := why_uncallable(encode, ("result",))) is not None:
        raise ConfigError(f"results to {topic}: encode {why}")
    return encode


def check_topics(whose: str, sources: Collection[str], *topics: str | None) -> None:
    """Raise ConfigError where a topic that is emitted to is also read, or has two uses; None stands for no
    topic.
    """
    named = [str(topic) for topic in topics if topic is not None]
    for at, topic in enumerate(named):
        if topic in sources:
            raise ConfigError(
                f"{whose}: it emits to {topic!r}, which it reads: it would feed itself without end; emit to"
                " another topic"
            )
        if topic in named[:at]:
            raise ConfigError(
                f"{whose}: {topic!r} is named for two kinds of records: give each a topic of its own"
            )


def require_sendable(key: str, value: object) -> None:
    """Raise FoldError unless a result can be sent when it is due.

    So the record that makes it unsendable is refused, not the record that is folded when it is due.
    """
    if not isinstance(value, bytes | None):
        raise FoldError(f"result {key!r:.200}: encode gives {value!r:.200}; it must give bytes")
    if (size := len(key.encode()) + len(value or b"")) > LIMIT_BYTES:
        raise FoldError(f"result {key!r:.200} takes {size} bytes, the limit is {LIMIT_BYTES}")
