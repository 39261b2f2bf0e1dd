"""What a declaration of one source reads: a topic and what decodes its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.engine.declared.serdes import framing
from holdfast.core.engine.declared.sources import DecoderInput, Source
from holdfast.core.engine.emits import Headers
from holdfast.errors import ConfigError


def reading(
    whose: str, source: Any, decode: Callable[..., Any] | None, inputs: Sequence[DecoderInput]
) -> tuple[str, Callable[..., Any], tuple[DecoderInput, ...]]:
    """Return the topic and the decoder of *source*, and what the decoder takes: a `Source` tells both, a
    topic's name needs *decode*.

    ConfigError where both are given, or neither.
    """
    if not isinstance(source, Source):
        if decode is None:
            raise ConfigError(
                f"{whose}: nothing decodes {source!r:.200}: write source=Source(topic, serde), or give"
                " decode="
            )
        return source, decode, tuple(inputs)
    if decode is not None or tuple(inputs) != ("value",):
        what = "inputs=" if decode is None else "decode="
        raise ConfigError(
            f"{whose}: Source({str(source.topic)!r}, ...) tells what lies in its values: leave out {what}, or"
            " name the topic as text"
        )
    if framing(source.serde) is None:
        return source.topic, source.serde.decode, ("value",)
    return source.topic, _Framed(source.serde), ("value", "headers")


class _Framed:
    """Decodes values whose headers may tell their schemas."""

    def __init__(self, serde: Any) -> None:
        self._serde = serde

    def __call__(self, value: bytes | None, headers: Headers) -> Any:
        return self._serde.decode(self._serde.framed(value, headers))
