"""The topics of a test: records that were piped into them and records that folds emitted, by partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.emits import Emit, Headers
from holdfast.errors import TopologyError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A record of a topic as its broker would keep it. *at_ms* is its append time."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class TopicLogs:
    """Topics of *partitions* partitions each; a topic begins with its first record."""

    def __init__(self, partitions: int) -> None:
        if type(partitions) is not int or partitions < 1:
            raise TopologyError(f"partitions={partitions!r:.100}: a topic has at least one")
        self.partitions = partitions
        self._logs: dict[str, list[list[TopicRecord]]] = {}
        self._read: dict[str, int] = {}
        self._order: dict[str, list[TopicRecord]] = {}

    def append(
        self,
        topic: str,
        at_ms: int,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> TopicRecord:
        """Append a record, to the partition of its key (as Java clients choose it) unless *partition* names
        one.

        One without a key goes to partition 0, where a producer would choose any.
        """
        if partition is None:
            partition = 0 if key is None else of_key(key, self.partitions)
        if not 0 <= partition < self.partitions:
            raise TopologyError(
                f"{topic} partition {partition}: this topology has {self.partitions} partitions, from 0; "
                "say Topology(..., partitions=...) for more"
            )
        log = self.of(topic)[partition]
        record = TopicRecord(
            topic=topic,
            partition=partition,
            offset=len(log),
            at_ms=at_ms,
            key=key,
            value=value,
            headers=headers,
        )
        log.append(record)
        self._order.setdefault(topic, []).append(record)
        return record

    def emit(self, emit: Emit, at_ms: int, *, into: int | None) -> TopicRecord:
        """Append what a fold emitted; *into* is the partition for one that names none."""
        key = emit.key.encode() if isinstance(emit.key, str) else emit.key
        partition = into if emit.partition is None else emit.partition
        return self.append(
            emit.topic, at_ms, key=key, value=emit.value, headers=tuple(emit.headers), partition=partition
        )

    def of(self, topic: str) -> list[list[TopicRecord]]:
        """Return the partitions of a topic."""
        if topic not in self._logs:
            self._logs[topic] = [[] for _ in range(self.partitions)]
        return self._logs[topic]

    def unread(self, topic: str) -> list[TopicRecord]:
        """Return the records appended to *topic* since this was last called, in the order they came."""
        everything = self._order.get(topic, [])
        fresh = everything[self._read.get(topic, 0) :]
        self._read[topic] = len(everything)
        return fresh


def as_bytes(what: str, value: Any) -> bytes | None:
    """Return a key or value as bytes: bytes and None as they are, text in UTF-8, all else as JSON.

    >>> as_bytes("value", {"cents": 1}), as_bytes("key", "ada"), as_bytes("value", None)
    (b'{"cents":1}', b'ada', None)
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise TopologyError(
            f"{what} {value!r:.200} cannot be written as JSON ({error}): give bytes"
        ) from error


def batch_of(inputs: tuple[Input, ...], records: list[TopicRecord]) -> Batch:
    """Return records of one partition as the columns that a decoder takes in."""
    columns = tuple([getattr(record, name) for record in records] for name in inputs)
    return Batch([each.offset for each in records], [each.at_ms for each in records], columns)


def batches_of(inputs: tuple[Input, ...], records: list[TopicRecord], size: int) -> Iterator[Batch]:
    """Yield the records in batches of *size*."""
    for start in range(0, len(records), size):
        yield batch_of(inputs, records[start : start + size])
