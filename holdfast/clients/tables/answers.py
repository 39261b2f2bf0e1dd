"""Answers: a row with the offset it reflects, and the terms a caller sets for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.clients.tables.questions import GlobalQuestion, Question
from holdfast.core.engine.declared.processor import Processor, table_name
from holdfast.core.engine.query_wire import (
    AtOffset,
    GlobalReply,
    Keys,
    Page,
    Reply,
    Role,
    Staleness,
    WindowsPage,
    encode,
)
from holdfast.errors import QueryError

T = TypeVar("T")

NOWHERE = -1
_WEAKEST_FIRST: tuple[Role, ...] = ("earlier", "standby", "active")


class ReachedOffsets(msgspec.Struct, frozen=True):
    """The reach of an answer: *offsets* of source partitions (of a table of several sources, of each by
    topic), and Kafka's ids of the topics that these are offsets of, by topic, where they are known.

    As `at_least` of a later query it asks for an answer that is not older. With the ids, that query ends with
    `OtherTopicError` if the topic was deleted and made again; without, it may wait for an offset that means
    something else now.
    """

    offsets: Mapping[int, AtOffset]
    topic_ids: Mapping[str, str] = {}


AtLeast: TypeAlias = tuple[int, AtOffset] | Mapping[int, AtOffset] | ReachedOffsets
"""A (source partition, offset) to be reflected in the answer, or several by partition: as returned to a
producer when it had written. Of a table of several sources, the offset is one by topic: `(3, {"orders":
17})`. Or what an earlier answer had `reached`.
"""

Bound: TypeAlias = Staleness | timedelta | int
"""The allowed staleness of a standby's answer: a time, or a number of source offsets."""


class Answer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A row and the offset it reflects: everything in source *partition* up to *as_of_offset*, perhaps more.

    *value* is None when there is no such row. When every partition was asked in vain, *partition* and
    *as_of_offset* are NOWHERE (-1), and *positions* has each partition's offset. So it is for a global table,
    where *role* is "copy", *positions* are those of the copy in the partitions of its topic, and
    *as_of_offset* is how many offsets these are in all, less one. *stream_ms* is the highest append time the
    answer reflects (the lowest of those, when several partitions were asked), -1 for none. Of a table of
    several sources, *as_of* has the offset of each, and *as_of_offset* is how many offsets these are in all,
    less one. *reached* says how far the answer is true as `at_least` of a later query takes it. *partial* is
    True if records of a source were deleted before this version of the table began,
    and are not reflected (of several partitions, in one of them). *version* is the processor's; 0 for a
    global table. *role* "earlier" is the rest of a version that is no longer folded: it does not change.
    *routed* is True if there is no row in the partition of the table's route, the only one that was asked: a
    producer that partitions records otherwise may have put it in another, which a scan shows.
    """

    key: str
    value: T
    partition: int
    as_of_offset: int
    stream_ms: int
    role: Role | Literal["copy"]
    positions: Mapping[int, int]
    as_of: Mapping[str, int] = {}
    reached: ReachedOffsets = ReachedOffsets({})
    version: int = 0
    partial: bool = False
    routed: bool = False


class ReadTerms:
    """The conditions that the caller sets for every answer of one call."""

    __slots__ = ("at_least", "deadline_s", "staleness", "topic_ids")

    def __init__(self, at_least: AtLeast | None, max_staleness: Bound | None, deadline_s: float) -> None:
        self.topic_ids = at_least.topic_ids if isinstance(at_least, ReachedOffsets) else {}
        given = at_least.offsets if isinstance(at_least, ReachedOffsets) else at_least
        self.at_least: Mapping[int, AtOffset] = (
            {given[0]: given[1]} if isinstance(given, tuple) else given or {}
        )
        self.staleness = None if max_staleness is None else Staleness.of(max_staleness)
        self.deadline_s = deadline_s

    def check(self, partitions: Iterable[int]) -> None:
        """A condition on a partition that is not asked would be dropped in silence; that is a slip of the
        caller.
        """
        asked = set(partitions)
        if self.at_least and asked.isdisjoint(self.at_least):
            raise ValueError(
                f"at_least names partition {sorted(self.at_least)}, but the rows asked for live in"
                f" {sorted(asked)}"
            )

    def question(
        self,
        processor: Processor[Any, Any],
        table: str,
        partition: int,
        verb: str,
        body: Keys | Page | WindowsPage,
    ) -> Question:
        encoded = _encoded(f"table {table_name(processor, table)}", body)
        at_offset = self.at_least.get(partition)
        return Question(
            processor=processor,
            table=table,
            partition=partition,
            verb=verb,
            body=encoded,
            at_offset=_not_below_0(at_offset),
            topic_ids=self.topic_ids,
            staleness=self.staleness,
        )

    def of_global(self, name: str, verb: str, body: Keys | Page, first: int) -> GlobalQuestion:
        """Return a question about a global table; QueryError for terms that copies do not know."""
        if self.staleness is not None:
            raise QueryError(
                f"global table {name}: each worker has a copy and none is a standby, so max_staleness says"
                " nothing; leave it out"
            )
        offsets = {at: max(0, offset) for at, offset in self.at_least.items() if isinstance(offset, int)}
        if len(offsets) < len(self.at_least):
            raise QueryError(
                f"global table {name} has one topic: write at_least as an offset by partition, as in {{0:"
                " 17}"
            )
        return GlobalQuestion(
            table=name,
            verb=verb,
            body=_encoded(f"global table {name}", body),
            at_offset=offsets,
            topic_ids=self.topic_ids,
            first=first,
        )


def _encoded(whose: str, body: Keys | Page | WindowsPage) -> bytes:
    try:
        return encode(body)
    except UnicodeEncodeError as error:
        raise QueryError(f"{whose}: keys are Unicode text, this one is not ({error.reason})") from error


def _not_below_0(offset: AtOffset | None) -> AtOffset | None:
    if offset is None or isinstance(offset, int):
        return None if offset is None else max(0, offset)
    return {topic: max(0, each) for topic, each in offset.items()} or None


def _reached(folded: Mapping[int, AtOffset], topic_ids: Mapping[str, str]) -> ReachedOffsets:
    """Return how far a reply is true, without partitions and topics of which nothing was folded."""
    offsets = {
        partition: offset
        if isinstance(offset, int)
        else {at: each for at, each in offset.items() if each >= 0}
        for partition, offset in folded.items()
    }
    held = {partition: offset for partition, offset in offsets.items() if offset not in (NOWHERE, {})}
    return ReachedOffsets(held, topic_ids)


def answering(decode: Callable[[bytes], Any], reply: Reply) -> Callable[[str, bytes | None], Answer[Any]]:
    """Return a function that makes an answer of each row of *reply*."""
    positions = MappingProxyType({reply.partition: reply.as_of_offset})
    folded = reply.as_of or reply.as_of_offset
    reached = _reached({reply.partition: folded}, reply.topic_ids)

    def answer(key: str, value: bytes | None) -> Answer[Any]:
        return Answer(
            key=key,
            value=None if value is None else decode(value),
            partition=reply.partition,
            as_of_offset=reply.as_of_offset,
            stream_ms=reply.stream_ms,
            role=reply.role,
            positions=positions,
            as_of=reply.as_of,
            reached=reached,
            version=reply.version,
            partial=bool(reply.partial),
        )

    return answer


def answering_of_copy(
    decode: Callable[[bytes], Any], reply: GlobalReply
) -> Callable[[str, bytes | None], Answer[Any]]:
    """Return a function that makes an answer of each row of a copy's *reply*."""
    positions = MappingProxyType(dict(enumerate(reply.position)))
    counted = sum(offset + 1 for offset in reply.position) - 1
    reached = _reached(positions, reply.topic_ids)

    def answer(key: str, value: bytes | None) -> Answer[Any]:
        return Answer(
            key=key,
            value=None if value is None else decode(value),
            partition=NOWHERE,
            as_of_offset=counted,
            stream_ms=reply.stream_ms,
            role="copy",
            positions=positions,
            reached=reached,
        )

    return answer


def first_found(partials: Iterable[Mapping[str, Answer[Any]]]) -> dict[str, Answer[Any]]:
    """Return one answer a key of those from several partitions; a row in two of them is a question without
    one answer.
    """
    merged: dict[str, Answer[Any]] = {}
    for partial in partials:
        for key, answer in partial.items():
            before = merged.get(key)
            merged[key] = answer if before is None else _merged(before, answer)
    return merged


def _merged(one: Answer[Any], other: Answer[Any]) -> Answer[Any]:
    positions = MappingProxyType({**one.positions, **other.positions})
    reached = ReachedOffsets(
        {**one.reached.offsets, **other.reached.offsets},
        {**one.reached.topic_ids, **other.reached.topic_ids},
    )
    if one.value is not None and other.value is not None:
        raise QueryError(
            f"key {one.key[:80]!r} has rows in partitions {one.partition} and {other.partition}: say which"
            " with `partition`"
        )
    if one.value is None and other.value is None:
        return Answer(
            key=one.key,
            value=None,
            partition=NOWHERE,
            as_of_offset=NOWHERE,
            stream_ms=min(one.stream_ms, other.stream_ms),
            role=next((role for role in _WEAKEST_FIRST if role in (one.role, other.role)), one.role),
            positions=positions,
            reached=reached,
            version=one.version,
            partial=one.partial or other.partial,
        )
    found = one if one.value is not None else other
    return msgspec.structs.replace(found, positions=positions, reached=reached)
