"""The current version of a table, when a later one has caught up, and the records that are taken for
switches.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.positions import (
    Position,
    earlier_format,
    encode_position,
    ordered_start,
    position_format,
)
from holdfast.core.engine.state.codec import RowCodec, decode_untyped
from holdfast.core.engine.upgrades import (
    LIMIT_SWITCH_BYTES,
    Switch,
    all_writers_of,
    current_version,
    encode_switch,
    has_caught_up,
    in_version,
    is_complete,
    kept_version,
    next_switch,
    read_switch,
    switch_key,
    versions_on,
    writers_of,
)
from holdfast.errors import ChainError, ChangelogError

HOUR_MS = 3_600_000


def fold(rows: Any, event: Any, at_ms: int) -> None:
    """Nothing is folded here."""


def processor(name: str = "totals", source: str = "orders", **more: Any) -> Processor[Any, Any]:
    return Processor(name=name, source=source, decode=bytes, fold=fold, row=int, **more)


def switched(version: int, before: int, at_ms: int = 0, **more: Any) -> Switch:
    return Switch(table="totals", version=version, before=before, at_ms=at_ms, **{"by": "worker", **more})


@pytest.mark.parametrize(
    ("own", "known", "switch", "current"),
    [
        (1, (1,), None, 1),
        (2, (1, 2), None, 1),
        (3, (1, 2, 3), None, 2),
        (1, (1, 2), None, 1),
        (2, (1, 2), switched(2, 1), 2),
        (2, (1, 2), switched(1, 2, by="command"), 1),
        (3, (1, 2, 3), switched(2, 1), 2),
        (2, (2,), switched(1, 2), 2),
        (1, (1, 2), switched(2, 1), 2),
        (2, (), None, 2),
    ],
)
def test_the_current_version_is_the_recorded_one_that_exists_or_else_the_one_before(
    own: int, known: tuple[int, ...], switch: Switch | None, current: int
) -> None:
    assert current_version(own, known, switch) == current


@pytest.mark.parametrize(
    ("own", "known", "switch", "now_ms", "kept"),
    [
        (2, (1, 2), None, 0, 1),
        (2, (1, 2), switched(2, 1, at_ms=5), 4 + HOUR_MS, 1),
        (2, (1, 2), switched(2, 1, at_ms=5), 5 + HOUR_MS, None),
        (2, (2,), switched(2, 1, at_ms=5), 5, None),
        (2, (1, 2), switched(1, 2, by="command"), 99 * HOUR_MS, 1),
        (1, (1, 2), switched(2, 1), 99 * HOUR_MS, 2),
        (2, (1, 2, 3), switched(3, 1), 99 * HOUR_MS, 3),
        (1, (1, 2), switched(1, 2), 0, None),
        (1, (1,), None, 0, None),
    ],
)
def test_another_version_is_kept_while_it_is_current_and_an_earlier_one_for_a_time_after_that(
    own: int, known: tuple[int, ...], switch: Switch | None, now_ms: int, kept: int | None
) -> None:
    assert kept_version(own, known, switch, now_ms=now_ms, kept_ms=HOUR_MS) == kept


def test_versions_are_those_of_this_table_with_as_many_partitions() -> None:
    topics = dict.fromkeys(
        (
            "shop-totals.v1-changelog",
            "shop-totals.v12-changelog",
            "shop-totals.v02-changelog",
            "shop-totals.v0-changelog",
            "shop-totalsXv4-changelog",
            "shop-totals.v3-changelog-old",
            "other-shop-totals.v5-changelog",
            "shop-totals-more.v6-changelog",
        ),
        4,
    )
    assert versions_on("shop", "totals", {**topics, "shop-totals.v2-changelog": 3}, 4) == (1, 12)


def test_a_version_has_caught_up_when_it_shows_what_the_current_one_does_or_all_that_there_is() -> None:
    reached = {"orders": 10, "customers": 4}
    assert has_caught_up(reached, {}, {"orders": 10, "customers": 4})
    assert not has_caught_up(reached, {}, {"orders": 11, "customers": 4})
    assert not has_caught_up(reached, {"orders": 12}, {"orders": 11, "customers": 4})
    assert has_caught_up(reached, {"orders": 11}, {"orders": 99, "customers": 4})
    assert has_caught_up(reached, {"orders": 11, "customers": 5}, None)
    assert not has_caught_up(reached, {"orders": 11}, None), "an end that is not known is not reached"
    assert has_caught_up({"orders": -1}, {}, {"orders": -1}), "nothing was there"


def test_a_table_is_complete_when_each_partition_is_owned_and_built() -> None:
    owners = {0: ("http://a", False), 1: ("http://b", False)}
    assert is_complete(owners.get, 2)
    assert not is_complete(owners.get, 3)
    assert not is_complete({**owners, 1: ("http://b", True)}.get, 2)
    assert not is_complete(owners.get, 0)


def test_workers_switch_upward_alone_and_not_again_what_a_person_took_back() -> None:
    ready: dict[str, Any] = {"complete": True, "now_ms": 7}
    assert next_switch("totals", 2, 1, None, **ready) == switched(2, 1, at_ms=7)
    assert next_switch("totals", 3, 2, switched(2, 1), **ready) == switched(3, 2, at_ms=7)
    assert next_switch("totals", 2, 1, None, complete=False, now_ms=7) is None
    assert next_switch("totals", 2, 2, switched(2, 1), **ready) is None
    assert next_switch("totals", 1, 2, switched(2, 1), **ready) is None
    back = switched(1, 2, by="command")
    assert next_switch("totals", 2, 1, back, **ready) is None
    assert next_switch("totals", 3, 1, back, **ready) == switched(3, 1, at_ms=7), "another version may"


def test_those_that_read_internal_topics_wait_for_those_that_write_them() -> None:
    between = Internal("words", Text(), version=2)
    writer = processor("words", version=2, emits=(between,))
    reader = processor("counts", between, version=2)
    assert writers_of(reader, [writer, reader]) == ["words"]
    assert writers_of(writer, [writer, reader]) == []


def test_who_is_in_a_circle_does_not_wait_for_itself_nor_for_the_others_of_it() -> None:
    again, back, first = (Internal(name, Text()) for name in ("again", "back", "first"))
    alone = processor(source=again, emits=(again,))
    assert all_writers_of(alone, [alone]) == []
    there, here = processor("there", back, emits=(again,)), processor("here", again, emits=(back, first))
    behind = processor("behind", first)
    every = [there, here, behind]
    assert all_writers_of(there, every) == all_writers_of(here, every) == []
    assert sorted(all_writers_of(behind, every)) == ["here", "there"]


def test_a_processor_in_another_version_has_its_names() -> None:
    own = processor(version=2)
    earlier = in_version(own, 1)
    assert (earlier.table, earlier.changelog("shop"), own.table) == (
        "totals.v1",
        "shop-totals.v1-changelog",
        "totals.v2",
    )


def test_switch_records_are_read_as_they_were_written_and_others_refused() -> None:
    switch = switched(2, 1, at_ms=9)
    assert read_switch("switch:totals", encode_switch(switch)) == switch
    bad = {
        "switch:other": encode_switch(switch),
        switch_key("totals"): b"{}",
        "switch:totals ": encode_switch(switch),
    }
    for key, value in bad.items():
        with pytest.raises(ValueError, match=r"\S"):
            read_switch(key, value)
    for wrong in (
        msgspec.structs.replace(switch, version=0),
        msgspec.structs.replace(switch, before=-1),
        msgspec.structs.replace(switch, by="nobody"),
    ):
        with pytest.raises(ValueError, match=r"\S"):
            read_switch("switch:totals", encode_switch(wrong))
    with pytest.raises(ValueError, match="limit"):
        read_switch("switch:totals", b" " * (LIMIT_SWITCH_BYTES + 1))


def test_positions_of_an_earlier_version_are_read_whatever_it_declared_of_event_time() -> None:
    timed = processor(version=2, time=len, on_event=lambda rows, key, at_ms: None)
    stored = encode_position(Position((41,), 5, 1))
    with pytest.raises(ChangelogError):
        position_format(timed).decode(stored)
    read = earlier_format(timed)
    assert read.decode(stored).applied == (41,)
    assert encode_position(read.decode(stored)) == stored
    two = ordered_start(7, 2, 1)
    with pytest.raises(ChangelogError, match="2 sources"):
        read.decode(encode_position(two))


def test_a_reader_of_an_internal_topic_and_a_global_knows_its_own_position() -> None:
    def reader(version: int) -> Processor[Any, Any]:
        words = Internal("words", Text(), version=version)
        on = {Source("orders", Text()): fold, Source(words, Text()): fold}
        rates: Global[int] = Global("rates", Source("rates", Text()), fold=fold, row=int)
        return Processor(name="totals", on=on, row=int, reads=(rates,), version=version)

    first, second = position_format(reader(1)), position_format(reader(2))
    stored = encode_position(first.start)
    assert first.decode(stored) == first.start
    with pytest.raises(ChainError, match=r"folded from another version of orders, words\.v2"):
        second.decode(stored)


def test_rows_of_an_earlier_version_are_shown_without_their_type() -> None:
    assert decode_untyped(RowCodec[Any](dict[str, int]).encode({"a": 1})) == {"a": 1}
    for damaged in (b"", b"\x09\x01", b"\x01\xc1"):
        with pytest.raises(ChangelogError):
            decode_untyped(damaged)
