"""A declaration that could not work is refused when it is made, with a word about what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.processor import Emit, Processor
from holdfast.errors import ConfigError


class Total(msgspec.Struct, frozen=True):
    count: int = 0


class Loose(msgspec.Struct):
    count: int = 0


def declare(**changed: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {"name": "totals", "source": "orders", "decode": bytes, "fold": lambda *_: None, "row": Total}
    return Processor(**declared | changed)


def test_names_follow_from_application_name_version_and_partition() -> None:
    totals = declare(version=3)
    assert totals.table == "totals.v3"
    assert totals.changelog("shop") == "shop-totals.v3-changelog"
    assert totals.transactional_id("shop", 7) == "shop.totals.7"


def test_versions_share_no_state_but_fence_each_other() -> None:
    old, new = declare(version=1), declare(version=2)
    assert old.changelog("shop") != new.changelog("shop")
    assert old.transactional_id("shop", 0) == new.transactional_id("shop", 0)


@pytest.mark.parametrize("name", ["", "a" * 101, "a.b", "a b", "-a", "é", "a/b", "a\n"])
def test_a_name_that_could_not_be_part_of_a_topic_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="it becomes part of a topic's name"):
        declare(name=name)


@pytest.mark.parametrize("topic", ["", ".", "..", "a" * 250, "a b", "a/b", "a\n"])
@pytest.mark.parametrize("place", [lambda topic: {"source": topic}, lambda topic: {"emits": ("fine", topic)}])
def test_topics_that_kafka_would_refuse_are_refused(topic: str, place: Callable[[str], dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="not a valid Kafka topic name"):
        declare(**place(topic))


def test_emits_written_as_one_string_is_not_taken_for_its_letters() -> None:
    with pytest.raises(ConfigError, match=r"write a tuple of topics: \('out',\)"):
        declare(emits="out")


@pytest.mark.parametrize("version", [0, -1])
def test_versions_start_at_one(version: int) -> None:
    with pytest.raises(ConfigError, match="versions start at 1"):
        declare(version=version)


@pytest.mark.parametrize("inputs", [(), ("values",), ("value", "topic")])
def test_inputs_are_those_of_a_record(inputs: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="choose from value, key, headers, offset"):
        declare(inputs=inputs)


@pytest.mark.parametrize(
    ("row", "why"), [(Loose, "declare Loose with frozen=True"), (dict, "make it a frozen Struct"), (complex, "decoded")]
)
def test_rows_must_be_of_an_immutable_type_that_can_be_decoded(row: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare(row=row)


def test_an_emit_needs_no_more_than_a_topic() -> None:
    assert Emit("out") == Emit("out", None, None, (), None)
