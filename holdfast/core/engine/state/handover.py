"""The position up to which a version declared with `emits_from="handover"` is silent: its predecessor has
emitted that already.

A note on the changelog, `00 handover`, in the first transaction of the version. It is bookkeeping, as `00
lost-heads` is. Its position is fixed once the version has come past it: until then a predecessor that got
the partition back may have emitted more, and the next takeover takes that in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.engine.state.codec import META
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

HANDOVER = META + b"handover"
HANDOVER_FORMAT = 1


class Handover(msgspec.Struct, frozen=True, array_like=True):
    """The position of earlier versions: *applied* is the last offset of each source, -1 for none, and
    *choices* the number of the next choice, 0 with one source.
    """

    format: int
    applied: Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(min_length=1)]
    choices: Annotated[int, Meta(ge=0)] = 0

    def covers(self, applied: Sequence[int], choices: int = 0) -> bool:
        """Return whether a state at that position has only records that earlier versions have.

        >>> Handover(1, (5, 7), 2).covers((5, 6), 2), Handover(1, (5, 7), 2).covers((5, 6), 3), Handover(1, (5,)).covers((6,))
        (True, False, False)
        """  # noqa: E501
        return choices <= self.choices and all(
            here <= there for here, there in zip(applied, self.applied, strict=True)
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Handover).decode


def encode_handover(handover: Handover) -> bytes:
    """Return the value of the note."""
    return _encode(handover)


def decode_handover(value: bytes | None) -> Handover | None:
    """Return the handover in the note *value*, None for a note that was taken back; ChangelogError for bytes
    that no worker of this format wrote.
    """
    if value is None:
        return None
    try:
        found = _decode(value)
    except UNFIT as error:
        raise ChangelogError(
            f"the note of the handover is malformed ({error}): no worker wrote it"
        ) from error
    if found.format != HANDOVER_FORMAT:
        raise ChangelogError(
            f"the note of the handover has format {found.format}, this version reads {HANDOVER_FORMAT}:"
            " upgrade the workers"
        )
    return found
