"""A commit of a whole partition: what the broker and the store get, and how few calls lie between."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.agents.partitions.batches.intake import LogIntake
from holdfast.agents.partitions.batches.runner import Runner
from holdfast.agents.partitions.types import FoldLimits
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.tables.partition import Partition
from holdfast.tables.rocks import Budget
from holdfast.tables.state import Environment
from tests.agents.partitions.fold_events import event_of
from tests.agents.partitions.test_runner import Host, ended
from tests.tables.test_producer import ScriptedProducer

MOST_FRAMES = 6
"""Calls between the runner's transaction and the end of the broker's."""


def count(rows: Rows[int], event: bytes, at_ms: int) -> None:
    rows["seen"] = rows.get("seen", 0) + 1


COUNT = Processor(name="counts", source="events", decode=bytes, fold=count, row=int)


class CountingProducer(ScriptedProducer):
    """Notes the calls that led to the end of a transaction."""

    frames: list[str]

    async def end(self, *, commit: bool) -> None:
        await super().end(commit=commit)
        frame: FrameType | None = sys._getframe(1)
        self.frames = []
        while frame is not None and frame.f_code is not Runner._transact.__code__:
            self.frames.append(frame.f_code.co_qualname)
            frame = frame.f_back
        assert frame is not None, "a runner's transaction"


def test_few_calls_lie_between_a_transaction_and_its_end(tmp_path: Path) -> None:
    made: list[CountingProducer] = []

    def producer(transactional_id: str) -> CountingProducer:
        made.append(CountingProducer(transactional_id))
        return made[-1]

    async def run() -> None:
        host: Any = Host()
        environment = Environment(
            app="shop",
            data_dir=tmp_path,
            producer=producer,
            budget=Budget.of(8 << 20, 8 << 20),
            cluster_id="c",
            changelog_ids={},
            cache_rows=1_000,
            tombstones_kept_ms=0,
        )
        part = Partition(COUNT, 0, environment, lambda part: None, lambda: True)
        await part.owner.fence(1)
        part.activate()
        limits = FoldLimits(
            transaction_bytes=1 << 20,
            commit_timeout_s=5,
            later_timeout_s=5,
            quarantine_topic="quarantine",
            quarantine_limit=0,
        )
        runner = Runner(host, part, LogIntake(host, part, 1 << 20), limits)
        runner.enqueue(event_of(0, [b"a", b"b"]))
        await ended(runner)
        assert (host.acked, host.failures, part.applied) == (1, [], 1)
        await part.owner.close_writer()
        part.close()

    asyncio.run(run())
    assert len(made[-1].frames) <= MOST_FRAMES, made[-1].frames
