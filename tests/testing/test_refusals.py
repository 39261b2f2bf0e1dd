"""A test that has not looked at refusals fails, and reads where the code failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Emit, FoldWith, Global, Processor, Source, Text, by_key
from holdfast.errors import UnseenRefusalsError
from holdfast.testing import Topology


class Row(msgspec.Struct, frozen=True):
    n: int = 0


Fold = Callable[..., Any]


def of(fold: Fold, **more: Any) -> Processor[Any, Any]:
    declared = {"name": "t", "source": "s", "decode": bytes.decode, "row": Row, "route": by_key}
    return Processor(**{**declared, "fold": fold, "emits": ("out",), **more})


def fee(row: Row) -> int:
    return 1 // row.n


def divides(rows: Any, event: str, at_ms: int) -> None:
    rows[event] = Row(fee(Row()))


def test_a_test_that_does_not_look_at_refusals_fails_at_the_line_that_raised() -> None:
    topology = Topology([of(divides)])
    topology.pipe("s", "x", key="x")
    assert topology.read("out") == []
    with pytest.raises(UnseenRefusalsError) as caught:
        topology.__exit__(None, None, None)
    line = fee.__code__.co_firstlineno + 1
    called = divides.__code__.co_firstlineno + 1
    said = str(caught.value)
    name = Path(__file__).name
    assert f"in {name}:{line} in fee, called from {name}:{called} in divides; this test has not" in said
    assert f'File "{__file__}", line {line}, in fee\n      return 1 // row.n' in said
    assert said.count("\n      ") == 2, "of the calls of users alone"


@pytest.mark.parametrize("look", [lambda topology: topology.refused, lambda topology: topology.stopped])
def test_to_look_is_enough(look: Callable[[Topology], object]) -> None:
    with Topology([of(divides)]) as topology:
        topology.pipe("s", "x", key="x")
        look(topology)


def test_a_refusal_names_the_calls() -> None:
    with Topology([of(divides)]) as topology:
        topology.pipe("s", "x", key="x")
        (refused,) = topology.refused
    assert [each.function for each in refused.frames] == ["divides", "fee"]


def test_a_generator_that_raises_is_found_too() -> None:
    def yields(rows: Any, event: str, at_ms: int) -> Any:
        yield Emit("out", key="a", value=b"%d" % fee(Row()))

    with Topology([of(yields)]) as topology:
        topology.pipe("s", "x", key="x")
        assert [each.function for each in topology.refused[0].frames] == ["yields", "fee"]


def test_a_stopped_partition_that_was_not_looked_at_fails_too() -> None:
    topology = Topology([of(divides, on_error="stop")])
    with pytest.raises(UnseenRefusalsError, match="in fee, called from"), topology:
        topology.pipe("s", "x", key="x")


def test_a_global_s_refusal_that_was_not_looked_at_fails_too() -> None:
    def learn(rows: Any, event: str, at_ms: int, key: str) -> None:
        rows[key] = fee(Row())

    rates: Global[int] = Global("rates", Source("rates", Text()), FoldWith(learn, ("key",)), row=int)
    source = Source("lines", Text())
    words: Any = Processor(name="words", on={source: lambda rows, word, at_ms: None}, row=int, reads=(rates,))
    with (
        pytest.raises(UnseenRefusalsError, match=r"was refused by rates.* in fee"),
        Topology([words]) as topology,
    ):
        topology.pipe(rates.source, "2", key="usd")


def test_an_error_of_the_test_s_own_comes_first() -> None:
    topology = Topology([of(divides)])
    topology.pipe("s", "x", key="x")
    topology.__exit__(KeyError, KeyError("x"), None)


def loops(rows: Any, event: str, at_ms: int) -> None:
    for key in rows:
        rows[key] = Row(1)


def counts(rows: Any, event: str, at_ms: int) -> None:
    rows["n"] = Row(len(rows))


def items(rows: Any, event: str, at_ms: int) -> None:
    for key, _ in rows.items():  # noqa: PERF102
        rows[key] = Row(1)


def defaults(rows: Any, event: str, at_ms: int) -> None:
    rows.setdefault(event, Row())


def one_emit(rows: Any, event: str, at_ms: int) -> Any:
    return Emit("out", key="a", value=b"1")


def a_row(rows: Any, event: str, at_ms: int) -> Any:
    return Row(1)


def a_text(rows: Any, event: str, at_ms: int) -> Any:
    return "done"


def a_dict(rows: Any, event: str, at_ms: int) -> Any:
    return {event: Row(1)}


def a_list_of_rows(rows: Any, event: str, at_ms: int) -> Any:
    return [Row(1)]


@pytest.mark.parametrize(
    ("fold", "cure"),
    [
        (loops, "write `for key, row in rows.scan(prefix):`"),
        (counts, "keep a count in a row"),
        (items, "write `for key, row in rows.scan(prefix):`"),
        (defaults, "write `row = rows.get(key) or Row()`"),
        (one_emit, "write `yield Emit(...)`"),
        (a_row, "stores a row by `rows[key] = row`"),
        (a_text, "stores a row by `rows[key] = row`"),
        (a_dict, "stores a row by `rows[key] = row`"),
        (a_list_of_rows, "stores a row by `rows[key] = row`"),
    ],
)
def test_a_newcomer_s_fold_gets_advice_on_what_to_write(fold: Fold, cure: str) -> None:
    with Topology([of(fold)]) as topology:
        topology.pipe("s", "x", key="x")
        (refused,) = topology.refused
    assert cure in refused.reason
