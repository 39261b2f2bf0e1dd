"""Reasons for late records: the report agrees with the fold's own counts, and names the origin, its
watermark, and the windows or joins that closed before.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.choices import Choice, encode_choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.traced import traced
from holdfast.core.engine.origins import UNHEARD, Mark, mark_headers, record_header
from holdfast.core.streams.emitting import final
from holdfast.core.streams.joins.within import JoinWithin
from holdfast.core.streams.steps import Rekey
from holdfast.core.streams.windowing.windowed import Windowed
from holdfast.core.streams.windowing.windows import Hopping, Session, Sliding, Tumbling, Window
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError, PipelineError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.histories.late import (
    AFTER_IDLE,
    LATE,
    MARK,
    PARTLY,
    REFUSED_OUTCOME,
    TAKEN,
    LateOptions,
    RecordPlace,
    WhyLate,
    late_records,
    why_late,
)
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

LOCAL = ReplayOptions(engine="local")
ALL = LateOptions(replay=LOCAL, limit=10_000)
HOUR, MINUTE = 3_600_000, 60_000


class View(msgspec.Struct, frozen=True):
    page: str
    at_ms: int


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=41) as running:
        yield running


@dataclass
class Written:
    """The topics of an application of one partition each, and a writer of records to them."""

    kafka: EmbeddedKafka

    def __post_init__(self) -> None:
        self.name = f"late-{ending()}"
        self.looks = f"{self.name}-looks"
        self.settings = Settings(
            app=self.name,
            kafka={key: str(value) for key, value in self.kafka.client_config().items()},
            request_timeout_s=60,
            stall_timeout_s=120,
        )
        self._producer = Producer(self.kafka.client_config())
        self.source = Source(self.looks, Json(View), time=lambda view: view.at_ms)
        self.step = Rekey(name=f"{self.name}-by", source=self.source, by=lambda view: view.page)

    def create(self, *topics: str) -> None:
        for topic in topics:
            self.kafka.create_topic(topic, config={"retention.ms": "-1"})

    def write(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]]) -> None:
        """Append records, each a millisecond after the one before it, from second 1 on."""
        for number, (key, value, headers) in enumerate(records):
            self._producer.produce(topic, value, key, 0, headers=[*headers], timestamp=1_000 + number)
        assert self._producer.flush(DEADLINE_S) == 0

    def windows(self, window: Window, **more: Any) -> Windowed[View, int]:
        merge = {"merge": lambda one, other: one + other} if isinstance(window, Session) else {}
        return Windowed(
            name="hours",
            window=window,
            by=lambda view: view.page,
            fold=lambda seen, view: (seen or 0) + 1,
            row=int,
            emit=final(f"{self.name}-hours"),
            **{"source": self.step, **merge, **more},
        )

    def late(self, processor: Processor[Any, Any], **more: Any) -> tuple[WhyLate, ...]:
        return late_records([self.step, processor], processor.name, self.settings, None, ALL).records

    def why(self, processor: Processor[Any, Any], offset: int, topic: str | None = None) -> WhyLate:
        place = RecordPlace(topic or processor.topics[0], 0, offset)
        return why_late([self.step, processor], processor.name, self.settings, place, LOCAL)


@pytest.fixture
def written(kafka: EmbeddedKafka) -> Written:
    return Written(kafka)


def view(at_ms: int, page: str = "home") -> bytes:
    return msgspec.json.encode(View(page, at_ms))


def told(at_ms: int, origin: int, before_ms: int, page: str = "home") -> tuple[bytes, bytes, Headers]:
    """Return a record that comes from a step, whose origin had reached *before_ms*."""
    header = record_header(origin, before_ms, max(at_ms, before_ms))
    return page.encode(), view(at_ms, page), (header,)


def marked(origin: int, watermark_ms: int, origins: int = 2, *, ends: bool = False) -> tuple[None, None, Any]:
    return None, None, mark_headers(Mark(origin, watermark_ms, ends, origins))


HOME = [
    marked(0, UNHEARD),
    marked(1, UNHEARD),
    told(10 * HOUR, 0, UNHEARD),
    told(14 * HOUR, 0, 10 * HOUR),
    told(9 * HOUR, 1, UNHEARD),  # in time by its own origin, which no other decides
    told(8 * HOUR, 1, 9 * HOUR + 10 * MINUTE),  # late by its own
    marked(1, 9 * HOUR + 10 * MINUTE, ends=True),
    told(9 * HOUR + 20 * MINUTE, 1, 9 * HOUR + 10 * MINUTE),  # late after idle
    told(9 * HOUR + 25 * MINUTE, 1, 9 * HOUR + 20 * MINUTE),  # and so is the next one
]


def test_a_record_is_late_by_its_own_origin_or_because_that_let_go(written: Written) -> None:
    hours = written.windows(Tumbling("1h", grace="5m"))
    written.create(hours.topics[0])
    written.write(hours.topics[0], HOME)
    own, idle, after = written.late(hours)
    assert own == WhyLate(
        topic=hours.topics[0],
        partition=0,
        offset=5,
        outcome=LATE,
        why=f"{written.looks}-1 was at 1970-01-01T09:10:00Z before it; its window ends at"
        " 1970-01-01T09:00:00Z, and is over from 1970-01-01T09:05:00Z on (grace 300 s)",
        key="home",
        time_ms=8 * HOUR,
        origin=f"{written.looks}-1",
        watermark_ms=9 * HOUR + 10 * MINUTE,
        stream_ms=9 * HOUR,
        start_ms=8 * HOUR,
        end_ms=9 * HOUR,
        grace_ms=5 * MINUTE,
        reach_ms=0,
        late_from_ms=9 * HOUR + 5 * MINUTE,
        over_from_ms=9 * HOUR + 5 * MINUTE,
    )
    assert (idle.offset, idle.outcome, idle.stream_ms, idle.let_go_ms) == (7, AFTER_IDLE, 14 * HOUR, 1_006)
    assert idle.why == (
        f"in time by its own origin: {written.looks}-1 was at 1970-01-01T09:10:00Z before it. But stream time"
        " was at 1970-01-01T14:00:00Z; its window ends at 1970-01-01T10:00:00Z, and is over from"
        f" 1970-01-01T10:05:00Z on (grace 300 s). {written.looks}-1 had let go at 1970-01-01T00:00:01.006Z,"
        f" since it stayed at the end of its log: the mark at {hours.topics[0]}/0/6 says so"
    )
    assert (after.offset, after.outcome, after.let_go_ms) == (8, AFTER_IDLE, 1_006)


def test_of_one_record_it_says_whether_it_was_late_and_why(written: Written) -> None:
    hours = written.windows(Tumbling("1h", grace="5m"))
    written.create(hours.topics[0])
    written.write(hours.topics[0], [*HOME, (b"home", b"{", ()), (b"home", None, ())])
    assert [written.why(hours, each.offset) for each in written.late(hours)] == [*written.late(hours)]
    taken = written.why(hours, 4)
    assert (taken.outcome, taken.watermark_ms, taken.stream_ms) == (TAKEN, None, None)
    assert taken.why == (
        f"in time: {written.looks}-1 had said nothing before it; its window ends at 1970-01-01T10:00:00Z, and"
        " is over from 1970-01-01T10:05:00Z on (grace 300 s)"
    )
    mark = written.why(hours, 6)
    assert mark.outcome == MARK
    assert mark.why.endswith(
        f"{written.looks}-1 is at 1970-01-01T09:10:00Z, at the end of its log, and lets go"
    )
    assert written.why(hours, 9).outcome == REFUSED_OUTCOME
    with pytest.raises(PipelineError, match="ends at offset 11, so no record lies at 99"):
        written.why(hours, 99)
    with pytest.raises(ConfigError, match="does not read 'elsewhere': name a record of"):
        written.why(hours, 0, "elsewhere")
    with pytest.raises(ConfigError, match="is ever late: only windows and JoinWithin"):
        written.why(written.step, 0)


WINDOWS = [
    Tumbling("10m", grace="3m"),
    Hopping("10m", every="4m", grace="3m"),
    Session("5m", grace="3m"),
    Sliding("5m", grace="3m"),
]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda each: type(each).__name__)
def test_the_report_agrees_with_the_folds_counts_after_a_step(written: Written, window: Window) -> None:
    """The records have random origins, some of which are released and come back, or none."""
    hours = written.windows(window)
    written.create(hours.topics[0])
    written.write(hours.topics[0], [*schedule(random.Random(7), 400)])
    rows = replay(hours, written.settings, LOCAL).table("rows", hours).to_pylist()
    origins = {
        each["key"].split("/")[-1]: json.loads(each["row"])
        for each in rows
        if each["key"].startswith("\x00origin/0/")
    }
    late = written.late(hours)
    outcomes = Counter((each.origin or "", each.outcome) for each in late)
    for origin, row in origins.items():
        name = f"{written.looks}-{origin}" if origin != "-1" else f"{hours.topics[0]}-0"
        assert (outcomes[name, LATE], outcomes[name, AFTER_IDLE]) == (row[4], row[5]), name
    assert sum(row[4] for row in origins.values()) > 20
    assert sum(row[5] for row in origins.values()) > 3
    if isinstance(window, Hopping):
        assert sum(each.outcome == PARTLY for each in late) > 3
    for each in late:
        assert each.late_from_ms is not None
        assert (each.watermark_ms or 0) >= each.late_from_ms or each.outcome != LATE
        assert (each.stream_ms or 0) >= each.late_from_ms or each.outcome != AFTER_IDLE
        assert each.let_go_ms is not None or each.outcome != AFTER_IDLE or "-0" in str(each.origin)


def schedule(draw: random.Random, count: int) -> Iterator[tuple[bytes | None, bytes | None, Headers]]:
    marks, ended = [UNHEARD] * 3, [False] * 3
    for origin in range(3):
        yield marked(origin, UNHEARD, 3)
    for _ in range(count):
        origin = draw.randrange(3)
        if draw.random() < 0.06:
            ended[origin] = not ended[origin]
            yield marked(origin, marks[origin], 3, ends=ended[origin])
            continue
        at_ms = max(0, max(marks[origin], 0) + draw.randrange(-30, 12) * MINUTE)
        if draw.random() < 0.05:
            yield b"home", view(at_ms), ()
            continue
        yield told(at_ms, origin, marks[origin], draw.choice(("home", "shop")))
        marks[origin], ended[origin] = max(marks[origin], at_ms), False


@pytest.mark.parametrize("idle", [None, "1s"])
def test_a_record_of_a_raw_source_is_late_by_what_its_partition_had_seen(
    written: Written, idle: str | None
) -> None:
    hours = written.windows(Tumbling("1h"), source=written.source, idle=idle)
    written.create(written.looks)
    if idle is not None:
        written.create(hours.choices(written.name))
        ticked = Choice(number=0, sources=hours.signature, applied=(1,), tick_ms=9 * HOUR)
        all_read = Choice(number=1, sources=hours.signature, applied=(4,))
        written.write(
            hours.choices(written.name), [(None, encode_choice(each), ()) for each in (ticked, all_read)]
        )
    times = 10 * HOUR, 12 * HOUR, 10 * HOUR + 1, 12 * HOUR + 2, 12 * HOUR + 3
    written.write(written.looks, [(None, view(each), ()) for each in times])
    late = written.late(hours)
    assert late[0].outcome == LATE
    assert (late[0].offset, late[0].watermark_ms, late[0].origin) == (2, 12 * HOUR, f"{written.looks}-0")
    if idle is None:
        assert len(late) == 1
        return
    assert [(each.offset, each.outcome, each.watermark_ms) for each in late[1:]] == [
        (3, AFTER_IDLE, 12 * HOUR),
        (4, AFTER_IDLE, 12 * HOUR),
    ]
    assert late[1].why.endswith("so the clock had passed its window (idle=): a recorded tick says so")
    assert written.why(hours, 3) == late[1]


def joined(written: Written, left: Any, right: Any, **more: Any) -> JoinWithin[View, View, View]:
    return JoinWithin(
        name="near",
        left=left,
        right=right,
        join=lambda one, other: one,
        to=Stream(f"{written.name}-near", Json(View)),
        before="1m",
        after="10m",
        grace="2m",
        **more,
    )


def test_a_record_of_a_join_is_late_by_its_own_source_or_because_that_let_go(written: Written) -> None:
    other = Source(f"{written.name}-buys", Json(View), time=lambda view: view.at_ms)
    near = joined(written, written.source, other)
    choices = near.choices(written.name)
    written.create(written.looks, other.topic, choices)
    left = [0, 20, 15, 17, 40, 55]
    right = [0, 1, 60, 61]
    written.write(written.looks, [(b"k", view(each * MINUTE), ()) for each in left])
    written.write(other.topic, [(b"k", view(each * MINUTE), ()) for each in right])
    order = [(0, 0), (3, 0), (3, 2)]
    steps = [
        Choice(number=number, sources=near.signature, applied=applied) for number, applied in enumerate(order)
    ]
    steps.append(Choice(number=3, sources=near.signature, applied=(3, 2), tick_ms=HOUR))
    steps.append(Choice(number=4, sources=near.signature, applied=(4, 3)))
    written.write(choices, [(None, encode_choice(each), ()) for each in steps])
    first, second, third, fourth = written.late(near)
    assert (first.topic, first.offset, first.outcome) == (written.looks, 2, LATE)
    assert first.why == (
        f"{written.looks}-0 was at 1970-01-01T00:20:00Z before it; a record of 1970-01-01T00:15:00Z is late"
        " from 1970-01-01T00:17:00.001Z on (grace 120 s)"
    )
    assert (second.topic, second.offset, second.outcome) == (written.looks, 3, LATE)
    assert (third.topic, third.offset, third.outcome) == (written.looks, 4, AFTER_IDLE)
    assert (third.watermark_ms, third.stream_ms, third.reach_ms) == (20 * MINUTE, 61 * MINUTE, 10 * MINUTE)
    assert third.over_from_ms == 52 * MINUTE + 1
    assert f"{written.looks}-0 had let go at" in third.why
    assert "since it said nothing while the other source waited: a recorded tick says so" in third.why
    assert (fourth.offset, fourth.outcome) == (5, PARTLY)
    assert fourth.why == (
        f"in time: {written.looks}-0 was at 1970-01-01T00:40:00Z before it; but stream time was at"
        " 1970-01-01T01:01:00Z, since its origin had let go: the earliest of its partners may have been"
        " dropped"
    )
    for each in (first, second, third, fourth):
        assert written.why(near, each.offset, each.topic) == each
    assert written.why(near, 1, written.looks).outcome == TAKEN
    assert written.why(near, 1, other.topic).outcome == TAKEN


def test_a_join_after_steps_names_the_origin_even_where_it_is_traced(written: Written) -> None:
    buys = Source(f"{written.name}-buys", Json(View), time=lambda view: view.at_ms)
    by_buyer = Rekey(name=f"{written.name}-buyer", source=buys, by=lambda view: view.page)
    near = joined(written, written.step, by_buyer)
    left, right = near.topics
    choices = near.choices(written.name)
    written.create(left, right, choices)
    for topic in (left, right):
        records = [
            marked(0, UNHEARD, 1),
            told(20 * MINUTE, 0, UNHEARD),
            told(15 * MINUTE, 0, 20 * MINUTE),
            marked(0, 90 * MINUTE, 1, ends=True),
        ]
        written.write(topic, records)
    steps = [Choice(number=0, sources=near.signature, applied=(3, 3))]
    written.write(choices, [(None, encode_choice(each), ()) for each in steps])
    processors = [written.step, by_buyer, near]
    for processor in (near, traced(near)):
        known = [*processors[:2], processor]
        found = late_records(known, "near", written.settings, None, ALL)
        assert found.totals == {0: 2}
        assert {(each.origin, each.outcome, each.watermark_ms) for each in found.records} == {
            (f"{written.looks}-0", LATE, 20 * MINUTE),
            (f"{buys.topic}-0", LATE, 20 * MINUTE),
        }


def test_late_records_are_found_in_the_lake_and_up_to_where_it_is_asked(
    written: Written, tmp_path: Path
) -> None:
    hours = written.windows(Tumbling("1h", grace="5m"))
    written.create(hours.topics[0])
    written.write(hours.topics[0], HOME)
    land(written.settings, hours.topics[0], str(tmp_path / "lake"))
    bronze = ReplayOptions(engine="local", source="bronze", lake=str(tmp_path / "lake"))
    known = [written.step, hours]
    whole = late_records(known, "hours", written.settings, None, LateOptions(replay=bronze))
    assert whole.records == written.late(hours)
    upto = late_records(known, "hours", written.settings, Until(offsets={0: 7}), ALL)
    assert upto.records == whole.records[:2]
    last = late_records(known, "hours", written.settings, None, LateOptions(replay=LOCAL, limit=1))
    assert (last.records, last.totals) == (whole.records[-1:], {0: 3})


def test_the_command_prints_the_report(
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    hours = written.windows(Tumbling("1h", grace="5m"))
    written.create(hours.topics[0])
    written.write(hours.topics[0], HOME)
    module = ModuleType(f"{written.name.replace('-', '_')}_app")
    module.processors = [written.step, hours]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_APP", written.name)
    for name, value in written.settings.kafka.items():
        monkeypatch.setenv(f"HOLDFAST_KAFKA__{name.upper().replace('.', '_')}", str(value))

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["-A", module.__name__, "explain", *arguments])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    code, out, err = run("hours", "--late")
    assert code == 0, err
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        [hours.topics[0], "0", "5", "late"],
        [hours.topics[0], "0", "7", "late"],
    ]
    assert f"{hours.topics[0]}/0/5: {written.looks}-1 was at 1970-01-01T09:10:00Z before it" in err
    assert "3 records of hours v1 were late" in err
    code, out, err = run("hours", "--late", "-o", "json", "--changes", "1")
    found = json.loads(out)
    assert (found["late"], len(found["records"])) == ({"0": 3}, 1)
    code, out, err = run(hours.topics[0], "0", "5", "--for", "hours")
    assert (code, out.splitlines()[4].split()) == (0, ["outcome", "late"])
    assert err.strip().endswith("is over from 1970-01-01T09:05:00Z on (grace 300 s)")
    code, out, err = run(hours.topics[0], "0", "7", "--for", "hours", "-o", "json")
    assert json.loads(out)["let_go"] == "1970-01-01T00:00:01.006Z"
    code, out, err = run("hours", "--late", "--for", "hours")
    assert code != 0
    assert "name a record as TOPIC PARTITION OFFSET" in err
