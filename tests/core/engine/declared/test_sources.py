"""A processor of several sources: what cannot work is refused when it is declared."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor, by_name
from holdfast.core.engine.declared.serdes import Bytes, Json, Text
from holdfast.core.engine.declared.sources import LIMIT_SOURCES, FoldWith, Source, SourceFold
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.errors import ConfigError


class Total(msgspec.Struct, frozen=True):
    count: int = 0


def folded(rows: Any, event: Any, at_ms: int) -> None: ...


def asking(rows: Any, event: Any, at_ms: int, key: str, offset: int) -> None: ...


async def waiting(rows: Any, event: Any, at_ms: int) -> None: ...


A, B = Source("a", Bytes()), Source("b", Json(int))


def declare(**changed: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {"name": "totals", "on": {A: folded, B: folded}, "row": Total}
    return Processor(**declared | changed)


PAIR: Any = (declare(), declare())


def many(count: int) -> dict[Any, Any]:
    return {Source(f"t{number}", Bytes()): folded for number in range(count)}


def test_sources_are_numbered_as_they_are_named() -> None:
    found = declare(on={B: FoldWith(asking, ("key", "offset")), A: folded})
    assert found.topics == ("b", "a")
    assert [(each.number, each.source.topic, each.inputs) for each in found.folds] == [
        (0, "b", ("value", "key", "offset")),
        (1, "a", ("value",)),
    ]


def test_choices_are_of_all_versions() -> None:
    assert declare(version=1).choices("shop") == declare(version=2).choices("shop") == "shop-totals-choices"


def test_the_data_of_one_source_are_those_of_several() -> None:
    one: Processor[Any, Any] = Processor(name="one", source="s", decode=bytes, fold=folded, row=Total)
    (fold,) = one.folds
    assert (one.topics, fold.number, fold.source.topic, fold.inputs) == (("s",), 0, "s", one.columns)
    assert (fold.fold, fold.decode) == (folded, bytes)
    assert (one.on, one.named_sources, one.choices_topics("shop")) == (None, (), ())
    two = declare()
    assert (two.named_sources, two.choices_topics("shop")) == (two.topics, ("shop-totals-choices",))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"on": {}}, "on names no source"),
        ({"on": None}, "is not a valid Kafka topic name: write source='...', or on="),
        ({"on": [A]}, "on is .*; write a dict"),
        ({"on": many(LIMIT_SOURCES + 1)}, "on names 9 sources, 8 are the most"),
        ({"on": {A: folded, Source("a", Json(int)): folded}}, "on names a twice: a source has one fold"),
        ({"on": {"a": folded}}, "on has 'a' for a source; write Source"),
        (
            {"on": {A: None}},
            r"fold of a is None, which cannot be called: write a function of \(rows, event, at_ms\)",
        ),
        ({"on": {A: lambda rows: None}}, r"fold of a takes \(rows\), but is called with 3 arguments"),
        ({"on": {A: waiting}}, "fold of a is an async function"),
        ({"on": {A: FoldWith(folded, ("key",))}}, "but is called with 4 arguments: .rows, event, at_ms, key"),
        ({"on": {A: FoldWith(folded, ("keys",))}}, "inputs .* of a; choose from key, headers"),  # type: ignore[arg-type]
        ({"on": {A: FoldWith(asking, "key")}}, "inputs 'key' of a; choose from"),  # type: ignore[arg-type]
        ({"on": {A: FoldWith(lambda *_: None, ("event_ms",))}}, "asks for event_ms: write Source"),
        ({"on": {Source("a", Bytes(), time=7): folded}}, "time of a is 7, which cannot be called"),  # type: ignore[arg-type]
        ({"source": "s"}, "has both on= and source"),
        ({"decode": bytes, "fold": folded}, "has both on= and decode, fold"),
        ({"inputs": ("key",)}, "has both on= and inputs"),
        ({"on_tick": lambda rows: None}, r"on_tick takes \(rows\), but is called with 3"),
        ({"emits": (A,)}, "is not a valid Kafka topic name"),
    ],
)
def test_what_cannot_work_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare(**changed)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Source("", Bytes()), "source '' is not a valid Kafka topic name"),
        (lambda: Source("a b", Bytes()), "source 'a b' is not a valid Kafka topic name"),
        (lambda: Source(7, Bytes()), "source 7 is not a valid Kafka topic name"),  # type: ignore[arg-type]
        (lambda: Source("a", int), "the serde of source 'a' is .*; write Json"),  # type: ignore[arg-type]
        (lambda: Source("a", Bytes), "the serde of source 'a' is .*; write Json"),  # type: ignore[arg-type]
        (lambda: Source("a", Bytes(), key=str), "the key of source 'a' is .*; write Json"),  # type: ignore[arg-type]
        (lambda: Stream("", Bytes()), "stream '' is not a valid Kafka topic name"),
        (lambda: Stream("a", int), "the serde of stream 'a' is .*; write Json"),  # type: ignore[arg-type]
        (lambda: Stream("a", Bytes(), 7), "the key of stream 'a' is 7; write Json"),  # type: ignore[arg-type]
        (lambda: Internal("a b", Bytes()), "stream 'a b.v1' is not a valid Kafka topic name"),
        (lambda: Internal("a", None), "the serde of stream 'a.v1' is None; write Json"),  # type: ignore[arg-type]
        (lambda: Json(object()), r"Json\(<object.*give a type, as in Json\(int\)"),
        (
            lambda: by_name([PAIR]),
            r"holds the 2 processors .* write \[\*totals\], with a star",
        ),
    ],
)
def test_what_lies_in_a_topic_is_refused_when_it_is_declared(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_the_time_of_a_record_without_a_value_is_that_of_its_append() -> None:
    events = Source("a", Json(int | None), time=lambda at_ms: at_ms)
    fold = SourceFold(0, events, FoldWith(lambda *_: None, ("event_ms",)))
    batch = Batch((0, 1), (98, 99), ((b"7", None),))
    for quickly in (True, False):
        assert [[*each] for each in fold.told(batch, quickly=quickly)] == [[7, None], [7, 99]]


@pytest.mark.parametrize("quickly", [True, False])
def test_a_serde_made_of_one_of_ours_decodes_as_it_says(quickly: bool) -> None:
    class Doubled(Json[int]):
        def decode(self, value: bytes | None) -> int:
            return 2 * super().decode(value)

    class Upper(Text):
        def decode(self, value: bytes | None) -> str | None:
            found = super().decode(value)
            return None if found is None else found.upper()

    source = Source("a", Doubled(int), key=Upper())
    fold = SourceFold(0, source, FoldWith(lambda *_: None, ("key",)))
    batch = Batch((0, 1), (8, 9), ((b"7", b"8"), (b"a", b"b")))
    assert [[*each] for each in fold.told(batch, quickly=quickly)] == [[14, 16], ["A", "B"]]


def test_eight_sources_are_not_too_many() -> None:
    assert len(declare(on=many(LIMIT_SOURCES)).topics) == LIMIT_SOURCES


def test_ticks_need_the_form_of_several_sources() -> None:
    with pytest.raises(ConfigError, match="on_tick needs on="):
        Processor(name="one", source="s", decode=bytes, fold=folded, row=Total, on_tick=lambda *_: None)


def test_two_of_a_name_name_their_sources() -> None:
    with pytest.raises(ConfigError, match=r"share a name, totals of a, b and of a:"):
        by_name([declare(), declare(on={A: folded})])


def test_it_can_be_sent_to_another_process_and_looked_up_by() -> None:
    processor = declare(on={A: folded, B: FoldWith(asking, ("key", "offset"))})
    again = pickle.loads(pickle.dumps(processor))
    assert again.topics == ("a", "b")
    assert again.folds[1].inputs == ("value", "key", "offset")
    assert {processor: 1}[processor] == 1
