"""Writes the first state of a table that is made outside of its folds: a base, and the position after it."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.specs import base_spec
from holdfast.clients.topics.types import CreateTopic
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.migrating import Beginning
from holdfast.core.engine.positions import Position, counted, encode_position, offsets_by_topic
from holdfast.core.engine.state.base import BASE_FORMAT, TableBase
from holdfast.core.engine.state.codec import digest
from holdfast.pipeline.bootstrap.fencing import TRANSACTION_S, fenced_writer
from holdfast.pipeline.bootstrap.migration import parts_of


def beginning(
    processor: Processor[Any, Any], position: Position, rows: list[tuple[bytes, bytes]], origin: str
) -> Beginning:
    """Return the beginning with *rows*, in key order, at *position*; *origin* says whose they are."""
    base = TableBase(
        format=BASE_FORMAT,
        version=processor.version,
        position=encode_position(position),
        applied=counted(position.applied),
        entries=len(rows),
        digest=digest(rows),
        origin=origin,
        sources=tuple(offsets_by_topic(processor, position).items()),
    )
    return Beginning(base=base, position=position, stored=rows, lost={})


async def write_beginning(
    processor: Processor[Any, Any], settings: Settings, partition: int, found: Beginning
) -> None:
    """Fence earlier writers, and write the beginning of a partition in one transaction, to its changelog and
    to the topic of bases, which is made where there is none.
    """
    await asyncio.to_thread(_make_topic, processor, settings)
    async with fenced_writer(processor, settings, partition) as writer:
        await writer.write_parts(lambda: parts_of(processor, settings, partition, found), TRANSACTION_S)


def _make_topic(processor: Processor[Any, Any], settings: Settings) -> None:
    admin = Admin(settings)
    counts = admin.partition_counts()
    if processor.base(settings.app) not in counts:
        count = counts[processor.changelog(settings.app)]
        admin.apply([CreateTopic(spec=base_spec(settings, processor, count), partitions=count)])
