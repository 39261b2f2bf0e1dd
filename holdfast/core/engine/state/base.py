"""What a table began with, in place of nothing: rows of an earlier version or of another application, at a position.

A note on the changelog, `00 base`, in the table's first transaction. The same transaction writes the rows, and last the note, to a topic
`{app}-{table}-base`, which keeps them: a changelog forgets a row when it changes. Replays begin with them, so a table with a base is a function of these rows and
of its source behind the base's position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.engine.state.codec import META
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

BASE = META + b"base"
BASE_FORMAT = 1

Origin = Literal["version", "faust", "reset"]


class TableBase(msgspec.Struct, frozen=True, array_like=True):
    """What a partition began with.

    *origin* tells what it was made of: the rows of *version*, of a Faust table, or none, by a reset to a time. *position* is the marker of the table's
    beginning as stored, *applied* the last offset of each source that is in it, *entries* how many rows and timers it has and *digest* what
    these are. *before* is what the earlier version itself began with.
    """

    format: int
    origin: Origin
    version: Annotated[int, Meta(ge=0)]
    position: bytes
    applied: Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(min_length=1)]
    entries: Annotated[int, Meta(ge=0)]
    digest: str
    before: TableBase | None = None

    def told(self, topics: Sequence[str]) -> str:
        """Return what the table began with, for people.

        >>> TableBase(1, "version", 1, b"", (17,), 3, "").told(["orders"])
        '3 rows and timers of version 1 behind offset 17'
        >>> TableBase(1, "faust", 0, b"", (-1, 4), 3, "").told(["orders", "customers"])
        '3 rows and timers of a Faust table behind orders:-1,customers:4'
        """
        return ", which began with ".join(each._told(topics) for each in self._chain())

    def _chain(self) -> Iterator[TableBase]:
        found: TableBase | None = self
        while found is not None:
            yield found
            found = found.before

    def _told(self, topics: Sequence[str]) -> str:
        what = {
            "version": f"version {self.version}",
            "faust": "a Faust table",
            "reset": "nothing, by a reset",
        }
        of_one = f"offset {self.applied[0]}"
        pairs = ",".join(f"{topic}:{last}" for topic, last in zip(topics, self.applied, strict=False))
        behind = of_one if len(self.applied) == 1 else pairs
        return f"{self.entries} rows and timers of {what[self.origin]} behind {behind}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TableBase).decode


def encode_base(base: TableBase) -> bytes:
    """Return the value of the note."""
    return _encode(base)


def decode_base(value: bytes | None) -> TableBase | None:
    """Return what the note in *value* tells, None without one; ChangelogError for what no worker of this format wrote."""
    if value is None:
        return None
    try:
        found = _decode(value)
    except UNFIT as error:
        raise ChangelogError(f"the note of the base is malformed ({error}): no worker wrote it") from error
    if found.format != BASE_FORMAT:
        raise ChangelogError(
            f"the note of the base has format {found.format}, this version reads {BASE_FORMAT}: upgrade the workers"
        )
    return found
