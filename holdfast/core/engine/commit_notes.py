"""The note that a worker's group keeps with a committed offset: the id of the log that the offset belongs to,
and the offset up to which each table has folded it and sent its results.

The note is the metadata of the commit, text that brokers keep unchanged, up to `offset.metadata.max.bytes`.
The offset alone says neither: a topic that was deleted and created again has the same name, and tables that
fold one topic share its offset.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.untrusted import UNFIT

COMMIT_NOTE_FORMAT = 1
LIMIT_NOTE_BYTES = 4_000
"""Below the default limit of brokers, 4,096 bytes."""
ID_CHARACTERS = 8
"""The number of leading characters kept of the ids of emitted topics: enough to distinguish them."""


class TableSent(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a table in one source, with its results sent: the last offset, -1 for none, and the
    number of the next choice, 0 with one source. *changelog* is the beginning of its changelog's id.
    """

    applied: Annotated[int, Meta(ge=-1)]
    choices: Annotated[int, Meta(ge=0)] = 0
    changelog: str = ""


class CommitNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note of one source partition: *topic* is the source's id, *tables* those that fold it, and *out*
    the beginnings of the ids of the topics that they send to.
    """

    holdfast: int = COMMIT_NOTE_FORMAT
    topic: str
    tables: dict[str, TableSent]
    out: dict[str, str] = {}


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(CommitNote).decode


def encode_commit_note(note: CommitNote) -> str | None:
    """Return the metadata of a commit; None where it takes more than brokers keep.

    >>> encode_commit_note(CommitNote(topic="a", tables={"totals.v1": TableSent(7)}, out={"big": "x"}))
    '{"holdfast":1,"topic":"a","tables":{"totals.v1":[7,0,""]},"out":{"big":"x"}}'
    """
    found = _encode(note)
    return found.decode() if len(found) <= LIMIT_NOTE_BYTES else None


def decode_commit_note(text: str | None) -> CommitNote | None:
    """Return the note in the metadata of a commit; None for what another program, or a newer version,
    committed.

    >>> decode_commit_note(""), decode_commit_note('{"holdfast":1,"topic":"a","tables":{}}').topic
    (None, 'a')
    """
    if not text:
        return None
    try:
        found = _decode(text.encode())
    except UNFIT:
        return None
    return found if found.holdfast == COMMIT_NOTE_FORMAT else None


def shortened(topic_id: str) -> str:
    """Return the leading characters of an id that a note keeps."""
    return topic_id[:ID_CHARACTERS]
