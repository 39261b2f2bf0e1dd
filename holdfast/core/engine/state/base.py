"""The base of a table that did not begin empty: the rows of an earlier version, or of a table of Faust's, at
a position.

A note on the changelog, `00 base`, in the table's first transaction. The same transaction writes the rows,
and last the note, to a topic `{app}-{table}-base`, which keeps them: a changelog forgets a row when it
changes. Replays begin with them, so a table with a base is a function of these rows and of its source after
the base's position.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.engine.state.codec import META
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

BASE = META + b"base"
BASE_FORMAT = 1


class TableBase(msgspec.Struct, frozen=True, array_like=True):
    """The first state of a partition: the rows of *version*, migrated, or those of *origin*.

    *position* is the marker of the table's beginning as stored, *applied* the last offset of the source that
    is in it, -1 for none (of several sources how many of their offsets are, less one), *entries* how many
    rows and timers it has and *digest* what these are. *before* is what the earlier version itself began
    with. *sources* has topic and last offset of each of several sources.
    """

    format: int
    version: Annotated[int, Meta(ge=1)]
    position: bytes
    applied: Annotated[int, Meta(ge=-1)]
    entries: Annotated[int, Meta(ge=0)]
    digest: str
    before: TableBase | None = None
    origin: str = ""
    """The table that the rows come from if that is no earlier version: then *version* is that of the table
    itself.
    """
    sources: tuple[tuple[str, Annotated[int, Meta(ge=-1)]], ...] = ()

    @property
    def place(self) -> int | str:
        """Return the last offset of the source; with several sources, that of each as text for people.

        >>> TableBase(1, 1, b"", 21, 3, "", sources=(("orders", 17), ("customers", 3))).place
        'orders 17, customers 3'
        """
        return ", ".join(f"{topic} {offset}" for topic, offset in self.sources) or self.applied

    def told(self) -> str:
        """Return a description of the table's first state, for people.

        >>> first = TableBase(1, 1, b"", 17, 3, "")
        >>> first.told(), TableBase(1, 2, b"", 40, 3, "", first).told()
        ('3 rows and timers of version 1 behind offset 17', '3 rows and timers of version 2 behind offset 40, which began with 3 rows and timers of version 1 behind offset 17')
        >>> TableBase(1, 1, b"", 21, 3, "", sources=(("orders", 17), ("customers", 3))).told()
        '3 rows and timers of version 1 behind the offsets orders 17, customers 3'
        """  # noqa: E501
        of = self.origin or f"version {self.version}"
        place = f"the offsets {self.place}" if self.sources else f"offset {self.place}"
        own = f"{self.entries} rows and timers of {of} behind {place}"
        return own if self.before is None else f"{own}, which began with {self.before.told()}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TableBase).decode


def encode_base(base: TableBase) -> bytes:
    """Return the value of the note."""
    return _encode(base)


def decode_base(value: bytes | None) -> TableBase | None:
    """Return the base in the note *value*, None without one; ChangelogError for bytes that no worker of this
    format wrote.
    """
    if value is None:
        return None
    try:
        found = _decode(value)
    except UNFIT as error:
        raise ChangelogError(f"the note of the base is malformed ({error}): no worker wrote it") from error
    if found.format != BASE_FORMAT:
        raise ChangelogError(
            f"the note of the base has format {found.format}, this version reads {BASE_FORMAT}: upgrade the"
            " workers"
        )
    return found
