"""The parts of a processor that can be sent to Spark's workers, and the error for the others, raised before a
JVM starts.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import cloudpickle

from holdfast import Emit, Json, Processor, Rows, Source, Stream
from holdfast.config import Settings
from holdfast.core.engine.declared.named_tables import Table
from holdfast.core.engine.declared.sources import FoldColumns, FoldWith
from holdfast.errors import SparkError
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark import session
from holdfast.pipeline.spark.pickling import CODERS, modules_of, register
from tests.pipeline.accounts import Record, accounts
from tests.pipeline.lakes import write_bronze

Fold = Callable[..., Any]


class Sale(msgspec.Struct, frozen=True):
    item: str
    cents: int


def other(kind: type, value: Any) -> Any:
    return kind(value)


def ext(code: int, content: memoryview) -> Any:
    return code


def route(key: str, partitions: int) -> int | None:
    return None


def fold(rows: Rows[Any], event: Any, at_ms: int, *more: Any) -> None:
    rows["a"] = event


def arrived(sent: Any) -> Any:
    """Return *sent* as a worker gets it."""
    return cloudpickle.loads(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]


OPTIONS: list[tuple[type, Mapping[str, Any]]] = [
    (msgspec.json.Decoder, {"type": Sale | None, "strict": False, "dec_hook": other, "float_hook": float}),
    (msgspec.msgpack.Decoder, {"type": list[Sale], "strict": False, "dec_hook": other, "ext_hook": ext}),
    (msgspec.json.Encoder, {"enc_hook": str, "decimal_format": "number", "uuid_format": "hex", "order": "sorted"}),  # noqa: E501
    (msgspec.msgpack.Encoder, {"enc_hook": str, "decimal_format": "number", "uuid_format": "hex", "order": "sorted"}),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_coders_travel_with_all_their_options(kind: type, options: Mapping[str, Any]) -> None:
    register()
    assert (
        {*options}
        == {*CODERS[kind]}
        == {name for name in dir(kind) if not name.startswith("_")}
        - {name for name in dir(kind) if callable(getattr(kind, name))}
    ), "msgspec has no option that is left behind"
    for made in (kind(), kind(**options)):
        found = arrived(made)
        assert all(getattr(found, name) == getattr(made, name) for name in options)


def test_methods_of_coders_travel() -> None:
    register()
    for module in (msgspec.json, msgspec.msgpack):
        encode, decode = arrived((module.Encoder().encode, module.Decoder(Sale).decode))
        assert decode(encode(Sale("tea", 3))) == Sale("tea", 3)


def test_no_other_pickler_of_this_process_is_changed() -> None:
    import copyreg

    register()
    assert not {*CODERS} & {*copyreg.dispatch_table}


def test_a_plan_is_the_same_when_it_arrives() -> None:
    modules_of(processor := accounts())
    assert arrived(FoldPlan(processor=processor)).processor == processor


# -- references to the user's modules


class Mark:
    """Bytes as they are: a serde of this module."""

    def decode(self, value: bytes | None) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        return value


def library() -> Processor[Any, Any]:
    """Return a processor without functions of this module."""
    return Processor(name="p", source="s", decode=bytes.decode, fold=print, row=int)


def of_sources(source: Source[Any], call: Any) -> Processor[Any, Any]:
    return Processor(name="p", on={source: call}, row=int)


def enclosing(held: Any) -> Fold:
    made: Fold = eval("lambda held: lambda *given: held", {})(held)
    return made


PLAIN = Source("s", Json(int))
LEADING: dict[str, Processor[Any, Any]] = {
    "a fold in on": of_sources(PLAIN, fold),
    "a fold that asks for more": of_sources(PLAIN, FoldWith(fold, ("key",))),
    "a decoder of columns": of_sources(PLAIN, FoldColumns(print, partial(other, int), ("value",))),
    "a type in a serde": of_sources(Source("s", Json(Sale | None)), print),
    "a serde of a key": of_sources(Source("s", Json(int), key=Mark()), print),
    "a time": of_sources(Source("s", Json(int), time=partial(other, int)), print),
    "on_tick": replace(of_sources(PLAIN, print), on_tick=fold),
    "a named table": replace(library(), tables={"t": Sale}),
    "a route of a named table": replace(library(), tables={"t": Table(int, route=route)}),
    "a stream's serde": replace(library(), emits=(Stream("out", Mark()),)),
    "a closure": replace(library(), fold=enclosing(fold)),
    "a closure in a closure": replace(library(), fold=enclosing(enclosing([fold]))),
    "a partial": replace(library(), fold=partial(print, fold)),
    "a type in a decoder": replace(library(), decode=msgspec.json.Decoder(list[Sale]).decode),
}


@pytest.mark.parametrize("place", LEADING)
def test_code_is_found_wherever_it_is_held(place: str) -> None:
    assert __name__ not in modules_of(library())
    assert __name__ in modules_of(LEADING[place])


# -- refusals


def numbers() -> Iterator[int]:
    yield 1


class Counter:
    """A fold that is an object."""

    def __init__(self) -> None:
        self.left = numbers()

    def __call__(self, rows: Rows[Any], event: Any, at_ms: int) -> list[Emit]:
        return []


class Breaks(Exception):
    """Can be written, and not be read: its arguments are lost."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("no")


UNFIT: list[tuple[Callable[[], Processor[Any, Any]], str]] = [
    (lambda: replace(accounts(), fold=enclosing(threading.Lock())), "fold holds 'held', a _thread.lock"),
    (lambda: replace(accounts(), fold=Counter()), "fold holds 'left', a generator"),
    (lambda: replace(accounts(), fold=partial(print, [numbers()])), "fold holds argument 0, which holds element 0, a generator"),  # noqa: E501
    (lambda: replace(accounts(), fold=enclosing(Breaks(1, 2))), "fold holds 'held', a .*Breaks, .*TypeError"),
    (lambda: of_sources(Source("s", Json(int), time=enclosing(numbers())), fold), "time of s holds 'held', a generator"),  # noqa: E501
    (lambda: of_sources(PLAIN, FoldWith(enclosing(numbers()), ("key",))), "fold of s holds 'fold', which holds 'held', a generator"),  # noqa: E501
    (lambda: replace(accounts(), tables={"t": Table(int, route=partial(print, numbers()))}), "t of tables holds 'route', which holds argument 0"),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("make", "told"), UNFIT)
def test_a_part_that_cannot_be_sent_is_named(make: Callable[[], Processor[Any, Any]], told: str) -> None:
    with pytest.raises(SparkError, match=told) as error:
        modules_of(make())
    assert "which cannot be sent to Spark's workers" in str(error.value)
    assert "or use --engine local" in str(error.value).lower()


def sending(held: socket.socket) -> Fold:
    return lambda *given: held.send(b"x")


def test_a_socket_in_a_lambda_is_reported_before_a_jvm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a JVM was started")

    monkeypatch.setattr(session, "open_session", started)
    write_bronze(tmp_path, "t", {0: [Record(0, 5, None, b"add a 1")]})
    options = ReplayOptions(engine="spark", source="bronze", lake=str(tmp_path))
    with socket.socket() as held:
        processor = replace(accounts("t"), fold=sending(held))
        with pytest.raises(SparkError, match=r"accounts: fold holds 'held', a socket.socket, which cannot"):
            replay(processor, Settings(), options)
