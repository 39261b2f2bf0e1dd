"""A digest of the source of a fold's functions, and of the application's code that they use, whatever
comments and layout.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import FoldColumns, FoldWith

Code = Callable[..., Any]
_PLAIN = str | int | float | bytes | None


def code_of(processor: Processor[Any, Any]) -> str:
    """Return the digest of the functions of a processor, of what functions are bound to, and of the
    functions, classes and plain constants of their own modules that they name, and that these name. What
    holdfast, Python and installed packages bring is not looked at.
    """
    sha, used = hashlib.sha256(), dict[str, str]()
    for each in _functions(processor):
        sha.update(_written(each).encode() + b"\x00")
        _reach(each, used)
    for name in sorted(used):
        sha.update(f"{name}\x00{used[name]}\x00".encode())
    return sha.hexdigest()[:16]


def _functions(processor: Processor[Any, Any]) -> Iterator[Code | None]:
    """Yield the functions that make a state: decoders, folds and times of the sources, and functions that
    timers call.
    """
    if not processor.named_sources:
        yield from (processor.decode, processor.fold, processor.time)
    for source, fold in (processor.on or {}).items():
        yield from (source.serde.decode, source.reads_time, *_parts_of(fold))
    for table in processor.reads:
        yield from (table.source.serde.decode, *_parts_of(table.fold))
    yield from (processor.on_wake, processor.on_tick, processor.on_event)


def _parts_of(fold: Any) -> Iterator[Code]:
    """Yield the functions of a fold as `on=` takes it."""
    if isinstance(fold, FoldColumns):
        yield fold.decode
    yield fold.fold if isinstance(fold, FoldWith | FoldColumns) else fold


def _written(function: Code | None) -> str:
    if function is None:
        return ""
    if isinstance(function, partial):
        bound = [("", each) for each in function.args] + sorted(function.keywords.items())
        return f"{_written(function.func)}({', '.join(f'{name}={_bound(each)}' for name, each in bound)})"
    kind = _kind(function)
    name = _name(kind)
    if name.startswith("holdfast."):
        return name
    try:
        return name + ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):  # typed in, or a part of a line
        return name


def _kind(function: Code) -> Any:
    """Return the object that has a source: the function itself, or the class of an object that is called."""
    function = inspect.unwrap(function)
    return function if hasattr(function, "__qualname__") else type(function)


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _bound(value: Any) -> str:
    """Return the value that a function is bound to, if it reads the same in every process; else its type."""
    if isinstance(value, _PLAIN):
        return repr(value)
    return _written(value) if callable(value) else type(value).__qualname__


# -- what they use


def _reach(used_by: Any, used: dict[str, str]) -> None:
    """Note what *used_by* names of its own application, and what that names."""
    for name, value in _named(used_by):
        if isinstance(value, _PLAIN):
            used[name] = repr(value)
            continue
        if isinstance(value, partial):
            used[name] = _written(value)
            _reach(value, used)
            continue
        kind = _kind(value)
        key = _name(kind)
        if key not in used and _is_own(kind.__module__):
            used[key] = _written(value)
            _reach(kind, used)


def _named(used_by: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions, classes and plain constants that something names, with a name for each."""
    if isinstance(used_by, partial):
        yield from (
            (f"{index}", each) for index, each in enumerate((used_by.func, *used_by.args)) if callable(each)
        )
        return
    kind = _kind(used_by) if callable(used_by) else None
    if isinstance(kind, type):
        parts = [getattr(each, "__func__", each) for each in vars(kind).values()]
        for each in parts:
            if isinstance(each, FunctionType):
                yield from _named(each)
        return
    function = getattr(kind, "__func__", kind)
    if not isinstance(function, FunctionType) or not _is_own(function.__module__):
        return
    names = [*_names_in(function.__code__)]
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            inside = ((f"{value.__name__}.{each}", getattr(value, each, None)) for each in names)
            yield from (each for each in inside if _is_own(value.__name__) and _is_told(each[1]))
        elif _is_told(value):
            yield f"{function.__module__}.{name}", value
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        if _is_told(value):
            yield f"{_name(function)}.{name}", value


def _is_told(value: Any) -> bool:
    return value is not None and (isinstance(value, _PLAIN) or callable(value))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _is_own(module: str) -> bool:
    """Return whether a module is of the application: neither holdfast's, nor Python's, nor of an installed
    package.
    """
    top = module.partition(".")[0]
    if top == "holdfast" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path
