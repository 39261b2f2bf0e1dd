"""The replay of several sources gives the workers' results, whatever these had guessed, and names the source
of each change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.migrating import EarlierState, migrated
from holdfast.core.engine.positions import decode_position
from holdfast.core.engine.state.codec import APPLIED, TIMER_KINDS
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ChoicesError, MigrationError
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.result_rows import FoldSummary
from holdfast.pipeline.folds.results import Replayed, gather, schema_of
from tests.choices.world import (
    Journal,
    Log,
    Seen,
    Worker,
    logs_of,
    processor_of,
    recorded_of,
    written_log,
)

WIDTH = 2


def lived(seed: int, live: Journal | None = None) -> tuple[Journal, list[Log]]:
    """Return a worker's journal for random logs, and the logs."""
    rng = Random(seed)
    logs = [written_log(rng) for _ in range(WIDTH)]
    live = Journal() if live is None else live
    Worker(rng, logs, live).run()
    return live, logs


@dataclass
class Diary(Journal):
    """A journal that knows the state after each transaction."""

    states: list[dict[bytes, bytes]] = field(default_factory=list)

    def commit(self, changes: Changes) -> None:
        super().commit(changes)
        self.states.append(dict(self.store))


def batches(log: Log) -> list[tuple[Batch, int]]:
    return [(log.batch(at, at + 5), 1 << 24) for at in range(0, len(log.offsets), 5)]


def folded(logs: list[Log], recorded: list[Choice], **more: Any) -> Replayed:
    plan = FoldPlan(processor=processor_of(WIDTH), **more)
    ends = [log.offsets[-1] + 1 if log.offsets else 0 for log in logs]
    found = fold_partition(plan, 0, [batches(log) for log in logs], recorded, ends)
    summaries, results = gather(found, [0])
    return Replayed(
        processor="seen", version=1, engine="local", partitions=summaries, results=results, skipped=0
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_replay_comes_to_the_state_and_position_of_the_worker(seed: int) -> None:
    live, logs = lived(seed)
    limit = (0, 1 << 20)[seed % 2]  # the state is in a file, or in memory
    found = folded(logs_of(live, logs), recorded_of(live), memory_bytes=limit)
    (summary,) = found.partitions
    stored = live.store.get(APPLIED)
    assert stored is not None
    marker = decode_position(stored)
    assert summary.digest == live.store.digest()
    assert (list((summary.sources or {}).values()), summary.choices) == (list(marker.applied), marker.choices)
    assert summary.stream_ms == marker.stream_ms
    assert summary.event_ms == marker.event_ms
    assert summary.timers == sum(key[:1] in TIMER_KINDS for key in live.store)
    assert found.refused(0) == live.refused


def unchanged(rows: Rows[Seen], key: str, row: Seen) -> None:
    rows[key] = row


@pytest.mark.parametrize("seed", range(40))
def test_a_version_that_begins_with_rows_of_any_moment_comes_to_the_state_that_these_lead_to(
    seed: int,
) -> None:
    live = Diary()
    _, logs = lived(seed, live)
    second = replace(processor_of(WIDTH, 2), migrate={1: unchanged})
    whole = folded(logs_of(live, logs), recorded_of(live)).partitions[0]
    for state in Random(seed).sample(live.states, min(4, len(live.states))):
        marker = decode_position(state[APPLIED])
        stored = sorted((key, value) for key, value in state.items() if key != APPLIED)
        base = migrated(second, EarlierState(version=1, position=marker, stored=stored, lost={}))
        assert dict(base.base.sources) == dict(zip(second.topics, marker.applied, strict=True))
        left = [log.since(applied) for log, applied in zip(logs_of(live, logs), marker.applied, strict=True)]
        recorded = [each for each in recorded_of(live) if each.number >= marker.choices]
        (found,) = folded(left, recorded, bases={0: base}).partitions
        assert (found.digest, found.sources, found.choices) == (whole.digest, whole.sources, whole.choices)
        assert (found.stream_ms, found.event_ms) == (whole.stream_ms, whole.event_ms)


def test_a_version_of_other_sources_does_not_begin_with_these_rows() -> None:
    live = Diary()
    lived(3, live)
    other = replace(processor_of(WIDTH, 2), migrate={1: unchanged})
    other = replace(other, on=dict(reversed([*(other.on or {}).items()])))
    marker = decode_position(live.states[-1][APPLIED])
    with pytest.raises(MigrationError, match="its sources, or the globals that it reads, were others"):
        migrated(other, EarlierState(version=1, position=marker, stored=(), lost={}))


def test_a_change_has_its_topic_and_a_tick_none() -> None:
    live, logs = lived(3)
    processor = processor_of(WIDTH)
    found = folded(logs_of(live, logs), recorded_of(live), transitions=True)
    table = found.table("transitions", processor)
    assert table.schema == schema_of("transitions", processor)
    assert {"north", "east"} <= set(table.column("topic").to_pylist())
    assert "topic" in found.table("refused", processor).column_names
    assert folded(logs_of(live, logs), recorded_of(live)).digest == found.digest


def test_without_one_of_the_choices_there_is_no_replay() -> None:
    live, logs = next(each for seed in range(40) if len((each := lived(seed))[0].choices) > 2)
    recorded = recorded_of(live)
    with pytest.raises(ChoicesError, match="choice 1 is missing, 2 comes next"):
        folded(logs_of(live, logs), [recorded[0], *recorded[2:]])


def test_summaries_of_one_source_have_no_columns_of_several() -> None:
    import msgspec

    assert not {"sources", "choices"} & msgspec.to_builtins(FoldSummary(partition=0)).keys()
