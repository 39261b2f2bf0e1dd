"""Checks and row types that all joins share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Union, get_args

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.serdes import Bytes
from holdfast.core.engine.declared.sources import Source, require_source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.event_times import check_ahead, limit_of
from holdfast.core.streams.emitting import check_topics
from holdfast.core.streams.windowing.rows import checked_key, checked_time
from holdfast.errors import ConfigError, HoldfastError

Route = Callable[[str, int], int | None]
How = Literal["inner", "left", "outer"]
TableHow = Literal["inner", "left"]
"""The kinds of join of a stream or a table with another table, whose rows alone make no result."""
key_of = checked_key
"""Returns a key; FoldError unless it may be that of a row."""


def joined_sources(
    whose: str, sources: Mapping[str, object], to: object, how: object, ways: tuple[How, ...], join: object
) -> list[Source[Any]]:
    """Return a join's sources; ConfigError unless they, its stream, kind and function may be declared so."""
    check_stream(whose, to)
    found = {what: require_source(whose, what, given) for what, given in sources.items()}
    for what, source in found.items():
        if what != "stream":
            check_key(whose, source)
        check_topics(whose, (source.topic,), str(to))
    if how not in ways:
        raise ConfigError(f"{whose}: how {how!r:.100}; choose from {', '.join(ways)}")
    if (why := why_uncallable(join, ("left", "right"))) is not None:
        raise ConfigError(f"{whose}: join {why}")
    return [*found.values()]


def check_key(whose: str, source: Source[Any]) -> None:
    """Raise ConfigError where the keys of a source are not text, as those of rows are."""
    if not _is_text(source.key):
        raise ConfigError(
            f"{whose}: the keys of {str(source.topic)!r} are {source.key!r}, and rows are found by text:"
            " leave out key=, or put Rekey(by=...) before that gives text"
        )


def check_result_key(whose: str, to: Stream[Any]) -> None:
    """Raise ConfigError where the keys of a stream of results are not text, as those of rows are."""
    if not _is_text(to.key):
        raise ConfigError(
            f"{whose}: the keys of {str(to)!r} are {to.key!r}, and results have those of rows, which are"
            " text: leave out key="
        )


def _is_text(key: Any) -> bool:
    of = getattr(key, "of", str)
    return not isinstance(key, Bytes) and (of is str or of is Any or str in get_args(of))


def check_apart(whose: str, sources: Mapping[str, Source[Any]]) -> None:
    """Raise ConfigError where two sources are one topic: a processor folds each of its records once."""
    found: dict[str, str] = {}
    for what, source in sources.items():
        if (other := found.setdefault(str(source.topic), what)) != what:
            raise ConfigError(
                f"{whose}: {other} and {what} are both {source.topic!r}: a record is folded once, so one side"
                " would stay empty; send the topic on under another name, by Map(source=..., each=lambda"
                f" event: event, serde=...), and name that as {what}="
            )


def check_stream(whose: str, to: object) -> None:
    """Raise ConfigError unless *to* is a declared stream."""
    if not isinstance(to, Stream):
        raise ConfigError(f"{whose}: to is {to!r:.200}; write Stream(topic, serde)")


def check_late(whose: str, late: object, to: Stream[Any], sources: Collection[str]) -> None:
    """Raise ConfigError unless late records may be sent to *late*; None sends them nowhere."""
    if late is None:
        return
    if not isinstance(late, Stream):
        raise ConfigError(f"{whose}: late is {late!r:.200}; write Stream(topic, serde)")
    check_topics(whose, sources, to, late)


def check_tombstones(whose: str, to: Stream[Any]) -> None:
    """Raise ConfigError unless *to* takes tombstones, which announce that a result is gone."""
    try:
        taken = to.serde.encode(None) is None
    except HoldfastError:
        taken = False
    if not taken:
        raise ConfigError(
            f"{whose}: {str(to)!r} cannot say that a result is gone: declare its values with | None, as in"
            " Json(Priced | None)"
        )


def held_type(whose: str, source: Source[Any]) -> Any:
    """Return the type of the values of *source*, None left out: that of the rows that hold them."""
    if not hasattr(source.serde, "of"):
        raise ConfigError(
            f"{whose}: the serde {source.serde!r} of {source.topic} names no type for rows: take Json(...) or"
            " Msgpack(...)"
        )
    of = source.serde.of
    some = tuple(each for each in get_args(of) if each is not type(None))
    return Union[some] if type(None) in get_args(of) else of  # noqa: UP007  made of a tuple


def time_and_move(source: Source[Any], event: Any, timestamp: int) -> tuple[int, bool]:
    """Return an event's time in ms, and whether that moves the watermark; without `time=`, and for a
    tombstone, the time is *timestamp*.

    FutureTimeError for a time that is too far ahead of *timestamp*, unless the source holds such records.
    """
    tell = source.reads_time
    if tell is None or event is None:
        return checked_time(timestamp), True
    at_ms = checked_time(tell(event))
    if at_ms <= timestamp:
        return at_ms, True
    limit_ms, holds = limit_of(tell)
    return at_ms, check_ahead(str(source.topic), at_ms, timestamp, limit_ms, holds=holds)
