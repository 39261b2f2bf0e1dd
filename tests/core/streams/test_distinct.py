"""Approximate distinct counts: right within their bounds, and the same bytes however a log is folded."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.streams import distinct as module
from holdfast.errors import ChangelogError, ConfigError, FoldError
from holdfast.streams import Distinct, Session, Windowed, distinct, distinct_fold, final, updates
from holdfast.testing import Topology
from tests.support.places import ROOT

DECLARED: dict[str, Any] = {
    "name": "visitors",
    "source": "visits",
    "decode": msgspec.json.decode,
    "key": lambda visit: visit[0],
    "item": lambda visit: visit[1],
}


@pytest.mark.long
def test_few_items_are_counted_exactly_and_many_within_the_bounds() -> None:
    for count in (0, 1, 2, 100, 20_000, 200_000):
        seen = Distinct.of(f"u{at % count}" for at in range(2 * count))
        low, high = seen.bounds(3)
        assert low <= count <= high
        assert abs(seen.estimate - count) <= (0.5 if count <= 100 else 0.04 * count)
        assert len(seen.sketch) < 3_000


@given(st.lists(st.sampled_from([f"u{at}" for at in range(40)]), max_size=80), st.integers(4, 14))
def test_restarts_change_no_byte_and_repeats_no_estimate(items: list[str], precision: int) -> None:
    grown = Distinct.of((), precision)
    for item in items:
        grown = Distinct(
            msgspec.msgpack.decode(msgspec.msgpack.encode(grown), type=Distinct).sketch
        ).with_item(item)
    assert grown == Distinct.of(items, precision)
    assert [grown.with_item(item) for item in items] == [grown] * len(items)


@pytest.mark.long
@given(st.integers(0, 3_000), st.integers(0, 3_000))
def test_a_merged_sketch_counts_what_either_has_seen(upto: int, since: int) -> None:
    one = Distinct.of(f"u{at}" for at in range(upto))
    other = Distinct.of(f"u{at}" for at in range(since, 3_000))
    merged, true = one.merged(other), upto + 3_000 - max(since, 0) - max(0, upto - since)
    low, high = merged.bounds(3)
    assert low * 0.97 <= true <= high * 1.03
    for again in (other.merged(one), merged.merged(one), merged.merged(other)):
        assert again.estimate == pytest.approx(merged.estimate, rel=0.03), "order and repeats add nothing"


@pytest.mark.process
def test_the_bytes_do_not_depend_on_the_process() -> None:
    program = (
        "from holdfast.streams import Distinct; "
        "print(Distinct.of(f'u{at}' for at in range(5000)).sketch.hex())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert told == [Distinct.of(f"u{at}" for at in range(5000)).sketch.hex()] * 2


def test_each_key_has_its_sketch_and_sends_its_estimate_when_that_grows() -> None:
    with Topology([distinct(**DECLARED, emits="counts")]) as topology:
        for visit in (["home", "ann"], ["home", "bob"], ["home", "ann"], ["news", "ann"]):
            topology.pipe("visits", visit, key=visit[0])
        assert {key: round(row.estimate) for key, row in topology.table("visitors").items()} == {
            "home": 2,
            "news": 1,
        }
        assert [(each.key, each.value) for each in topology.read("counts")] == [
            (b"home", b"1"),
            (b"home", b"2"),
            (b"news", b"1"),
        ]


def test_a_caller_that_wants_the_sketch_encodes_it() -> None:
    told = updates("counts", encode=lambda found: found.sketch)
    with Topology([distinct(**DECLARED, emits=told)]) as topology:
        topology.pipe("visits", ["home", "ann"], key="home")
        assert [each.value for each in topology.read("counts")] == [Distinct.of(["ann"]).sketch]


def test_sessions_merge_their_sketches() -> None:
    def page(visit: list[Any]) -> str:
        return str(visit[0])

    def visitor(visit: list[Any]) -> str:
        return str(visit[1])

    def time(visit: list[Any]) -> int:
        return int(visit[2])

    sessions = Windowed(
        name="sessions",
        source="visits",
        decode=msgspec.json.decode,
        by=page,
        time=time,
        window=Session("10s", grace="1m"),
        fold=distinct_fold(visitor),
        merge=Distinct.merged,
        row=Distinct,
        emit=final("ended", encode=lambda found: b"%d" % round(found.value.estimate)),
    )
    with Topology([sessions]) as topology:
        for at_s, who in ((100, "ann"), (115, "bob"), (108, "ann"), (300, "cy")):
            topology.pipe("visits", ["home", who, at_s * 1_000], key="home")
        assert [each.value for each in topology.read("ended")] == [b"2"], (
            "two sessions that a third has merged"
        )


def test_a_value_that_is_no_item_is_refused_and_the_row_stays() -> None:
    with Topology([distinct(**DECLARED)]) as topology:
        topology.pipe("visits", ["home", "ann"], key="home")
        topology.pipe("visits", ["home", 7], key="home")
        assert [each.reason for each in topology.refused] == ["item 7 is not text: distinct counts strings"]
        assert round(topology.table("visitors")["home"].estimate) == 1
    with pytest.raises(FoldError, match="lone surrogate"):
        Distinct.of(["\ud800"])
    assert Distinct.of([""]).estimate == 0.0


@pytest.mark.parametrize("sketch", [b"", b"x", b"\x00" * 40, b"\xff" * 4136])
def test_bytes_that_are_no_sketch_are_an_error(sketch: bytes) -> None:
    with pytest.raises(ChangelogError, match=f"a sketch of {len(sketch)} bytes cannot be read"):
        _ = Distinct(sketch).estimate


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"precision": 3}, "processor visitors: precision 3: a whole number from 4 to 18"),
        ({"precision": 12.0}, "precision 12.0"),
        ({"item": None}, "processor visitors: item is None, which cannot be called"),
    ],
)
def test_a_wrong_declaration_says_what_to_write(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        distinct(**(DECLARED | wrong))
    with pytest.raises(ValueError, match="1, 2 or 3"):
        Distinct.of().bounds(4)


def test_without_the_package_the_declaration_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module._sketches.cache_clear()
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[sketches\]'"):
        distinct(**DECLARED)
