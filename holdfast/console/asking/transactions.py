"""Transactions of a cluster: what each transactional id has come to, and which transactions hang. Asked in a
process of its own, since the coordinators' log is folded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config import Settings

LIMIT_IDS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLine:
    """A transactional id as its coordinator last wrote it: *partitions* are those of its last transaction;
    times in ms, -1 for none.
    """

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    partitions: int
    started_ms: int
    updated_ms: int
    timeout_ms: int
    committed: int
    aborted: int
    fenced: int

    @property
    def ongoing(self) -> bool:
        return self.state == "ongoing"


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingLine:
    """A transaction whose end is lost, from *offset* of a partition on; *decided* is its coordinator's
    decision, None if unknown.
    """

    topic: str
    partition: int
    offset: int
    producer_id: int
    epoch: int
    transactional_id: str | None
    decided: str | None
    decided_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsAnswer:
    """The first LIMIT_IDS of *total* ids that contain the text asked for, those with an ongoing transaction
    first; and the hanging transactions.
    """

    ids: Sequence[TransactionLine]
    total: int
    hanging: Sequence[HangingLine]


def answer_transactions(settings: Settings, topics: Sequence[str], wanted: str) -> TransactionsAnswer:
    """Return the ids that contain *wanted*, and what hangs in *topics*."""
    from holdfast.core.broker_logs.folds import transactions_log
    from holdfast.pipeline.broker_rows import rows_of

    found = [
        _line(key.removeprefix("t/"), row)
        for _, key, row in rows_of(settings, transactions_log())
        if wanted in key.removeprefix("t/")
    ]
    found.sort(key=lambda each: (not each.ongoing, each.transactional_id))
    return TransactionsAnswer(
        ids=found[:LIMIT_IDS], total=len(found), hanging=asyncio.run(_hanging(settings, topics))
    )


def _line(name: str, row: Any) -> TransactionLine:
    noted = row.noted
    return TransactionLine(
        transactional_id=name,
        state=noted.state.name.lower().replace("_", "-"),
        producer_id=noted.producer_id,
        epoch=noted.epoch,
        partitions=len(noted.partitions),
        started_ms=noted.started_ms,
        updated_ms=noted.updated_ms,
        timeout_ms=noted.timeout_ms,
        committed=row.committed,
        aborted=row.aborted,
        fenced=row.fenced,
    )


async def _hanging(settings: Settings, topics: Sequence[str]) -> list[HangingLine]:
    from holdfast.clients.topics.admin import Admin
    from holdfast.kafka.requests.raw_log import RawLog
    from holdfast.pipeline.hanging import Hanging

    there = await asyncio.to_thread(lambda: Admin(settings).cluster(topics).topics)
    async with RawLog(settings) as raw:
        found = await Hanging(settings, raw).find([each for each in topics if each in there])
    return [
        HangingLine(
            topic=each.transaction.topic,
            partition=each.transaction.partition,
            offset=each.transaction.first_offset,
            producer_id=each.transaction.producer_id,
            epoch=each.transaction.epoch,
            transactional_id=None if each.decided is None else each.decided.transactional_id,
            decided=None if each.decided is None else "commit" if each.decided.commit else "abort",
            decided_ms=None if each.decided is None else each.decided.at_ms,
        )
        for each in found
    ]
