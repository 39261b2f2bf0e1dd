"""Recovery of a table whose changelog had lost its records while its sources were whole: it folds them a
second time, and does not repeat the emits of the first time.

A note on the changelog, `00 recovery`, in the transaction that begins the table again. It is bookkeeping, as
`00 handover` is: in no digest, and readers that do not know it carry it along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.engine.state.codec import META
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError

RECOVERY = META + b"recovery"
RECOVERY_FORMAT = 1


class Recovery(msgspec.Struct, frozen=True, array_like=True):
    """The position up to which results were sent before: *applied* is the last offset of each source, -1 for
    none, and *choices* the number of the next choice, 0 with one source. *topics* still have these results.
    Records of the changelog before offset *log_start* belong to no state of the table.
    """

    format: int
    log_start: Annotated[int, Meta(ge=0)]
    applied: Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(min_length=1)]
    choices: Annotated[int, Meta(ge=0)] = 0
    topics: tuple[str, ...] = ()

    def covers(self, applied: Sequence[int], choices: int = 0) -> bool:
        """Return whether a state at that position has not come past the records that were sent before.

        >>> Recovery(1, 0, (5,)).covers((5,)), Recovery(1, 0, (5,)).covers((6,))
        (True, False)
        """
        return choices <= self.choices and all(
            here <= there for here, there in zip(applied, self.applied, strict=True)
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Recovery).decode


def encode_recovery(recovery: Recovery) -> bytes:
    """Return the value of the note."""
    return _encode(recovery)


def decode_recovery(value: bytes | None) -> Recovery | None:
    """Return the note in *value*, None without one; ChangelogError for what no worker of this format
    wrote.
    """
    if value is None:
        return None
    try:
        found = _decode(value)
    except UNFIT as error:
        raise ChangelogError(
            f"the note of the recovery is malformed ({error}): no worker wrote it"
        ) from error
    if found.format != RECOVERY_FORMAT:
        raise ChangelogError(
            f"the note of the recovery has format {found.format}, this version reads {RECOVERY_FORMAT}:"
            " upgrade the workers"
        )
    return found
