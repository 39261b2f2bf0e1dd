"""Emits: the records that a fold sends to other topics."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]


class Emit(msgspec.Struct, frozen=True, gc=False):
    """One record a fold sends, in the same Kafka transaction as the rows it changed.

    *partition* None leaves the choice to murmur2 of the key, as Java clients do.
    """

    topic: str
    key: str | bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


Emits = Iterable[Emit] | None
