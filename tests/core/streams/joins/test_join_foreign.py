"""Joins by foreign key against their definition, and on the sequence of Kafka Streams' documentation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Json, Source, Stream
from holdfast.core.streams.joins.joining import TableHow
from holdfast.errors import ConfigError
from holdfast.streams import JoinForeign
from holdfast.testing import Topology
from tests.support.scale import scaled

Row = tuple[str | None, int]
LEFT: Source[Any] = Source("left", Json(tuple[str | None, int] | None))
RIGHT: Source[Any] = Source("right", Json(str | None))
OUT: Stream[Any] = Stream("out", Json(tuple[str | None, int, str | None] | None))


def declared(how: TableHow) -> JoinForeign[Any, Any, Any]:
    return JoinForeign(
        name="joined",
        left=LEFT,
        right=RIGHT,
        key=lambda left: left[0],
        join=lambda left, right: (*left, right),
        to=OUT,
        how=how,
    )


FOREIGN = st.sampled_from([None, "f", "f", "s1/f", "f/a"])
LEFTS = st.tuples(st.just(True), st.sampled_from("abc"), st.none() | st.tuples(FOREIGN, st.integers(0, 9)))
RIGHTS = st.tuples(
    st.just(False), FOREIGN.filter(lambda key: key is not None), st.none() | st.sampled_from("xyz")
)


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(deadline=None, max_examples=scaled(25), suppress_health_check=[HealthCheck.too_slow])
@given(log=st.lists(LEFTS | RIGHTS, min_size=1, max_size=20))
def test_each_row_is_joined_with_that_which_it_names(how: TableHow, log: list[tuple[bool, str, Any]]) -> None:
    lefts: dict[str, Row] = {}
    rights: dict[str, str] = {}
    found: dict[str, Any] = {}
    with Topology([*declared(how)], partitions=1) as topology:
        for is_left, key, value in log:
            topology.pipe(LEFT if is_left else RIGHT, value, key=key)
            table: dict[str, Any] = lefts if is_left else rights
            table.pop(key, None)
            if value is not None:
                table[key] = value
            wanted = {
                key: (*left, rights.get(left[0] or ""))
                for key, left in lefts.items()
                if how == "left" or left[0] in rights
            }
            for of, result in topology.values(OUT):
                assert result is not None or of in found, "a tombstone follows a result"
                found[of] = result
                if result is None:
                    del found[of]
            assert found == wanted
            held = [name for name in topology.table("joined-matches") if name.startswith("s")]
            assert len(held) == sum(left[0] is not None for left in lefts.values())
        assert not topology.refused


def test_the_documented_sequence() -> None:
    sequence: list[tuple[Source[Any], str, Any, list[Any]]] = [
        (LEFT, "k", ("1", 0), [("k", ("1", 0, "foo"))]),
        (LEFT, "k", ("2", 0), [("k", None)]),
        (LEFT, "k", ("3", 0), []),  # Kafka Streams sends a second tombstone
        (RIGHT, "3", "bar", [("k", ("3", 0, "bar"))]),
        (LEFT, "k", (None, 0), [("k", None)]),
        (LEFT, "k", ("1", 0), [("k", ("1", 0, "foo"))]),
        (LEFT, "q", ("10", 0), []),
        (LEFT, "r", ("10", 0), []),
        (RIGHT, "10", "baz", [("q", ("10", 0, "baz")), ("r", ("10", 0, "baz"))]),
    ]
    with Topology([*declared("inner")]) as topology:
        topology.pipe(RIGHT, "foo", key="1")
        for source, key, value, told in sequence:
            topology.pipe(source, value, key=key)
            assert topology.values(OUT) == told


def test_an_answer_for_a_row_since_replaced_is_dropped() -> None:
    *_, answered = declared("inner")
    with Topology([answered], partitions=1) as topology:
        for offset, value in ((7, b'["f",1,"x"]'), (5, b'["e",1,"old"]'), (5, None), (9, None), (7, b"1")):
            topology.pipe(answered.source, msgspec.msgpack.encode((offset, value)), key="k")
        assert [each.value for each in topology.read(OUT)] == [b'["f",1,"x"]', None]


def test_what_cannot_be_joined_is_said_at_declaration() -> None:
    with pytest.raises(ConfigError, match="choose from inner, left"):
        declared("outer")  # type: ignore[arg-type]
