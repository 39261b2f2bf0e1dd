"""Joins on the sequences of Kafka Streams' own documentation and tests: the same results, in the same
order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Json, Source, Stream
from holdfast.core.streams.joins.joining import How, TableHow
from holdfast.errors import ConfigError
from holdfast.streams import JoinForeign, JoinStreamTable, JoinTables, JoinWithin, cogroup
from holdfast.testing import Topology
from tests.support.places import ROOT

GOLDEN = json.loads((ROOT / "tests/testdata/kafka_streams_joins.json").read_text())
FOREIGN: dict[str, Any] = json.loads(
    (ROOT / "tests/testdata/kafka_streams_foreign_key_joins.json").read_text()
)
SEQUENCES = [name for name, rows in FOREIGN.items() if isinstance(rows, list)]
LEFT, RIGHT = Source("left", Json(str | None)), Source("right", Json(str | None))
OUT: Stream[Any] = Stream("out", Json(tuple[str | None, str | None] | None))
WAYS: tuple[How, ...] = ("inner", "left", "outer")


def both(left: str | None, right: str | None) -> tuple[str | None, str | None]:
    return left, right


def told(kind: str, how: How, joined: Any) -> list[list[Any]]:
    out = []
    with Topology([joined], partitions=1) as topology:
        for at, side, value, *_ in GOLDEN[kind]:
            source = LEFT if side == "left" else RIGHT
            topology.pipe(source, value, key="k", at=at * 1_000)
            out.append([value and list(value) for _, value in topology.values(OUT)])
        assert not topology.refused
    return out


def wanted(kind: str, how: How) -> list[list[Any]]:
    return [row[3 + WAYS.index(how)] for row in GOLDEN[kind]]


@pytest.mark.parametrize("how", WAYS)
def test_two_tables(how: How) -> None:
    joined = JoinTables(name="joined", left=LEFT, right=RIGHT, join=both, to=OUT, how=how)
    assert told("table_table", how, joined) == wanted("table_table", how)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("history", [None, "1h"])
def test_a_stream_and_a_table(how: TableHow, history: str | None) -> None:
    joined = JoinStreamTable(
        name="joined", stream=LEFT, table=RIGHT, join=both, to=OUT, how=how, history=history
    )
    assert told("stream_table", how, joined) == wanted("stream_table", how)


@pytest.mark.parametrize("grace", [0, 4_999])
@pytest.mark.parametrize("how", WAYS)
def test_two_streams(how: How, grace: int) -> None:
    # The documented table sends lone records when stream time is exactly at their end and grace, Kafka's code
    # and we one ms later: with one ms less of grace, or none, the rows are those of the table.
    joined = JoinWithin(
        name="joined",
        left=LEFT,
        right=RIGHT,
        join=both,
        to=OUT,
        before="15s",
        after="15s",
        grace=grace,
        how=how,
    )
    assert told("stream_stream", how, joined) == wanted("stream_stream", how)


def refers_to(value: str) -> str | None:
    key = value.rpartition("|")[2]
    return None if key == "returnNull" else key


def told_foreign(sequence: str, how: TableHow, partitions: int) -> list[list[Any]]:
    joined = JoinForeign(name="joined", left=LEFT, right=RIGHT, key=refers_to, join=both, to=OUT, how=how)
    out = []
    with Topology([*joined], partitions=partitions) as topology:
        for side, key, value, *_ in FOREIGN[sequence]:
            topology.pipe(LEFT if side == "left" else RIGHT, value, key=key)
            out.append([[of, pair and list(pair)] for of, pair in topology.values(OUT)])
        assert not topology.refused
    return out


def needed(told: list[list[Any]]) -> list[list[Any]]:
    """Return the records that Kafka Streams sends, less the tombstones of keys that have no result."""
    there: set[str] = set()
    out = []
    for results in told:
        out.append([each for each in results if each[1] is not None or each[0] in there])
        there = (there | {key for key, pair in results if pair}) - {key for key, pair in results if not pair}
    return out


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_two_tables_by_a_foreign_key(sequence: str, how: TableHow, partitions: int) -> None:
    theirs = [row[3 + WAYS.index(how)] for row in FOREIGN[sequence]]
    ours = told_foreign(sequence, how, partitions)
    if None in theirs:
        assert how == "inner", "the source tells nothing of inner joins by no key"
        assert ours == [[] for _ in theirs]
        return
    if partitions > 1:  # answers of several partitions come in no order of their own
        theirs, ours = [sorted(each) for each in theirs], [sorted(each) for each in ours]
    assert ours == needed(theirs)


def test_tombstones_after_no_result_are_all_that_differs() -> None:
    dropped = {
        (sequence, how): sum(map(len, rows)) - sum(map(len, needed(rows)))
        for sequence in SEQUENCES
        for how in ("inner", "left")
        if None not in (rows := [row[3 + WAYS.index(how)] for row in FOREIGN[sequence]])
    }
    assert {name: count for name, count in dropped.items() if count} == {
        ("guide", "inner"): 1,
        ("shouldEmitTombstoneWhenDeletingNonJoiningRecords", "inner"): 1,
        ("joinShouldProduceNullsWhenValueHasNonMatchingForeignKey", "inner"): 2,
    }


def test_a_stream_without_a_key_is_refused_or_joined_with_nothing() -> None:
    cases: list[tuple[TableHow, int, list[Any]]] = [("inner", 1, []), ("left", 0, [(None, ("A", None))])]
    for how, refused, values in cases:
        joined = JoinStreamTable(name="joined", stream=LEFT, table=RIGHT, join=both, to=OUT, how=how)
        with Topology([joined], partitions=1) as topology:
            topology.pipe(LEFT, "A")
            assert (len(topology.refused), topology.values(OUT)) == (refused, values)


def test_a_group_of_sources_sends_changes_and_removals() -> None:
    group = cogroup(
        name="group",
        on={LEFT: lambda held, text: (held or 0) + len(text), RIGHT: lambda held, text: None},
        row=int,
        to=Stream("sizes", Json(int | None)),
    )
    with Topology([group], partitions=1) as topology:
        for source, value in ((LEFT, "abc"), (LEFT, ""), (RIGHT, "-"), (RIGHT, "-"), (LEFT, "d")):
            topology.pipe(source, value, key="k")
        assert [each.value for each in topology.read("sizes")] == [b"3", None, b"1"]


NAMED: dict[str, Any] = {"name": "joined", "left": LEFT, "right": RIGHT, "join": both, "to": OUT}
NUMBERED = Source("left", Json(str | None), key=Json(int))
ONLY_TEXT: Any = Stream("out", Json(str))
NUMBERED_OUT: Any = Stream("out", Json(str | None), key=Json(int))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: JoinTables(**{**NAMED, "how": "full"}), "how 'full'; choose from inner, left, outer"),
        (lambda: JoinTables(**{**NAMED, "to": ONLY_TEXT}), "cannot say that a result is gone"),
        (lambda: JoinTables(**{**NAMED, "to": NUMBERED_OUT}), "results have those of rows, which are text"),
        (lambda: JoinWithin(**{**NAMED, "to": NUMBERED_OUT}), "results have those of rows, which are text"),
        (lambda: JoinTables(**{**NAMED, "to": "out"}), r"write Stream\(topic, serde\)"),
        (lambda: JoinTables(**{**NAMED, "left": "left"}), r"write Source\(topic, serde\)"),
        (lambda: JoinTables(**{**NAMED, "join": lambda left: left}), "join takes"),
        (lambda: JoinWithin(**{**NAMED, "grace": "soon"}), "grace"),
        (lambda: JoinWithin(**{**NAMED, "idle": "bad"}), "idle 'bad'"),
        (lambda: JoinWithin(**{**NAMED, "late": "late"}), r"late is 'late'; write Stream\(topic, serde\)"),
        (lambda: JoinWithin(**{**NAMED, "late": OUT}), "'out' is named for two kinds of records"),
        (lambda: JoinWithin(**{**NAMED, "right": LEFT}), "left and right are both 'left'.*by Map"),
        (
            lambda: JoinWithin(**{**NAMED, "right": Source("left", Json(str | None))}),
            "left and right are both 'left'",
        ),
        (
            lambda: JoinWithin(**{**NAMED, "late": Stream("left", Json(str))}),
            "it emits to 'left', which it reads",
        ),
        (
            lambda: JoinWithin(**{**NAMED, "to": Stream("left", Json(str))}),
            "it emits to 'left', which it reads",
        ),
        (lambda: JoinTables(**{**NAMED, "left": NUMBERED}), r"keys of 'left' are Json\(int\), and .* text"),
        (
            lambda: cogroup(name="g", on={NUMBERED: lambda held, text: 1}, row=int),
            r"keys of 'left' are Json\(int\)",
        ),
        (
            lambda: JoinStreamTable(name="j", stream=NUMBERED, table=RIGHT, join=both, to=OUT),
            r"keys of 'left' are Json\(int\)",
        ),
        (lambda: JoinTables(**{**NAMED, "right": LEFT}), "left and right are both 'left'"),
        (
            lambda: JoinStreamTable(name="j", stream=LEFT, table=LEFT, join=both, to=OUT),
            "stream and table are both 'left'",
        ),
        (
            lambda: JoinStreamTable(name="j", stream=LEFT, table=RIGHT, join=both, to=OUT, late=OUT),
            "late= needs history=",
        ),
        (
            lambda: JoinStreamTable(name="j", stream=LEFT, table=RIGHT, join=both, to=OUT, how="outer"),  # type: ignore[call-overload]
            "choose from inner, left",
        ),
    ],
)
def test_what_cannot_be_joined_is_said_at_declaration(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
