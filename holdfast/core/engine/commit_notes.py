"""What a worker's group keeps beside a committed offset: of which log it is, and up to where each table has
folded it and sent its results.

It is the metadata of the commit, text that brokers keep as it is, up to `offset.metadata.max.bytes`. The
offset alone says neither: a topic that was deleted and made again has the same name, and tables that fold one
topic share its offset.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.untrusted import UNFIT

COMMIT_NOTE_FORMAT = 1
LIMIT_NOTE_BYTES = 4_000
"""Below what brokers take unless they are told otherwise, 4,096."""
ID_CHARACTERS = 8
"""How much of a topic's id is kept of topics that results go to: enough to tell one from the next."""


class TableSent(msgspec.Struct, frozen=True, array_like=True):
    """Up to where a table has folded one source and sent its results: the last offset, -1 for none, and the
    number of the next choice, 0 of one source. *changelog* is the beginning of its changelog's id.
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
    """Return as much of an id as a note keeps."""
    return topic_id[:ID_CHARACTERS]
