"""The writer of a changelog outside a worker: it fences whoever wrote before."""

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
    """Give the writer of a partition of a table: a worker that runs all the same is refused from here on. With *beside* workers of earlier versions
    are not, and a worker of this one until it has begun the partition.
    """
    app = settings.app
    connect = connector(settings, timeout_s=settings.request_timeout_s)
    producer = producers(connect, transaction_timeout_s=TRANSACTION_S)
    writer = ChangelogWriter(
        producer(
            processor.builder_id(app, partition) if beside else processor.transactional_id(app, partition)
        ),
        changelog=processor.changelog(app),
        partition=partition,
    )
    try:
        await writer.fence(FENCE_S)
        yield writer
    except FencedError as error:
        raise FencedError(
            f"a worker, or another command, has taken partition {partition} of {processor.table} meanwhile, and nothing was written to it ({error}): run this again, "
            "which leaves alone what has a state"
        ) from error
    finally:
        await writer.close()
