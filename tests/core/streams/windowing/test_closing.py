"""Results that cannot be sent: the record that makes one is refused, and one that fails when its time comes
fails alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import Json, Source, Stream
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.streams.emitting import encode_json
from holdfast.core.streams.windowing.rows import StreamRow, stream_key
from holdfast.core.streams.windowing.windows import Window
from holdfast.streams import Hopping, JoinWithin, Session, Sliding, Tumbling, Windowed, final, updates
from holdfast.testing import Topology

HALF = "\n" * 600_000
"""As a row it is within the limit; in JSON it takes two bytes each."""


class View(msgspec.Struct, frozen=True):
    page: str
    time: int


class Click(msgspec.Struct, frozen=True):
    time: int
    of: int = 1


VIEWS = Source("views", Json(View))


def large(so_far: str | None, view: View) -> str:
    return HALF if view.page == "bad" else "x"


def windowed(window: Window, **declared: Any) -> Windowed[View, str]:
    if isinstance(window, Session):
        declared["merge"] = max
    return Windowed(
        **{
            "name": "views",
            "source": "views",
            "decode": VIEWS.serde.decode,
            "by": lambda view: view.page,
            "time": lambda view: view.time,
            "window": window,
            "fold": large,
            "row": str,
            **declared,
        }
    )


@pytest.mark.parametrize("window", [Tumbling(10), Hopping(10, every=5), Sliding(10), Session(10)])
@pytest.mark.parametrize("idle", [None, "1s"])
def test_the_record_that_makes_a_result_too_large_is_refused_and_no_later_one(
    window: Window, idle: str | None
) -> None:
    views = windowed(window, emit=final("out"), idle=idle)
    with Topology([views], partitions=1) as topology:
        topology.pipe(VIEWS, View("bad", 1), key="bad")
        (refused,) = topology.refused
        assert (refused.stage, refused.record and refused.record.offset) == ("fold", 0)
        assert "takes 12000" in refused.reason
        for at in range(5):
            topology.pipe(VIEWS, View("good", 40 + 40 * at), key="good")
        assert len(topology.refused) == 1
        assert {each.key[:5] for each in topology.read("out") if each.key} == {b"good@"}


@pytest.mark.parametrize("emit", [updates("out", every="1d"), final("out")])
def test_a_second_record_that_makes_a_result_too_large_leaves_the_window_as_it_was(emit: Any) -> None:
    views = windowed(Tumbling(10), fold=lambda so_far, view: HALF if so_far else "x", emit=emit)
    with Topology([views], partitions=1) as topology:
        for time in (1, 2, 3):
            topology.pipe(VIEWS, View("a", time), key="a")
        topology.pipe(VIEWS, View("b", 10 * 86_400_000), key="b")
        assert [each.stage for each in topology.refused] == ["fold", "fold"]
        assert [each.key[:2] for each in topology.read("out") if each.key][:1] == [b"a@"]


def closing(emit: Any, **declared: Any) -> Windowed[View, int]:
    declared["fold"] = lambda count, view: (count or 0) + 1
    found: Any = windowed(Tumbling(10), row=int, emit=emit, **declared)
    return found  # type: ignore[no-any-return]


def bad_page(result: Any) -> bytes:
    if result.key == "bad" and result.value == 1:
        raise ValueError("no such page")
    return encode_json(result)


@pytest.mark.parametrize("idle", [None, "1s"])
def test_what_fails_when_its_time_comes_is_put_aside_and_the_others_are_sent(
    idle: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The check at the change is taken out: this is for results that pass it and fail later.
    monkeypatch.setattr("holdfast.core.streams.windowing.windowed._sent_later", lambda emit, row: None)
    views = closing(final("out", encode=bad_page), idle=idle)
    with Topology([views], partitions=1) as topology:
        for page in ("a", "bad", "z"):
            topology.pipe(VIEWS, View(page, 5), key=page, at=1_000)
        if idle:
            topology.tick(100_000)
        else:
            topology.pipe(VIEWS, View("later", 20), key="later")
        sent = [each.key for each in topology.read("out")]
        assert sent == [b"a@0000000000000000", b"z@0000000000000000"]
        (refused,) = topology.refused
        assert (refused.stage, refused.error) == ("close", "ValueError")
        assert refused.reason == "result of window 'bad@0000000000000000' to 10: no such page"
        row = topology.table(views)[stream_key(0)]
        assert isinstance(row, StreamRow)
        assert row.failed == 1
        topology.pipe(VIEWS, View("later", 40), key="later", at=200_000)
        topology.tick(90_000_000)
        topology.tick(190_000_000)
        assert len(topology.refused) == 1
        if idle:
            assert b"later@0000000000000040" in [each.key for each in topology.read("out")]
            assert set(topology.table(views)) == {"\x00idle/0", stream_key(0)}


@pytest.mark.parametrize("records", [7, 100])
def test_transactions_of_any_size_put_the_same_aside(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.streams.windowing.windowed._sent_later", lambda emit, row: None)
    log = [encode_json(View(page, time)) for time in range(0, 60, 10) for page in ("a", "bad", "b")]

    def folded(step: int) -> tuple[list[Any], list[Any], list[Any]]:
        store = DictStore()
        folder: Folder[Any] = Folder(closing(final("out", encode=bad_page)), store)
        refused: list[Any] = []
        sent: list[Any] = []
        for start in range(0, len(log), step):
            part = log[start : start + step]
            offsets = [*range(start, start + len(part))]
            changes = folder.fold([Batch(offsets, offsets, (part, [0] * len(part)))])
            assert changes is not None
            store.apply(changes.puts)
            folder.commit()
            refused += [(each.offset, each.stage, each.reason) for each in changes.refused]
            sent += changes.emits
        return refused, sent, [*store.everything()]

    one_by_one = folded(1)
    assert [each[:2] for each in one_by_one[0]] == [(offset, "close") for offset in range(3, 18, 3)]
    assert len(one_by_one[1]) == 10
    assert folded(records) == one_by_one


LEFT, RIGHT = (Source(name, Json(Click), time=lambda each: each.time) for name in ("left", "right"))
OUT = Stream("out", Json(list[int]))


def both_of(one: Any, other: Any) -> list[int]:
    return [one.of, other.of]


def lefts(**declared: Any) -> JoinWithin[Click, Click, list[int]]:
    return JoinWithin(
        name="j",
        left=LEFT,
        right=RIGHT,
        join=both_of,
        to=OUT,
        before="10s",
        after="10s",
        how="left",
        **declared,
    )


def test_a_join_that_forgets_none_spoils_no_other_pair() -> None:
    join = lefts()
    with Topology([join], partitions=1) as topology:
        topology.pipe(LEFT, Click(1), key="a", at=1)
        for at in range(20_000, 20_005):
            for source in (LEFT, RIGHT):
                topology.pipe(source, Click(at), key="b", at=at)
        (refused,) = topology.refused
        assert (refused.stage, refused.error, refused.record) == ("close", "AttributeError", refused.record)
        assert refused.reason.startswith("result of the left record of key 'a' at 1 alone: 'NoneType'")
        assert len(topology.values(OUT)) == 25
        assert topology.table(join)[stream_key(0)].failed == 1
        assert not any(key.startswith("l/a@") for key in topology.table(join)), "it is let go all the same"


def test_a_tick_whose_result_fails_is_no_last_one() -> None:
    join = lefts(idle=100)
    with Topology([join], partitions=1) as topology:
        topology.pipe(LEFT, Click(1_000), key="a", at=1_000)
        topology.tick(50_000)
        (refused,) = topology.refused
        assert (refused.stage, refused.record) == ("close", None)
        topology.pipe(LEFT, Click(100_000), key="b", at=100_000)
        topology.tick(150_000)
        assert [each.stage for each in topology.refused] == ["close", "close"]
        assert topology.table(join)[stream_key(0)].failed == 2
