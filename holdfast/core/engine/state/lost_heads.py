"""The sources that had lost the head of their log when a version of a table began: records deleted before
that are in no state of it.

A note on the changelog, `00 lost-heads`, in the transaction of the first records that were folded after the
hole. It is bookkeeping: in no digest, and readers that do not know it carry it along as they do a row, so a
takeover by an older version keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.core.engine.state.codec import META
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

LOST_HEADS = META + b"lost-heads"
LOST_HEADS_FORMAT = 1

LostHeads: TypeAlias = Mapping[str, int]
"""The first offset that was there of each source that had lost its head, by topic: earlier records are not in
the state.
"""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    format: int
    firsts: dict[str, Annotated[int, Meta(gt=0)]]


_encode = msgspec.msgpack.Encoder(order="sorted").encode
_decode = msgspec.msgpack.Decoder(_Note).decode


def encode_lost_heads(lost: LostHeads) -> bytes:
    """Return the value of the note.

    >>> decode_lost_heads(encode_lost_heads({"orders": 700}))
    {'orders': 700}
    """
    return _encode(_Note(LOST_HEADS_FORMAT, dict(lost)))


def decode_lost_heads(value: bytes | None) -> dict[str, int]:
    """Return the lost heads in the note *value*, {} for a note that was taken back (None); ChangelogError for
    bytes that no worker of this format wrote.
    """
    if value is None:
        return {}
    try:
        note = _decode(value)
    except UNFIT as error:
        raise ChangelogError(f"the note of lost heads is malformed ({error}): no worker wrote it") from error
    if note.format != LOST_HEADS_FORMAT:
        raise ChangelogError(
            f"the note of lost heads has format {note.format}, this version reads {LOST_HEADS_FORMAT}:"
            " upgrade the workers"
        )
    return note.firsts


def told_lost(lost: LostHeads) -> str:
    """Return the missing offsets, for people.

    >>> told_lost({"orders": 700, "customers": 3})
    'customers before offset 3, orders before offset 700'
    """
    return ", ".join(f"{topic} before offset {first}" for topic, first in sorted(lost.items()))
