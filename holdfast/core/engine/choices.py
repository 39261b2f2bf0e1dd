"""Choices of a processor with several sources, which record the decisions that the logs leave open.

A worker folds the records of its sources in *canonical order*, which is a function of the logs:

    (highest time so far in the record's source partition, number of the source, offset)

The time is the event's own if the source has one (`Source(time=...)`), else the append time. The highest
so far, because the clock of a new leader may go back, and events are out of order; where a source has event
times, only records after the last choice count. So the next record is always the one of the least time
among the first of all sources.

Two things are not in the logs: that a record was folded before another had shown up that should have come
first (a *barrier*), and the time of the clock (a *tick*). Each is a choice: a record of
`{app}-{processor}-choices`, in the partition of the sources, in the Kafka transaction of the records folded
after it. So any reader that folds the same logs again, and obeys the choices, folds the same sequence.

A choice says by which times the records before it were ordered, since the choice before: those of formats 1
and 2 by append time alone, as all were before event times counted. For records after the last choice the
marker says it.

Choices are numbered from 0 without a gap, whatever the version of the processor that made them. All formats
are arrays of MessagePack; all integers are signed 64 bit. A processor that reads globals has one kind of
choice more. Each kind has a format of its own, so that an older version refuses it:

| format | fields |
|---|---|
| 1 | format, number, sources, applied, tick_ms |
| 2 | those of 1, globals |
| 3 | those of 1, by_event |
| 4 | those of 1, globals, by_event |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.engine.declared.global_tables import LIMIT_GLOBALS
from holdfast.core.engine.declared.sources import LIMIT_SOURCES
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChoicesError

_Offsets = Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(min_length=1, max_length=LIMIT_SOURCES)]
_Vectors = Annotated[tuple[tuple[Annotated[int, Meta(ge=-1)], ...], ...], Meta(max_length=LIMIT_GLOBALS)]


class Choice(msgspec.Struct, frozen=True):
    """A decision: fold up to *applied*, the last offset of each source (-1 for none), before anything else;
    then, unless it is None, the clock says *tick_ms*. With *globals*, these are then where they say: for each
    that the processor reads, in their order, the last offset applied of each partition.

    The records before it were ordered by their own times: those of the sources whose bits are set in
    *by_event*, bit 0 for the first; those of the others by append time. *sources* is the fingerprint of the
    sources' names in order, without which offsets mean nothing.
    """

    number: Annotated[int, Meta(ge=0)]
    sources: int
    applied: _Offsets
    tick_ms: int | None = None
    globals: _Vectors = ()
    by_event: Annotated[int, Meta(ge=0, lt=1 << LIMIT_SOURCES)] = 0

    @property
    def is_barrier(self) -> bool:
        """Return whether all it decides is the order of records."""
        return self.tick_ms is None and not self.globals


_FIELDS = {
    (False, False): (1, ("number", "sources", "applied", "tick_ms")),
    (True, False): (2, ("number", "sources", "applied", "tick_ms", "globals")),
    (False, True): (3, ("number", "sources", "applied", "tick_ms", "by_event")),
    (True, True): (4, ("number", "sources", "applied", "tick_ms", "globals", "by_event")),
}
_NAMES = dict(_FIELDS.values())
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def encode_choice(choice: Choice) -> bytes:
    """Return the value of a record of the choices topic; its key is None."""
    kind, names = _FIELDS[bool(choice.globals), bool(choice.by_event)]
    return _encode([kind, *(getattr(choice, name) for name in names)])


def decode_choice(value: bytes | None) -> Choice:
    """Return the choice in *value*; raises ChoicesError for bytes that no worker of this format wrote."""
    if value is None:
        raise ChoicesError("choice without a value: choices are part of the log and must not be deleted")
    try:
        kind, *read = _decode(value)
        if type(kind) is not int:
            raise TypeError(f"format {kind!r:.80}")
        if kind not in _NAMES:
            raise ChoicesError(
                f"choice of format {kind}, this version reads {min(_NAMES)} to {max(_NAMES)}: upgrade the"
                " workers"
            )
        found = dict(zip(_NAMES[kind], read, strict=False))
        if any(name not in ("number", "tick_ms") and not found.get(name) for name in _NAMES[kind][2:]):
            raise TypeError(f"format {kind} lacks a field")
        return msgspec.convert(found, Choice)
    except (*UNFIT, KeyError, TypeError, ValueError) as error:
        raise ChoicesError(
            f"choice is malformed ({error}): this topic does not hold the choices of a processor"
        ) from error
