"""The messages between a table's worker and its clients: replies, refusals, limits, and the text form of
staleness.

Bodies are MessagePack or JSON maps of the same shape. In MessagePack a row is its stored bytes, so that the
client decodes it with its own row type; in JSON it is rendered for people.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from holdfast.core.untrusted import careful

JSON, MSGPACK = "application/json", "application/msgpack"
TOPIC_IDS = "Holdfast-Topic-Ids"
"""The header by which a query says to which topics its at-offset belongs: TOPIC:ID, separated by commas.
Workers that do not know it read the offset alone.
"""

LIMIT_BODY_BYTES = 8 << 20
LIMIT_REPLY_BYTES = 8 << 20
LIMIT_KEYS = 10_000
LIMIT_PAGE_ROWS = 10_000
PAGE_ROWS = 1_000
LIMIT_INSPECTION = 64
LIMIT_PARTITIONS = 100_000
LIMIT_WAIT_MS = 60_000
WAIT_MS = 10_000

Role = Literal["active", "standby", "earlier"]
"""The role of the answering worker for the partition: it folds it, it keeps a copy, or it keeps the rows of
an earlier version.
"""
Reason = Literal[
    "moved",
    "not_ready",
    "offset_timeout",
    "other_topic",
    "no_such_table",
    "no_token",
    "wrong_token",
    "forbidden",
    "malformed",
    "too_large",
    "failed",
]


AtOffset: TypeAlias = int | Mapping[str, int]
"""The offset that an answer must reflect: of the source, or of some sources by topic."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of every reply: the answer reflects everything in *partition* up to source offset
    *as_of_offset*, perhaps more.

    For a table of several sources, *as_of* has the offset of each, and *as_of_offset* the number of these
    offsets in all, less one. *stream_ms* is the highest append time among those records, -1 for none.
    *partial* has, for each source whose head was deleted before this version began, the first offset that was
    there: nothing before is reflected. *topic_ids* are Kafka's ids of the sources, where they are known: an
    offset means something in that topic alone, not in another of its name.
    """

    table: str
    version: int
    partition: int
    role: Role
    as_of_offset: int
    stream_ms: int
    as_of: Mapping[str, int] = {}
    partial: Mapping[str, int] = {}
    topic_ids: Mapping[str, str] = {}


class RowReply(Reply, frozen=True, kw_only=True):
    """One row. A missing row is an answer: *found* is False."""

    key: str
    found: bool
    value: bytes | None


class RowsReply(Reply, frozen=True, kw_only=True):
    """Rows of the keys asked for, in that order, None for a missing one.

    Fewer than asked for, and at least one, when the rest would not fit `LIMIT_REPLY_BYTES`: ask for the rest
    again.
    """

    values: Annotated[list[bytes | None], msgspec.Meta(max_length=LIMIT_KEYS)]


class PageReply(Reply, frozen=True, kw_only=True):
    """Rows in the order of their keys' UTF-8 bytes.

    *after* continues the scan; None when there is no more. A page of windows may be empty and have an
    *after*: it ends when so many rows were looked at as a page may hold.
    """

    rows: Annotated[list[tuple[str, bytes]], msgspec.Meta(max_length=LIMIT_PAGE_ROWS)]
    after: str | None


class GlobalReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of every reply of a worker's copy of a global table: its *position*, the last offset in it
    of each partition of the table's topic (-1 for none), and *stream_ms*, the highest append time among those
    records, -1 for none. *topic_ids* has Kafka's id of the topic, where it is known.
    """

    table: str
    position: Annotated[list[int], msgspec.Meta(max_length=LIMIT_PARTITIONS)]
    stream_ms: int
    topic_ids: Mapping[str, str] = {}


class GlobalRowReply(GlobalReply, frozen=True, kw_only=True):
    """One row. A missing row is an answer: *found* is False."""

    key: str
    found: bool
    value: bytes | None


class GlobalRowsReply(GlobalReply, frozen=True, kw_only=True):
    """Rows as those of `RowsReply`."""

    values: Annotated[list[bytes | None], msgspec.Meta(max_length=LIMIT_KEYS)]


class GlobalPageReply(GlobalReply, frozen=True, kw_only=True):
    """Rows of all partitions in the order of their keys' UTF-8 bytes; *after* continues, None when there is
    no more.
    """

    rows: Annotated[list[tuple[str, bytes]], msgspec.Meta(max_length=LIMIT_PAGE_ROWS)]
    after: str | None


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that asks for many rows."""

    keys: list[str]


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that asks for a page of a scan; for prefixes and keys that do not fit a URL."""

    prefix: str = ""
    after: str | None = None
    limit: int = PAGE_ROWS


class WindowsPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that asks for a page of the windows of a table, of one *key* or of all: those that start at or
    after *since_ms* and before *until_ms*, if given. The reply is a `PageReply`.
    """

    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    after: str | None = None
    limit: int = PAGE_ROWS


class Inspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that asks for the digest of a partition.

    *inspection* is the asker's own name for the state that is pinned by it.
    """

    inspection: str


class InspectReply(Reply, frozen=True, kw_only=True):
    """The digest of all rows and timers served, exactly as of *as_of_offset*; its changelog holds that
    state before *changelog_next*. Of several sources, or with event time, *position* is the marker as stored.
    """

    inspection: str
    changelog_next: int
    digest: str
    rows: int
    timers: int
    position: bytes = b""


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that asks for rows and timers of an inspected state as they are stored, in the order of
    their keys.
    """

    inspection: str
    after: bytes = b""
    limit: int = PAGE_ROWS


class StoredReply(Reply, frozen=True, kw_only=True):
    """Stored keys and values. *after* continues; None when there is no more."""

    rows: Annotated[list[tuple[bytes, bytes]], msgspec.Meta(max_length=LIMIT_PAGE_ROWS)]
    after: bytes | None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer, and what to do. *owner* is set when another worker has it."""

    error: Reason
    message: str
    owner: str | None = None
    retry_after_ms: int | None = None


class Staleness(msgspec.Struct, frozen=True):
    """The most that a standby may lag and still answer: in source offsets, or in ms, or both.

    >>> Staleness.parse("250ms"), Staleness.parse("100"), Staleness.parse("100,250ms")
    (Staleness(offsets=None, ms=250), Staleness(offsets=100, ms=None), Staleness(offsets=100, ms=250))
    >>> str(Staleness.of(timedelta(seconds=2))), str(Staleness.of(50)), str(Staleness(offsets=1, ms=2))
    ('2000ms', '50', '1,2ms')
    """

    offsets: int | None = None
    ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Staleness:
        """Read what `str` writes; raises ValueError with the accepted forms."""
        match = _STALENESS.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:40]!r}; write 100 (offsets), 250ms, or 100,250ms")
        offsets, ms = match[1] or match[3], match[2] or match[4]
        return cls(int(offsets) if offsets else None, int(ms) if ms else None)

    @classmethod
    def of(cls, bound: Staleness | timedelta | int) -> Staleness:
        """Return the bound a caller states: a time, or a number of source offsets."""
        if isinstance(bound, timedelta):
            bound = cls(ms=int(bound / timedelta(milliseconds=1)))
        elif isinstance(bound, int):
            bound = cls(offsets=bound)
        if (bound.offsets or 0) < 0 or (bound.ms or 0) < 0 or bound == _UNBOUND:
            raise ValueError(f"staleness {bound}: state a bound of 0 or more")
        return bound

    def __str__(self) -> str:
        parts = ("" if self.offsets is None else f"{self.offsets}", "" if self.ms is None else f"{self.ms}ms")
        return ",".join(part for part in parts if part)


_STALENESS = re.compile(r"([0-9]{1,18})|([0-9]{1,18})ms|([0-9]{1,18}),([0-9]{1,18})ms")
_UNBOUND = Staleness()


class EarlierClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of which one worker says that it keeps an earlier version readable; none while it has
    yet to restore them.
    """

    version: int
    partitions: list[int] = []


class TableClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of one table that one worker says it holds. Those of *active* that are *building* have
    not caught up with the version that is current, and do not answer yet; those of these that are *waiting*
    have folded all that there is, and wait for partitions of their writers that old workers have. *partial*
    lists those that began after a hole in a source.
    """

    version: int
    partitions: int
    active: list[int] = []
    standby: list[int] = []
    building: list[int] = []
    earlier: EarlierClaims | None = None
    partial: list[int] = []
    waiting: list[int] = []


class WorkerClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a worker's record on the workers topic (its key is *url*, a tombstone says it has left).

    Written whenever the worker has opened what a rebalance gave it. Of two claims on an active partition, the
    higher *generation* is the newer.
    """

    url: str
    generation: int
    started_ms: int
    at_ms: int
    tables: Mapping[str, TableClaims] = {}


encode = msgspec.msgpack.Encoder().encode
encode_json = msgspec.json.Encoder(enc_hook=str).encode
decode_keys = careful(msgspec.msgpack.Decoder(Keys).decode)
decode_keys_json = careful(msgspec.json.Decoder(Keys).decode)
decode_page = careful(msgspec.msgpack.Decoder(Page).decode)
decode_page_json = careful(msgspec.json.Decoder(Page).decode)
decode_windows = careful(msgspec.msgpack.Decoder(WindowsPage).decode)
decode_windows_json = careful(msgspec.json.Decoder(WindowsPage).decode)
decode_inspect = careful(msgspec.msgpack.Decoder(Inspect).decode)
decode_inspect_json = careful(msgspec.json.Decoder(Inspect).decode)
decode_stored = careful(msgspec.msgpack.Decoder(Stored).decode)
decode_stored_json = careful(msgspec.json.Decoder(Stored).decode)
decode_inspect_reply = careful(msgspec.msgpack.Decoder(InspectReply).decode)
decode_stored_reply = careful(msgspec.msgpack.Decoder(StoredReply).decode)
decode_rows_reply = careful(msgspec.msgpack.Decoder(RowsReply).decode)
decode_page_reply = careful(msgspec.msgpack.Decoder(PageReply).decode)
decode_global_rows_reply = careful(msgspec.msgpack.Decoder(GlobalRowsReply).decode)
decode_global_page_reply = careful(msgspec.msgpack.Decoder(GlobalPageReply).decode)
decode_refusal = careful(msgspec.msgpack.Decoder(Refusal).decode)
decode_worker = careful(msgspec.json.Decoder(WorkerClaims).decode)


def readable_bytes(content: bytes) -> str:
    """Return bytes as JSON carries them here: base64."""
    return b64encode(content).decode()


def render(value: Any) -> Any:
    """Return a row as JSON can show it: structs as objects even when they are stored as arrays, bytes as
    base64.

    >>> class Point(msgspec.Struct, array_like=True, tag=True):
    ...     x: int
    ...     y: tuple[int, ...] = ()
    >>> render({"at": Point(1, (2, 3))})
    {'at': {'type': 'Point', 'x': 1, 'y': [2, 3]}}
    """
    if isinstance(value, msgspec.Struct):
        shown = {
            field.encode_name: render(getattr(value, field.name)) for field in msgspec.structs.fields(value)
        }
        config = value.__struct_config__
        return shown if config.tag is None else {config.tag_field or "type": config.tag, **shown}
    if isinstance(value, Mapping):
        return {
            name if isinstance(name, str) else str(msgspec.to_builtins(name)): render(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [render(each) for each in value]
    return msgspec.to_builtins(value, enc_hook=str)
