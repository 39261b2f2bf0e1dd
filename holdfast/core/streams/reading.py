"""The input that a declaration of one source reads: its topic, its decoder, and its event times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from warnings import warn

from holdfast.core.engine.declared.serdes import decoder_of
from holdfast.core.engine.declared.sources import DecoderInput, Source, source_of
from holdfast.errors import AppendTimeWarning, ConfigError


def reading(
    whose: str, source: Any, decode: Callable[..., Any] | None, inputs: Sequence[DecoderInput]
) -> tuple[str, Callable[..., Any], tuple[DecoderInput, ...], Source[Any] | None]:
    """Return the topic, the decoder, the decoder's inputs, and the source (None for the name of a topic).

    A `Source`, `Stream` or step brings its serde; a topic's name needs *decode*. ConfigError where both are
    given, or neither.
    """
    found = source_of(source) if decode is None or not isinstance(source, str) else None
    if found is None:
        if decode is None:
            raise ConfigError(
                f"{whose}: nothing decodes {source!r:.200}: write source=Source(topic, serde), a step or a"
                " Stream, or give decode="
            )
        return source, decode, tuple(inputs), None
    if decode is not None or tuple(inputs) != ("value",):
        what = "inputs=" if decode is None else "decode="
        raise ConfigError(
            f"{whose}: {str(found.topic)!r} has a serde, which decodes its values: leave out {what}, or"
            " name the topic as text"
        )
    decoder, takes = decoder_of(found.serde)
    return found.declared, decoder, takes, found


def warn_of_append_time(whose: str, *sources: Source[Any]) -> None:
    """Warn of each of *sources* whose event times are append times only because it has no `time=`."""
    unsaid = [each for each in sources if each.reads_time is None and not each.by_append]
    if unsaid:
        warn_of_unsaid_time(whose, *(str(each.topic) for each in unsaid))


def warn_of_unsaid_time(whose: str, *topics: str) -> None:
    """Warn that the event times of *topics* are append times, since no `time=` was given."""
    warn(
        f"{whose} takes the records of {' and '.join(map(repr, topics))} by append time, since no time= was"
        ' given: write time=<a function of the event>, or time="append" if that is meant',
        AppendTimeWarning,
        stacklevel=_levels(),
    )


def _levels() -> int:
    """Return the number of frames up to the declaration: the first outside holdfast's own streams."""
    frame, levels = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("holdfast.core.streams."):
        frame, levels = frame.f_back, levels + 1  # type: ignore[assignment]
    return levels
