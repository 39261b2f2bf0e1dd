"""What a declaration of one source reads: a topic and what decodes its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.engine.declared.sources import Source
from holdfast.errors import ConfigError


def reading(
    whose: str, source: Any, decode: Callable[..., Any] | None, inputs: Sequence[str]
) -> tuple[str, Callable[..., Any]]:
    """Return the topic and the decoder of *source*: a `Source` tells both, a topic's name needs *decode*.

    ConfigError where both are given, or neither.
    """
    if not isinstance(source, Source):
        if decode is None:
            raise ConfigError(
                f"{whose}: nothing decodes {source!r:.200}: write source=Source(topic, serde), or give"
                " decode="
            )
        return source, decode
    if decode is not None or tuple(inputs) != ("value",):
        what = "inputs=" if decode is None else "decode="
        raise ConfigError(
            f"{whose}: Source({str(source.topic)!r}, ...) tells what lies in its values: leave out {what}, or"
            " name the topic as text"
        )
    return source.topic, source.serde.decode
