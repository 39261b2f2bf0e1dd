"""Stateless steps: what each sends, where, and what cannot be declared."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.graph import TopologyGraph
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json, Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError, TopologyError
from holdfast.streams import Branch, Filter, Map, Merge, Rekey, count
from holdfast.testing import Topology

CENTS = Source("cents", Json(int))
LINES = Source("lines", Text())


DECLARED: Any = {"Filter": Filter, "Map": Map, "Branch": Branch, "Merge": Merge, "Rekey": Rekey}
"""Declarations that are wrong on purpose, without the types that would say so."""


def large(cents: int) -> bool:
    return cents >= 100


def pairs(line: str | None) -> list[tuple[str, str]]:
    return [(word, word) for word in (line or "").split()]


def test_records_that_pass_are_the_same_to_the_byte_and_stay_in_their_partition() -> None:
    kept = Filter(name="kept", source=CENTS, keep=large)
    with Topology([kept]) as topology:
        for partition, value in ((2, b" 250 "), (1, b"99"), (0, b"100")):
            topology.pipe("cents", value, key="ada", headers=(("trace", b"1"),), partition=partition)
        told = [(each.partition, each.key, each.value, each.headers) for each in topology.read(kept.to)]
    assert told == [(2, b"ada", b" 250 ", (("trace", b"1"),)), (0, b"ada", b"100", (("trace", b"1"),))]


def test_a_record_that_a_step_fails_for_is_refused_and_the_rest_is_sent() -> None:
    halves = Map(name="halves", source=CENTS, each=lambda cents: 100 // cents, serde=Json(int))
    with Topology([halves]) as topology:
        for value in (b"50", b"0", b"no number", b"20"):
            topology.pipe("cents", value, key="ada")
        assert topology.values(halves.to) == [("ada", 2), ("ada", 5)]
        assert [(each.stage, each.error) for each in topology.refused] == [
            ("fold", "ZeroDivisionError"),
            ("decode", "DecodeError"),
        ]


class FirstDigit:
    """Reads the first digit of a value, with a `next` that raises StopIteration where there is none."""

    def decode(self, value: bytes | None) -> str:
        return next(each for each in (value or b"").decode() if each.isdigit())

    def encode(self, value: str) -> bytes:
        return value.encode()


def test_a_decoder_that_raises_stop_iteration_loses_no_record_behind() -> None:
    step = Map(name="digits", source=Source("texts", FirstDigit()), each=str, serde=Text())
    values = (b"a1", b"none", b"c3", b"none", b"e5")
    batch = Batch(range(5), range(5), (values, (b"k",) * 5, ((),) * 5, (0,) * 5))
    changes = Folder(step, DictStore()).fold([batch])
    assert changes is not None
    assert [each.value for each in changes.emits] == [b"1", b"3", b"5"]
    assert [(each.offset, each.error) for each in changes.refused] == [
        (1, "StopIteration"),
        (3, "StopIteration"),
    ]


def test_the_first_branch_whose_test_is_true_gets_the_record() -> None:
    mine = Stream("vast", Json(int))
    sizes = Branch(
        name="sizes", source=CENTS, into={mine: lambda cents: cents > 999, "large": large}, version=3
    )
    with Topology([sizes]) as topology:
        for cents in (1_000, 250, 1):
            topology.pipe("cents", cents, key="ada")
        assert topology.values(sizes["vast"]) == [("ada", 1_000)]
        assert topology.values(sizes["large"]) == [("ada", 250)]
    assert str(sizes["large"]) == "sizes-large.v3"
    with pytest.raises(ConfigError, match=r"no branch 'small'; it sends to vast, sizes-large\.v3"):
        sizes["small"]


def test_records_under_another_key_come_into_its_partition_and_none_goes_nowhere() -> None:
    names: Rekey[Any, Any] = Rekey(name="names", source=LINES, by=lambda line: line[0] if line else None)
    with Topology([names], partitions=8) as topology:
        for line in ("ada", "", "bob"):
            topology.pipe("lines", line, key="k", partition=3)
        told = [(each.partition, each.key, each.value) for each in topology.read(names.to)]
    assert told == [(by_key(word[0], 8), word[:1].encode(), word.encode()) for word in ("ada", "bob")]


def test_a_chain_counts_words_and_is_drawn() -> None:
    words = Rekey(name="words", source=LINES, pairs=pairs, serde=Text())
    counts = count(name="counts", source=words.to, decode=bytes.decode, key=str)
    with Topology([words, counts]) as topology:
        topology.pipe("lines", "to be or not to be")
        assert topology.table(counts) == {"be": 2, "not": 1, "or": 1, "to": 2}
        with pytest.raises(TopologyError, match=r"words is a stateless step .* what it sends to words\.v1"):
            topology.table(words)
    graph = TopologyGraph.of([counts, words])
    assert (
        graph.text()
        == "words (version 1)\n  folds   lines\n  table   none: a stateless step\n  emits   words.v1"
        " (internal)\n\ncounts (version 1)\n  folds   words.v1 (internal)\n  table   counts.v1"
    )
    assert 'p0(["words v1"])' in graph.mermaid()
    assert [node["table"] for node in graph.records()] == [None, "counts.v1"]


def test_merged_records_keep_their_partitions_and_are_of_the_declared_type() -> None:
    shop, web = Source("shop", Json(int)), Source("web", Json(int))
    sales = Merge(name="sales", sources=[shop, web])
    with Topology([sales]) as topology:
        topology.pipe(shop, 1, key="ada", partition=1)
        topology.pipe("web", b"none", key="ada", partition=1)
        topology.pipe(web, 2, key="ada", partition=2)
        assert [(each.partition, each.value) for each in topology.read(sales.to)] == [(1, b"1"), (2, b"2")]
        assert [each.stage for each in topology.refused] == ["decode"]


def test_internal_topics_bear_the_version_of_their_writer() -> None:
    words = Internal("words", Text(), version=2)
    read = pickle.loads(pickle.dumps(words))
    assert (str(read), read.base, read.version) == ("words.v2", "words", 2)

    def fold(rows: Rows[int], line: str, at_ms: int) -> tuple[Emit, ...]:
        return (words.emit(line, line),)

    declared: dict[str, Any] = {"source": "lines", "decode": bytes.decode, "fold": fold, "row": int}
    assert Processor(name="split", version=2, emits=(words,), **declared).emits == ("words.v2",)
    with pytest.raises(
        ConfigError, match=r"version 3 emits to 'words\.v2'.* write Internal\('words', \.\.\., version=3\)"
    ):
        Processor(name="split", version=3, emits=(words,), **declared)
    with pytest.raises(ConfigError, match="version 0; it is that of the processor"):
        Internal("words", Text(), version=0)


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: DECLARED["Filter"](name="f", source="cents", keep=large), "source is 'cents'; write Source"),
        (
            lambda: DECLARED["Filter"](name="f", source=CENTS, keep=None),
            "keep is None, which cannot be called",
        ),
        (
            lambda: DECLARED["Filter"](name="f", source=CENTS, keep=lambda: True),
            "keep takes \\(\\), but is called with 1",
        ),
        (
            lambda: DECLARED["Filter"](name="f", source=CENTS, keep=large, to=Stream("out", Text())),
            "holds Json\\(int\\) and 'out' Text\\(\\): declare them alike, or use Map",
        ),
        (
            lambda: DECLARED["Filter"](name="f", source=CENTS, keep=large, to=Stream("out", Json(str))),
            "holds Json\\(int\\) and 'out' Json\\(str\\)",
        ),
        (lambda: DECLARED["Map"](name="m", source=CENTS, each=str), "give serde= .*, or to="),
        (
            lambda: DECLARED["Map"](
                name="m", source=CENTS, each=str, serde=Json(str), to=Stream("out", Json(str))
            ),
            "give serde= .*, or to=",
        ),
        (lambda: DECLARED["Map"](name="m", source=CENTS, each=str, to="out"), "to is 'out'; write Stream"),
        (lambda: DECLARED["Branch"](name="b", source=CENTS, into={}), "into is {}; write a dict"),
        (lambda: DECLARED["Branch"](name="b", source=CENTS, into={1: large}), "branch 1; write a name"),
        (
            lambda: DECLARED["Branch"](name="b", source=CENTS, into={"x": None}),
            "the test of branch 'x' is None",
        ),
        (
            lambda: DECLARED["Branch"](
                name="b", source=CENTS, into={"a": large, Stream("b-a.v1", Json(int)): large}
            ),
            "two branches send to 'b-a.v1'",
        ),
        (
            lambda: DECLARED["Map"](name="m", source=CENTS, each=int, to=Stream("cents", Json(int))),
            "it emits to 'cents', which it reads",
        ),
        (
            lambda: DECLARED["Merge"](
                name="m", sources=[CENTS, Source("euros", Json(int))], to=Stream("euros", Json(int))
            ),
            "it emits to 'euros', which it reads",
        ),
        (lambda: DECLARED["Merge"](name="m", sources=[CENTS]), "write a list of two or more"),
        (
            lambda: DECLARED["Merge"](name="m", sources=[CENTS, LINES]),
            "holds Text\\(\\) and 'cents' Json\\(int\\)",
        ),
        (lambda: DECLARED["Rekey"](name="r", source=LINES), "give by= or pairs="),
        (lambda: DECLARED["Rekey"](name="r", source=LINES, by=str, pairs=pairs), "give by= or pairs="),
        (lambda: DECLARED["Rekey"](name="r", source=LINES, by=str, serde=Text()), "leave out serde="),
        (lambda: DECLARED["Rekey"](name="r", source=LINES, pairs=pairs), "with pairs= give serde="),
        (
            lambda: DECLARED["Rekey"](
                name="r", source=LINES, pairs=pairs, serde=Text(), to=Stream("out", Text())
            ),
            "leave out serde= and key=",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(declare: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare()


@pytest.mark.parametrize(
    "step",
    [
        Rekey(name="r", source=CENTS, by=lambda cents: None if cents == 3 else str(7 // cents)),
        Rekey(name="p", source=CENTS, pairs=lambda cents: [(str(cents), cents)] * cents, serde=Json(int)),
        Filter(name="f", source=CENTS, keep=lambda cents: 7 % cents == 1),
        Map(name="m", source=CENTS, each=lambda cents: 7 // cents, serde=Json(int)),
        Branch(name="b", source=CENTS, into={"a": lambda cents: cents > 2, "b": lambda cents: cents > 1}),
    ],
    ids=["by", "pairs", "filter", "map", "branch"],
)
def test_columns_give_what_records_give_one_by_one(step: Any) -> None:
    sound = [b"%d" % cents for cents in (1, 2, 3, 4, 5, 6, 7, 3)]
    for values in (sound, [*sound, b"0", b"none", b"2"]):
        columns: dict[str, list[Any]] = {
            "value": values,
            "key": [b"k"] * len(values),
            "headers": [(("n", value),) for value in values],
            "partition": [2] * len(values),
        }
        batch = Batch(range(len(values)), range(len(values)), tuple(columns[name] for name in step.inputs))
        fast: Folder[Any] = Folder(step, DictStore())
        careful: Folder[Any] = Folder(step, DictStore(), trace=lambda transition: None)
        whole, one_by_one = fast.fold([batch]), careful.fold([batch])
        assert whole is not None
        assert one_by_one is not None
        assert (whole.emits, whole.refused, whole.marker) == (
            one_by_one.emits,
            one_by_one.refused,
            one_by_one.marker,
        )
        assert whole.emits
