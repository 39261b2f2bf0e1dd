"""The marks of a step, by the rule that workers follow: how many, and how many bytes, a transaction and a
second: `python -P -m bench.marks [--seconds 20]`. No broker, and a clock that is set by hand.

Each partition of the step commits transactions of so many records, whose keys are spread over the partitions
of its topic; event time moves with each. Live, that is 25 times a second; over a backlog, 20,000 records
five times a second. Bytes are those of a batch that holds a mark alone, or what a mark adds to a batch of
records.
"""

from __future__ import annotations

import argparse
import random

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from holdfast import Json, Source
from holdfast.clock import Clock
from holdfast.core.engine.origins import StepReached, record_header
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.streams import Rekey
from holdfast.tables.marks import StepMarks

START_MS = 1_700_000_000_000
SHAPES = [
    ("live", 25, 1),
    ("live", 25, 100),
    ("backlog", 5, 20_000),
]


class SetClock(Clock):
    """A clock that shows what it is set to."""

    now_s = 0.0

    def now_ms(self) -> int:
        return START_MS + int(self.now_s * 1_000)

    def monotonic_s(self) -> float:
        return self.now_s


def step() -> Rekey[dict, dict]:  # type: ignore[type-arg]
    source = Source("views", Json(dict), time=lambda view: view["at"])
    return Rekey(name="by-user", source=source, by=lambda view: view["user"])


def size(records: list[Written]) -> int:
    """Return the bytes of one batch of *records*, 0 without any."""
    if not records:
        return 0
    builder = DefaultRecordBatchBuilder(2, 0, 1, 7, 0, 0, 1 << 24)
    for number, (key, value, headers) in enumerate(records):
        assert builder.append(number, START_MS, key, value, [*headers]) is not None
    return len(builder.build())


def measure(partitions: int, each_s: int, records: int, seconds: int) -> tuple[int, int, int]:
    """Return how many transactions there were, how many marks, and their bytes."""
    clock, chosen = SetClock(), random.Random(7)
    processor = step()
    told = [StepMarks(processor, partition, clock=clock) for partition in range(partitions)]
    transactions = marks = added = 0
    for number in range(seconds * each_s):
        for partition, each in enumerate(told):
            clock.now_s = (number + partition / partitions) / each_s
            at_ms = START_MS + int(clock.now_s * 1_000)
            hit = set(chosen.choices(range(partitions), k=min(records, 50 * partitions)))
            header = [record_header(partition, at_ms, at_ms)]
            there: list[list[Written]] = [
                [(b"user-123", b"x" * 50, header)] if target in hit else [] for target in range(partitions)
            ]
            before = [size(target) for target in there] if number >= each_s else []
            each.begin(StepReached(at_ms, False))
            each.add("by-user.v1", there, partitions)
            each.committed()
            if number >= each_s:  # the first second tells all partitions of all origins
                transactions += 1
                made = [(at, target) for at, target in enumerate(there) if target and target[-1][0] is None]
                marks += len(made)
                added += sum(size(target) - before[at] for at, target in made)
    return transactions, marks, added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    given = parser.parse_args()
    for partitions in (4, 16, 64):
        for kind, each_s, records in SHAPES:
            transactions, marks, added = measure(partitions, each_s, records, given.seconds)
            seconds = given.seconds - 1
            print(
                f"{partitions} x {partitions} {kind:8s} {records:6,d} records a transaction:"
                f" {marks / transactions:6.2f} marks a transaction, {marks / seconds:7,.0f} a second,"
                f" {added / seconds / 1e3:7.1f} kB a second, {added / max(1, marks):.0f} bytes a mark",
                flush=True,
            )


if __name__ == "__main__":
    main()
