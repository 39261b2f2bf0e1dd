"""Processors as Spark's pickler takes them: the modules they lead to, and what of them cannot be sent to
workers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast

import msgspec

from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import SparkError

C = TypeVar("C")

LIMIT_DEPTH = 8
_DECODING, _ENCODING = ("type", "strict", "dec_hook"), ("enc_hook", "decimal_format", "uuid_format", "order")
CODERS: Mapping[type[Any], tuple[str, ...]] = {
    msgspec.json.Decoder: (*_DECODING, "float_hook"),
    msgspec.msgpack.Decoder: (*_DECODING, "ext_hook"),
    msgspec.json.Encoder: _ENCODING,
    msgspec.msgpack.Encoder: _ENCODING,
}
"""msgspec's coders, which have no pickled form, and the options from which each can be made again."""


def register() -> None:
    """Let Spark's pickler take msgspec's coders, and with them methods such as `Decoder(Order).decode`.

    The registration is for pyspark's own copy of cloudpickle; `pickle` and `copy` in this process stay as
    they are.
    """
    from pyspark.cloudpickle import CloudPickler

    for coder in CODERS:
        CloudPickler.dispatch_table[coder] = _reduced


def _reduced(coder: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    kind = type(coder)
    return _made, (kind, {name: getattr(coder, name) for name in CODERS[kind]})


def _made(kind: Callable[..., C], options: Mapping[str, Any]) -> C:
    return kind(**options)


def modules_of(processor: Processor[Any, Any]) -> set[str]:
    """Return the names of the modules that define what *processor* is made of, at any depth: in `on`, serdes,
    streams, tables, closures and partials.

    Raises SparkError, which names the attribute and the cure, when something of it cannot be sent to Spark's
    workers.
    """
    named = set[str]()
    error = _why_unfit(processor, named)
    if "__main__" in named:
        raise SparkError(
            f"processor {processor.name} is defined in the script or notebook that runs, which Spark's"
            " workers cannot import. Save its definition as a file of its own beside that, for example"
            " processors.py (in a notebook by a cell that begins with %%writefile processors.py), and write"
            " `from processors import ...` in its place. Or use --engine local"
        )
    if error is not None:
        raise _refused(processor, error)
    return named


def _why_unfit(part: object, named: set[str] | None = None) -> Exception | None:
    """Return why a worker cannot be sent *part*, None when it can; add the modules that it leads to to
    *named*.
    """
    from pyspark import cloudpickle

    register()
    seen, out = set[str]() if named is None else named, io.BytesIO()

    class Recorder(cloudpickle.CloudPickler):
        def reducer_override(self, found: Any) -> Any:
            name = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
            if isinstance(name, str):
                seen.add(name)
            return super().reducer_override(found)  # type: ignore[no-untyped-call]

    try:
        Recorder(out).dump(part)  # type: ignore[no-untyped-call]  # pyspark declares no types here
        cloudpickle.loads(out.getvalue())  # some objects are written, and fail only where they are read
    except Exception as error:  # noqa: BLE001  the user's objects raise anything
        return error
    return None


def _refused(processor: Processor[Any, Any], error: Exception) -> SparkError:
    """Return the error that names the innermost part that cannot be sent."""
    path, culprit = ["the processor"], cast(object, processor)
    for name, part in _parts(processor):
        if (why := _why_unfit(part)) is not None:
            path, culprit, error = _innermost([name], part, why)
            break
    what, *inside = path
    held = f"{what} holds {', which holds '.join(inside)}," if inside else f"{what} is"
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    return SparkError(
        f"processor {processor.name}: {held} a {kind}, which cannot be sent to Spark's workers"
        f" ({type(error).__name__}: {str(error)[:200]}). Make it at the top level of a module, where"
        " functions use it by its name: each worker imports the module. Or use --engine local"
    )


def _parts(processor: Processor[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a processor declares, by the names that its author knows."""
    for field in fields(processor):
        value = getattr(processor, field.name)
        if field.name == "on":
            for source, fold in (value or {}).items():
                parts = {"serde": source.serde, "key": source.key, "time": source.time, "fold": fold}
                yield from ((f"{name} of {source.topic}", part) for name, part in parts.items())
        elif field.name in ("tables", "emits"):
            named = value.items() if field.name == "tables" else ((str(each), each) for each in value)
            yield from ((f"{name} of {field.name}", part) for name, part in named)
        else:
            yield field.name, value


def _innermost(path: list[str], part: Any, error: Exception) -> tuple[list[str], Any, Exception]:
    """Return the names that lead to what cannot be sent, that object, and why."""
    if len(path) < LIMIT_DEPTH:
        for name, inner in _inside(part):
            if (why := _why_unfit(inner)) is not None:
                return _innermost([*path, name], inner, why)
    return path, part, error


def _inside(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function, a partial, a method, a container or an object holds, by name."""
    if isinstance(part, partial):
        yield "its function", part.func
        yield from ((f"argument {at}", each) for at, each in enumerate(part.args))
        yield from ((f"argument {name}", each) for name, each in part.keywords.items())
    elif isinstance(part, MethodType):
        yield "its object", part.__self__
    elif isinstance(part, FunctionType):
        yield from _held(part)
    elif isinstance(part, Mapping):
        yield from ((f"{key!r:.50}", each) for key, each in part.items())
    elif isinstance(part, list | tuple | set | frozenset):
        yield from ((f"element {at}", each) for at, each in enumerate(part))
    elif not isinstance(part, type):
        slots = [name for kind in type(part).__mro__ for name in _names(kind.__dict__.get("__slots__", ()))]
        for name in {*getattr(part, "__dict__", ()), *slots}:
            if hasattr(part, name):
                yield f"{name!r}", getattr(part, name)


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else (*slots,)


def _held(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function holds that is sent with it: variables of its closure, defaults, and the globals
    it uses.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name!r}", cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "a default", default
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"{name!r}", function.__globals__[name]
