"""Windows, joins, aggregations and steps that have to wait, or stop: they are processors as any other."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Json, Processor, Source, Stream
from holdfast.core.engine.declared.serdes import Text
from holdfast.errors import ConfigError, Later
from holdfast.streams import (
    Filter,
    JoinForeign,
    JoinStreamTable,
    JoinTables,
    JoinWithin,
    Map,
    Merge,
    Rekey,
    Tumbling,
    Windowed,
    cogroup,
    count,
    dedupe,
    final,
)
from holdfast.testing import Topology

HOUR_MS = 3_600_000


class Registry:
    """A serde that answers while it is `there`."""

    of = str

    def __init__(self) -> None:
        self.there = True

    def decode(self, value: bytes | None) -> str:
        return (value or b"").decode()

    def encode(self, value: Any) -> bytes:
        if not self.there:
            raise Later("nobody answers", needs="the registry")
        return str(value).encode()


def ones(so_far: int | None, word: str) -> int:
    return (so_far or 0) + 1


def test_a_window_whose_result_has_to_wait_is_closed_later_and_nothing_is_put_aside() -> None:
    registry = Registry()
    told = Stream("told", registry)
    views: Processor[Any, Any] = Windowed(
        name="views",
        source="words",
        decode=bytes.decode,
        by=str,
        window=Tumbling("1h"),
        fold=ones,
        row=int,
        emit=final("told", encode=lambda result: told.serde.encode(result.value)),
    )
    with Topology([views]) as topology:
        topology.pipe("words", b"a", at=0)
        registry.there = False
        topology.pipe("words", b"b", at=HOUR_MS)
        topology.pipe("words", b"c", at=HOUR_MS)
        assert [each.needs for each in topology.waiting] == ["the registry"]
        assert (topology.read("told"), topology.refused) == ([], [])
        registry.there = True
        topology.go_on()
        assert [each.value for each in topology.read("told")] == [b"1"]
        assert not topology.refused


def test_a_rekey_whose_key_has_to_wait_sends_each_record_once() -> None:
    registry = Registry()
    words = Source("words", Text())
    keyed = Rekey(name="keyed", source=words, by=str, to=Stream("keyed", Text(), registry))
    counted = count(name="counted", source="keyed", decode=bytes.decode, key=str)
    with Topology([keyed, counted]) as topology:
        registry.there = False
        for word in ("a", "b", "a"):
            topology.pipe(words, word)
        assert [each.processor for each in topology.waiting] == ["keyed"]
        registry.there = True
        topology.go_on()
        assert topology.table("counted") == {"a": 2, "b": 1}


LEFT, RIGHT = Source("left", Json(str | None)), Source("right", Json(str | None))
OUT: Stream[Any] = Stream("out", Json(str | None))


def both(one: Any, other: Any) -> str:
    return f"{one} {other}"


@pytest.mark.parametrize(
    "made",
    [
        lambda **told: count(name="n", source="words", decode=bytes.decode, key=str, **told),
        lambda **told: dedupe(
            name="n", source="words", decode=bytes.decode, key=str, to="out", ttl="1h", **told
        ),
        lambda **told: Windowed(
            name="n",
            source="words",
            decode=bytes.decode,
            by=str,
            window=Tumbling("1h"),
            fold=ones,
            row=int,
            **told,
        ),
        lambda **told: JoinTables(name="n", left=LEFT, right=RIGHT, join=both, to=OUT, **told),
        lambda **told: JoinStreamTable(name="n", stream=LEFT, table=RIGHT, join=both, to=OUT, **told),
        lambda **told: JoinWithin(name="n", left=LEFT, right=RIGHT, after="1h", join=both, to=OUT, **told),
        lambda **told: cogroup(name="n", row=int, on={LEFT: ones, RIGHT: ones}, **told),
        lambda **told: JoinForeign(
            name="n", left=LEFT, right=RIGHT, key=lambda value: value, join=both, to=OUT, **told
        ),
        lambda **told: Map(name="n", source=LEFT, each=str, serde=Text(), **told),
        lambda **told: Filter(name="n", source=LEFT, keep=bool, **told),
        lambda **told: Merge(name="n", sources=[LEFT, RIGHT], **told),
        lambda **told: Rekey(name="n", source=LEFT, by=str, to=Stream("keyed", LEFT.serde), **told),
    ],
)
def test_all_that_is_declared_may_stop_before_what_it_would_refuse(made: Any) -> None:
    for told, wanted in ({}, "quarantine"), ({"on_error": "stop"}, "stop"):
        found = made(**told)
        processors = found if isinstance(found, tuple) else (found,)
        assert {each.on_error for each in processors} == {wanted}


@pytest.mark.parametrize(
    "made",
    [
        lambda **told: count(
            name="n", source="words", decode=bytes.decode, key=str, emits=Stream("out", Json(int)), **told
        ),
        lambda **told: dedupe(
            name="n", source="words", decode=bytes.decode, key=str, to="out", ttl="1h", **told
        ),
        lambda **told: Windowed(
            name="n",
            source="words",
            decode=bytes.decode,
            by=str,
            window=Tumbling("1h"),
            fold=ones,
            row=int,
            emit=final("out"),
            idle="1m",
            **told,
        ),
        lambda **told: JoinTables(name="n", left=LEFT, right=RIGHT, join=both, to=OUT, **told),
        lambda **told: JoinStreamTable(name="n", stream=LEFT, table=RIGHT, join=both, to=OUT, **told),
        lambda **told: JoinWithin(name="n", left=LEFT, right=RIGHT, after="1h", join=both, to=OUT, **told),
        lambda **told: Map(name="n", source=LEFT, each=str, to=Stream("out", Text()), **told),
        lambda **told: Rekey(name="n", source=LEFT, by=str, to=Stream("keyed", LEFT.serde), **told),
    ],
)
def test_all_that_sends_to_others_may_continue_from_the_end_of_its_version_before(made: Any) -> None:
    assert made(version=2, emits_from="handover").hands_over
    assert not made(version=2).hands_over
    with pytest.raises(ConfigError, match="version 1 has none"):
        made(emits_from="handover")


def test_a_processor_that_sends_to_an_internal_topic_alone_has_nothing_to_continue() -> None:
    with pytest.raises(ConfigError, match="no topic of others to emit to"):
        Filter(name="n", source=LEFT, keep=bool, version=2, emits_from="handover")
