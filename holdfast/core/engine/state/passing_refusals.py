"""Notes of records that were refused for a reason that may pass: the registry did not know their schema.

Bytes alone decide all other refusals, so a replay refuses the same. Of these it would fold some, once the
registry has learned their schema. So each is noted on the changelog, `00 refused TOPIC OFFSET`, in the
transaction that refuses it, and `verify` refuses what the table refused. It is bookkeeping: in no digest.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.engine.state.codec import META
from holdfast.errors import ChangelogError

REFUSALS = META + b"refused "
"""With this the keys of all such notes begin."""
_VALUE = b"\x01"


def refusal_note(topic: str, offset: int) -> tuple[bytes, bytes]:
    """Return key and value of the note of a record.

    >>> refusals_in([refusal_note("orders", 7)[0], b"something else"])
    frozenset({('orders', 7)})
    """
    return b"%s%s %d" % (REFUSALS, topic.encode(), offset), _VALUE


def is_refusal_note(key: bytes) -> bool:
    """Return whether *key* is that of such a note; it may be malformed."""
    return key.startswith(REFUSALS)


def refusals_in(keys: Iterable[bytes]) -> frozenset[tuple[str, int]]:
    """Return topic and offset of each record that is noted among *keys*; ChangelogError for a note that no
    worker wrote.
    """
    return frozenset(_read(key) for key in keys if is_refusal_note(key))


def _read(key: bytes) -> tuple[str, int]:
    topic, _, offset = key.removeprefix(REFUSALS).decode(errors="replace").partition(" ")
    if not topic or not offset.isascii() or not offset.isdecimal():
        raise ChangelogError(f"the note of a refusal is malformed ({key[:200]!r}): no worker wrote it")
    return topic, int(offset)
