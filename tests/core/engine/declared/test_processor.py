"""A declaration that could not work is refused when it is made, with a word about what to write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial, wraps
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pytest

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.streams import Internal
from holdfast.errors import ConfigError

T = TypeVar("T")


class Total(msgspec.Struct, frozen=True):
    count: int = 0


class Loose(msgspec.Struct):
    count: int = 0


def declare(**changed: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {
        "name": "totals",
        "source": "orders",
        "decode": bytes,
        "fold": lambda *_: None,
        "row": Total,
    }
    return Processor(**declared | changed)


def test_names_follow_from_application_name_version_and_partition() -> None:
    totals = declare(version=3, emits=("big",))
    assert totals.table == "totals.v3"
    assert totals.changelog("shop") == "shop-totals.v3-changelog"
    assert totals.transactional_id("shop", 7) == "shop.totals.7"


def test_versions_that_write_to_the_same_topics_fence_each_other_and_others_do_not() -> None:
    apart = [declare(version=1), declare(version=2), declare(version=3)]
    assert [each.transactional_id("shop", 7) for each in apart] == [
        "shop.totals.7",
        "shop.totals.v2.7",
        "shop.totals.v3.7",
    ]
    between = declare(version=2, emits=(Internal("words", Text(), version=2),))
    assert between.transactional_id("shop", 7) == "shop.totals.v2.7", "its name bears the version"
    old, new = declare(version=1, emits=("big",)), declare(version=2, emits=("big",))
    assert old.changelog("shop") != new.changelog("shop")
    assert old.transactional_id("shop", 0) == new.transactional_id("shop", 0)


@pytest.mark.parametrize("name", ["", "a" * 101, "a.b", "a b", "-a", "é", "a/b", "a\n"])
def test_a_name_that_could_not_be_part_of_a_topic_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="it becomes part of a topic's name"):
        declare(name=name)


@pytest.mark.parametrize("topic", ["", ".", "..", "a" * 250, "a b", "a/b", "a\n"])
@pytest.mark.parametrize("place", [lambda topic: {"source": topic}, lambda topic: {"emits": ("fine", topic)}])
def test_topics_that_kafka_would_refuse_are_refused(
    topic: str, place: Callable[[str], dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError, match="not a valid Kafka topic name"):
        declare(**place(topic))


def test_emits_written_as_one_string_is_not_taken_for_its_letters() -> None:
    with pytest.raises(ConfigError, match=r"write a tuple of topics: \('out',\)"):
        declare(emits="out")


@pytest.mark.parametrize("version", [0, -1])
def test_versions_start_at_one(version: int) -> None:
    with pytest.raises(ConfigError, match="versions start at 1"):
        declare(version=version)


@pytest.mark.parametrize("inputs", [(), ("values",), ("value", "event_ms")])
def test_inputs_are_those_of_a_record(inputs: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="choose from value, key, headers, offset"):
        declare(inputs=inputs)


@pytest.mark.parametrize(
    ("row", "why"),
    [(Loose, "declare Loose with frozen=True"), (dict, "make it a frozen Struct"), (complex, "decoded")],
)
def test_rows_must_be_of_an_immutable_type_that_can_be_decoded(row: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare(row=row)


def three(rows: Any, event: Any, at_ms: int) -> None: ...


async def later(rows: Any, event: Any, at_ms: int) -> None: ...


async def later_ones(rows: Any, event: Any, at_ms: int) -> AsyncIterator[Emit]:
    yield Emit("out")


class Awaited:
    async def __call__(self, rows: Any, event: Any, at_ms: int) -> None: ...


def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def passes(rows: Any, event: Any, at_ms: int) -> Any:
        return call(rows, event)

    return passes


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"fold": lambda rows, event: None},
            r"fold takes \(rows, event\), but is called with 3 arguments: \(rows, event, at_ms\)",
        ),
        ({"fold": lambda rows, event, at_ms, more: None}, "but is called with 3 arguments"),
        ({"fold": partial(three, 1)}, r"fold takes \(event: 'Any', at_ms: 'int'\), but"),
        ({"fold": None}, "fold is None, which cannot be called: write a function of"),
        ({"fold": "fold"}, "fold is 'fold', which cannot be called"),
        (
            {"fold": later},
            "fold is an async function: folds are pure and wait for nothing; write a plain function",
        ),
        ({"fold": later_ones}, "fold is an async function"),
        ({"fold": partial(later)}, "fold is an async function"),
        ({"fold": Awaited()}, "fold is an async function"),
        (
            {"decode": lambda: None},
            r"decode takes \(\), but is called with 1 argument: \(value\); its arguments are the inputs",
        ),
        (
            {"decode": lambda value: None, "inputs": ("value", "key")},
            r"with 2 arguments: \(value, key\); its arguments are the inputs",
        ),
        ({"decode": None}, "decode is None"),
        ({"decode": msgspec.json.Decoder(int)}, "decode is msgspec.json.Decoder.*, which cannot be called"),
        ({"on_wake": lambda rows, key: None}, r"on_wake takes \(rows, key\), but"),
        ({"on_wake": later}, "on_wake is an async function"),
        (
            {"route": "key"},
            r"route is 'key', which cannot be called: write a function of \(key, partitions\)",
        ),
        ({"route": lambda key: 0}, r"route takes \(key\), but"),
        (
            {"source": ["orders"]},
            (
                r"source \['orders'\] is not the name of a topic: a processor folds one; declare one for each"
                r" topic"
            ),
        ),
        ({"source": None}, "source None is not the name of a topic"),
        ({"version": "2"}, "version '2' is not a whole number: write version=2"),
        ({"version": True}, "version True is not a whole number"),
        ({"version": 1.0}, "version 1.0 is not a whole number"),
        ({"inputs": "value"}, r"inputs 'value'; write a tuple: \('value',\)"),
        ({"inputs": None}, "inputs None; choose from"),
        ({"emits": None}, "emits None is not a tuple of topics"),
        ({"emits": (None,)}, "None is not a valid Kafka topic name"),
        ({"emits": {"out": 1}}, "is not a tuple of topics"),
        (
            {"source": "orders", "emits": ("out", "orders")},
            (
                r"emits to 'orders', which it folds itself.*Emit to Internal\('orders-again', serde,"
                r" version=1\) instead, and fold that as one more source"
            ),
        ),
        ({"row": Total()}, "row type Total.*: it cannot be decoded"),
        ({"row": None}, "None stands for no row"),
        ({"name": 7}, "processor name 7"),
        ({"on_error": "skip"}, "on_error 'skip'; write one of quarantine, stop"),
    ],
)
def test_what_every_record_would_fail_at_is_refused_when_it_is_declared(
    changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        declare(**changed)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"fold": lambda *_: None},
        {"fold": lambda rows, event, at_ms, more=1: None},
        {"fold": partial(three)},
        {"fold": wrapped(lambda rows, event: None)},
        {"decode": msgspec.json.Decoder(int).decode},
        {"decode": int},
        {"decode": dict, "inputs": ("headers",)},
        {"decode": lambda *values: values, "inputs": ["value", "key", "offset"]},
        {"emits": ["out"]},
        {"version": 2},
        {"on_error": "stop"},
    ],
)
def test_what_works_is_taken_however_it_is_written(changed: dict[str, Any]) -> None:
    declare(**changed)


class Item(msgspec.Struct, frozen=True):
    tags: list[str] = []


class Cart(msgspec.Struct, frozen=True):
    items: tuple[Item, ...] = ()


class Tree(msgspec.Struct, frozen=True):
    """Made of itself, and immutable."""

    children: tuple[Tree, ...] = ()


class Chain(msgspec.Struct, frozen=True):
    rest: Chain | None = None
    seen: set[int] | None = None


class Box(msgspec.Struct, Generic[T], frozen=True):
    of: T


class Pair(NamedTuple):
    left: int
    right: bytearray


class Named(TypedDict):
    name: str


@dataclass(frozen=True)
class Solid:
    part: Loose


@dataclass
class Soft:
    part: int


@attrs.define
class Defined:
    part: int


@attrs.frozen
class Fixed:
    part: int


Ids = NewType("Ids", list[int])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (Cart, r"Item\.tags is a list: declare it tuple"),
        (Chain, r"Chain\.seen is a set: declare it frozenset"),
        (Box[dict[str, int]], r"Box\.of is a dict: declare it tuple\[tuple\[key, value\], \.\.\.\]"),
        (Box, r"Box\.of names no type"),
        (Box[Any], r"Box\.of names no type"),
        (Box[Mapping[str, int]], r"Box\.of is a dict"),
        (Box[Sequence[int]], r"Box\.of is a list"),
        (Box[Loose], "declare Loose with frozen=True"),
        (Box[Named], r"Box\.of is a TypedDict: make it a frozen Struct"),
        (Box[Ids], r"Box\.of is a list"),
        (Box[Annotated[list[int], msgspec.Meta(description="ids")]], r"Box\.of is a list"),
        (Box[memoryview], r"Box\.of is a memoryview: declare it bytes"),
        (Box[msgspec.Raw], r"Box\.of is a Raw"),
        (Pair, r"Pair\.right is a bytearray: declare it bytes"),
        (Solid, "declare Loose with frozen=True"),
        (Soft, "declare Soft with frozen=True"),
        (Defined, "declare Defined with frozen=True"),
        (Fixed | int | tuple[int, set[int]], "item 1 is a set"),
        (tuple[list[int], ...], "an item is a list"),
        (tuple, "an item names no type"),
        (object, "it cannot be decoded"),
    ],
)
def test_what_can_be_changed_in_place_is_refused_at_any_depth_with_what_to_write_instead(
    row: Any, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        declare(row=row)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "row",
    [
        Tree,
        Fixed,
        Box[int],
        Box[tuple[Tree, ...]],
        Box[frozenset[int] | None],
        tuple[()],
        int | str,
        Box[Decimal],
        Box[datetime],
    ],
)
def test_rows_of_immutable_types_are_taken(row: Any) -> None:
    assert declare(row=row).row is row


def test_an_emit_needs_no_more_than_a_topic() -> None:
    assert Emit("out") == Emit("out", None, None, (), None)


def migrating(**other: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {
        "name": "counts",
        "source": "words",
        "decode": bytes.decode,
        "fold": fold_nothing,
    }
    return Processor(**{**declared, "row": int, "version": 2, "migrate": {1: migrated}} | other)


def fold_nothing(rows: Any, event: Any, at_ms: int) -> None: ...


def migrated(rows: Any, key: str, row: int) -> None: ...


def of_two(rows: Any, key: str) -> None: ...


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"version": 1}, "migrate from version 1: it is no version before 1"),
        ({"migrate": [migrated]}, r"write a dict: migrate=\{1: function\}"),
        ({"migrate": {"1": migrated}}, "migrate from version '1'"),
        ({"migrate": {1: of_two}}, "is called with 3 arguments"),
        ({"migrate": {1: {3: migrated}}}, "names no table"),
        (
            {"emits": (Internal("words-by-length", Text(), version=2),)},
            "internal topic .* would get nothing of what came before",
        ),
    ],
)
def test_a_migration_that_could_not_work_is_refused(other: dict[str, Any], said: str) -> None:
    assert migrating().migrations[1].type_of("") is int
    with pytest.raises(ConfigError, match=said):
        migrating(**other)
