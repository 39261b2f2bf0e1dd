"""The recorded fleet of the Go library, loaded into a real broker and folded by two real workers, against the
library's own answers.

Each record is written when it arrived in the recording, and its claim is asked for as of that very record.
Then the moments at which the Go library was asked come by, and at each the table is asked for the same
claims. A worker is killed in the middle.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.tables.client import Answer, TableClient
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.compat import CompatClaim
from holdfast.core.claims.frames import ReleaseGroup, coordination_partition, decode
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.fixtures import SessionBroker
from tests.agents.fleet import Fleet, Writer
from tests.core.claims.test_capture import (
    ANSWERS,
    ARRIVED_MS,
    CAPTURE,
    LAG_MS,
    Difference,
    Record,
    agrees,
    explain,
    parted,
)
from tests.support.patience import DEADLINE_S
from tests.support.places import TESTDATA

PARTITIONS = 4
KILL_AT = 150
"""The number of records that are in when a worker is killed."""
CREATE_TIME = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "9223372036854775807",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "retention.ms": "-1",
}
"""The recording's times are kept, however long ago; a worker warns of such a topic."""


class Told:
    """The tables' states of each claim in the course of the recording."""

    def __init__(self) -> None:
        self.compat: dict[str, list[tuple[int, CompatClaim | None]]] = defaultdict(lambda: [(0, None)])
        self.guarded: dict[str, list[Claim | None]] = defaultdict(lambda: [None])
        self.differences: dict[Record, Difference] = {}

    def learn(self, record: Record, guarded: Claim | None, compat: CompatClaim | None) -> None:
        frame, key = decode(record.value), key_of(record)
        assert not isinstance(frame, ReleaseGroup)
        before = self.guarded[key][-1], self.compat[key][-1][1]
        self.guarded[key].append(guarded)
        self.compat[key].append((ARRIVED_MS[record.partition, record.offset], compat))
        if parted(guarded, compat):
            why = (
                None
                if guarded is None or compat is None
                else explain(frame, record.at_ms, before, (guarded, compat))
            )
            self.differences[record] = Difference(record, ", ".join(parted(guarded, compat)), why)

    def listed(self) -> str:
        """Return the differences of the views as tests/testdata lists them."""
        found = [self.differences[record] for record in CAPTURE if record in self.differences]
        listed = "".join(
            f"{at.partition}:{at.offset}  {at.value.decode()}\n      {fields}  <- {why}\n"
            for at, fields, why in found
        )
        return (
            "# After a record, what the guarded / the compat view holds about its claim, where they differ,"
            f" and why.\n{listed}"
        )


def key_of(record: Record) -> str:
    frame = decode(record.value)
    assert not isinstance(frame, ReleaseGroup)
    return claim_key(frame.group_id, frame.topic, frame.partition)


def moments() -> Iterator[tuple[list[Record], list[dict[str, Any]]]]:
    """Yield what arrived up to each moment at which the Go library was asked, and its answers then; last,
    what came after.
    """
    arriving = sorted(
        CAPTURE,
        key=lambda record: (ARRIVED_MS[record.partition, record.offset], record.partition, record.offset),
    )
    at = 0
    for now_ms, answers in groupby(
        sorted(ANSWERS, key=lambda each: int(each["now_ms"])), key=lambda each: int(each["now_ms"])
    ):
        until = bisect_left(
            arriving, now_ms + 1, key=lambda record: ARRIVED_MS[record.partition, record.offset]
        )
        yield arriving[at:until], list(answers)
        at = until
    yield arriving[at:], []


def judge(
    told: list[tuple[int, CompatClaim | None]], answer: Mapping[str, Any], now: CompatClaim | None
) -> str | None:
    """Return how the table agrees with an answer of the Go library, None when it does not.

    A running observer's answer may be as old as its polling: then what the table said at that time must
    agree.
    """
    if agrees(now, dict(answer)):
        return "at once"
    if answer["kind"] != "sample":
        return None
    recent = [
        row
        for at, (_, row) in enumerate(told)
        if at + 1 == len(told) or told[at + 1][0] > answer["now_ms"] - LAG_MS
    ]
    return "within the lag" if any(agrees(row, dict(answer)) for row in recent) else None


class Run:
    """The recording played into a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.writer, self.told = fleet, Writer(fleet.broker), Told()
        self.ends: dict[int, int] = {}
        self.found: Counter[str] = Counter()
        self.wrong: list[tuple[dict[str, Any], CompatClaim | None]] = []
        self.written = 0

    async def play(self) -> None:
        guarded, compat = self.fleet.processors
        async with TableClient(self.fleet.settings, self.fleet.processors) as tables:
            for records, answers in moments():
                for record in records:
                    await self._add(tables, record, guarded, compat)
                await self._compare(tables, answers, compat)

    async def _add(
        self,
        tables: TableClient,
        record: Record,
        guarded: Processor[Any, GuardedRow],
        compat: Processor[Any, CompatClaim],
    ) -> None:
        topic, key = self.fleet.settings.coordination_topic, key_of(record)
        place = self.writer.write(topic, record.value, partition=record.partition, timestamp_ms=record.at_ms)
        assert place == (record.partition, record.offset), "the recording's offsets are kept"
        self.ends[record.partition] = record.offset
        self.written += 1
        if self.written == KILL_AT:
            self.fleet.owner(compat.name, record.partition).kill()
        ours: Answer[GuardedRow | None] = await tables.get(guarded, key, at_least=place, timeout_s=DEADLINE_S)
        go: Answer[CompatClaim | None] = await tables.get(compat, key, at_least=place, timeout_s=DEADLINE_S)
        assert (ours.partition, ours.as_of_offset) == (go.partition, go.as_of_offset) == place
        assert ours.value is None or isinstance(ours.value, Claim)
        self.told.learn(record, ours.value, go.value)

    async def _compare(
        self, tables: TableClient, answers: list[dict[str, Any]], compat: Processor[Any, CompatClaim]
    ) -> None:
        if not answers:
            return
        by_key = {claim_key(each["group"], each["topic"], each["partition"]): each for each in answers}
        asked = {coordination_partition(each["topic"], PARTITIONS) for each in answers}
        at_least = {partition: offset for partition, offset in self.ends.items() if partition in asked}
        rows = await tables.get_many(compat, list(by_key), at_least=at_least or None, timeout_s=DEADLINE_S)
        for each in answers:
            key = claim_key(each["group"], each["topic"], each["partition"])
            row = rows[key]
            assert row.as_of_offset == self.ends.get(row.partition, -1), f"{key} as of {row.as_of_offset}"
            assert row.value == self.told.compat[key][-1][1], f"{key} changed without a record"
            how = judge(self.told.compat[key], each, row.value)
            if how is None:
                self.wrong.append((each, row.value))
            else:
                self.found[how] += 1


@pytest.mark.slow
def test_two_workers_agree_with_the_go_library_at_every_sample(broker: SessionBroker, tmp_path: Path) -> None:
    fleet = Fleet(
        broker, tmp_path, app="capture", partitions=PARTITIONS, standbys=1, compat_view=True
    ).create_topics(CREATE_TIME)
    try:
        first, second = fleet.worker().start(), fleet.worker().start()
        fleet.wait_spread(first, second)
        run = Run(fleet)
        asyncio.run(run.play())
        assert len(fleet.live) == 1, "one was killed"
        print(
            f"{len(ANSWERS)} answers of the Go library compared with the table: {dict(run.found)},"
            f" {len(run.wrong)} differ"
        )
        assert run.wrong == []
        assert run.found == {"at once": 1380, "within the lag": 11}
        assert (run.written, run.found.total()) == (len(CAPTURE), len(ANSWERS))
        print(f"{len(run.told.differences)} differences between the guarded and the compat view")
        assert run.told.listed() == (TESTDATA / "marshal-a.differences.txt").read_text()
        warned = [
            worker.said(rf"{fleet.settings.coordination_topic}.*CreateTime") for worker in (first, second)
        ]
        assert all(warned), "a source with clients' times is warned of"
    finally:
        fleet.close()


# -- the comparison can fail


def test_an_answer_that_the_table_never_gave_is_found() -> None:
    answer = next(each for each in ANSWERS if each["kind"] == "sample" and each["claimed"])
    fields = {
        f"{name}_s" if name.startswith("last_") else name: value for name, value in answer["claim"].items()
    }
    right = CompatClaim(**fields)
    ages: list[tuple[int, CompatClaim | None]] = [(0, None), (answer["now_ms"] - LAG_MS - 5_000, right)]
    assert judge(ages, answer, right) == "at once"
    other = CompatClaim(**{**fields, "current_offset": 10**9})
    assert judge([*ages, (answer["now_ms"] - 10, other)], answer, other) == "within the lag"
    assert judge([*ages, (answer["now_ms"] - LAG_MS - 10, other)], answer, other) is None, (
        "too old to be the observer's lag"
    )
    assert judge([*ages, (answer["now_ms"] - 10, other)], {**answer, "kind": "mark"}, other) is None


def test_another_difference_of_the_views_is_not_listed_as_the_known_one() -> None:
    told, record = Told(), CAPTURE[0]
    told.learn(record, None, CompatClaim())
    assert told.listed() != Told().listed()
    assert told.differences[record].why is None
