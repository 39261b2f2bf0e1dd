"""One clock that is far ahead makes no honest record late."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from holdfast import FoldWith, Internal, Json, Processor, Source, Stream
from holdfast.errors import ConfigError
from holdfast.streams import JoinStreamTable, JoinWithin, Merge, Rekey, Tumbling, Windowed, final
from holdfast.testing import Topology

NOW_MS, HOUR_MS, DAY_MS = 1_767_000_000_000, 3_600_000, 86_400_000
Policy = Literal["refuse", "hold"]


class Reading(msgspec.Struct, frozen=True):
    device: str
    at_ms: int


def readings(
    policy: Policy = "refuse", ahead: str | int | None = "1d", name: str = "readings"
) -> Source[Reading]:
    return Source(name, Json(Reading), time=lambda each: each.at_ms, ahead=ahead, ahead_policy=policy)


def hours(source: Any, **more: Any) -> Windowed[Reading, int]:
    return Windowed(
        name="hours",
        source=source,
        by=lambda each: each.device,
        window=Tumbling("1h"),
        fold=lambda seen, each: (seen or 0) + 1,
        row=int,
        emit=final("ended"),
        late="late",
        **more,
    )


def pipe_honest(topology: Topology, source: Any) -> None:
    """Pipe a record five years ahead, then honest ones."""
    topology.pipe(source, Reading("wrong", NOW_MS + 5 * 365 * DAY_MS), key="x", at=NOW_MS)
    for at_ms in range(NOW_MS, NOW_MS + 5):
        topology.pipe(source, Reading("right", at_ms), key="x", at=at_ms)
    assert {each.error for each in topology.refused} <= {"FutureTimeError"}


SENT: Internal[Reading] = Internal("sent", Json(Reading), time=lambda each: each.at_ms)


def sending(source: Any) -> Processor[Any, int]:
    """Return a fold that sends its records on, and reads no time itself."""

    def fold(rows: Any, each: Reading, at_ms: int) -> Any:
        rows[each.device] = rows.get(each.device, 0) + 1
        yield SENT.emit(each.device, each)

    return Processor(name="sending", source=source, fold=fold, row=int, emits=(SENT,))


@pytest.mark.parametrize("policy", ["refuse", "hold"])
@pytest.mark.parametrize("behind", ["nothing", "rekey", "merge", "step of a step", "fold", "fold of a step"])
def test_no_record_of_a_window_is_late_by_a_wrong_clock(policy: Policy, behind: str) -> None:
    source = readings(policy)
    rekey = Rekey(name="by-device", source=source, by=lambda each: each.device)
    merge = Merge(name="both", sources=[source, readings(policy, name="others")])
    chains: dict[str, list[Any]] = {
        "nothing": [],
        "rekey": [rekey],
        "merge": [merge],
        "step of a step": [rekey, Rekey(name="again", source=rekey, by=lambda each: each.device)],
        "fold": [sending(source)],
        "fold of a step": [rekey, sending(rekey)],
    }
    steps = chains[behind]
    read: Any = steps[-1] if steps else source
    windows = hours(Source(SENT, Json(Reading), ahead_policy=policy) if behind.startswith("fold") else read)
    with Topology([*steps, windows], partitions=1) as topology:
        pipe_honest(topology, source)
        assert topology.read("late") == []
        assert [each.value for each in topology.windows(windows, "right")] == [5]
        assert len(topology.windows(windows, "wrong")) == (policy == "hold")
        assert [each.error for each in topology.refused] == ["FutureTimeError"] * (policy == "refuse")


@pytest.mark.parametrize("policy", ["refuse", "hold"])
def test_no_record_of_a_join_is_late_by_a_wrong_clock(policy: Policy) -> None:
    left, right = readings(policy), readings(policy, name="others")
    out = Stream("out", Json(list[str]))
    near = JoinWithin(
        name="near",
        left=left,
        right=right,
        join=lambda one, other: [one.device, other.device],
        to=out,
        after="1h",
    )
    with Topology([near], partitions=1) as topology:
        pipe_honest(topology, left)
        topology.pipe(right, Reading("other", NOW_MS + 10), key="x", at=NOW_MS + 10)
        assert topology.values(out) == [("x", ["right", "other"])] * 5


@pytest.mark.parametrize("policy", ["refuse", "hold"])
def test_no_row_of_a_table_with_history_is_late_by_a_wrong_clock(policy: Policy) -> None:
    table, stream = readings(policy), readings(policy, name="others")
    out, late = Stream("out", Json(str)), Stream("late", Json(Reading))
    joined = JoinStreamTable(
        name="joined",
        stream=stream,
        table=table,
        join=lambda event, row: row.device,
        to=out,
        history="1h",
        late=late,
    )
    with Topology([joined], partitions=1) as topology:
        pipe_honest(topology, table)
        topology.pipe(stream, Reading("other", NOW_MS + 10), key="x", at=NOW_MS + 10)
        assert (topology.read("late"), topology.values(out)) == ([], [("x", "right")])


@pytest.mark.parametrize("policy", ["refuse", "hold"])
def test_no_event_timer_fires_by_a_wrong_clock(policy: Policy) -> None:
    def fold(rows: Any, each: Reading, at_ms: int, event_ms: int = 0) -> None:
        rows[each.device] = 1
        rows.wake_at(each.device, each.at_ms + HOUR_MS, clock="event")

    def forget(rows: Any, key: str, at_ms: int) -> None:
        del rows[key]

    source = readings(policy)
    for declared in ({"source": source, "fold": fold}, {"on": {source: FoldWith(fold, ("event_ms",))}}):
        timed = Processor(name="timed", row=int, on_event=forget, **declared)
        with Topology([timed], partitions=1) as topology:
            topology.pipe(source, Reading("right", NOW_MS), key="x", at=NOW_MS)
            pipe_honest(topology, source)
            assert "right" in topology.table(timed)


def test_the_limit_is_a_day_unless_it_is_set() -> None:
    for ahead, refused in (("1d", [1]), ("2d", []), (None, []), (0, [0, 1]), ("30s", [1])):
        windows = hours(readings(ahead=ahead))
        with Topology([windows], partitions=1) as topology:
            topology.pipe("readings", Reading("a", NOW_MS + 5), at=NOW_MS)
            topology.pipe("readings", Reading("a", NOW_MS + DAY_MS + 1), at=NOW_MS)
            assert [each.record and each.record.offset for each in topology.refused] == refused, ahead


def test_a_time_given_to_windows_alone_has_the_limit_too() -> None:
    windows = hours("readings", decode=msgspec.json.Decoder(Reading).decode, time=lambda each: each.at_ms)
    with Topology([windows], partitions=1) as topology:
        pipe_honest(topology, "readings")
        assert topology.read("late") == []


def test_a_test_that_gives_no_append_times_is_not_held_against_them() -> None:
    windows = hours(readings())
    with Topology([windows], partitions=1) as topology:
        topology.pipe("readings", Reading("a", NOW_MS + 5 * 365 * DAY_MS))
        assert (topology.refused, len(topology.windows(windows))) == ([], 1)


def test_a_value_that_is_no_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="ahead 'soon'"):
        readings(ahead="soon")
    with pytest.raises(ConfigError, match="ahead_policy 'drop'"):
        readings("drop")  # type: ignore[arg-type]
