"""The writer of a changelog outside a worker: it fences the writer before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import FencedError
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.tables.changelog import ChangelogWriter

TRANSACTION_S = 300.0
"""For as many rows as a partition may have: all of them change at once."""
FENCE_S = 60.0


@asynccontextmanager
async def fenced_writer(
    processor: Processor[Any, Any], settings: Settings, partition: int, *, beside: bool = False
) -> AsyncIterator[ChangelogWriter]:
    """Give the writer of a partition of a table: a worker, or a bootstrap, that runs all the same is refused
    from here on. With *beside* workers of earlier versions are not, and a worker of this one until it has
    begun the partition.
    """
    app = settings.app
    ids = [] if beside else [processor.transactional_id(app, partition)]
    if beside or processor.hands_over:
        ids.insert(0, processor.builder_id(app, partition))
    connect = connector(settings, timeout_s=settings.request_timeout_s)
    producer = producers(connect, transaction_timeout_s=TRANSACTION_S)
    changelog = processor.changelog(app)
    writers = [ChangelogWriter(producer(each), changelog=changelog, partition=partition) for each in ids]
    try:
        for each in writers:
            await each.fence(FENCE_S)
        yield writers[-1]
    except FencedError as error:
        raise FencedError(
            f"a worker, or another command, has taken partition {partition} of {processor.table} meanwhile,"
            f" and nothing was written to it ({error}): run this again, which leaves alone what has a state"
        ) from error
    finally:
        for each in writers:
            await each.close()
