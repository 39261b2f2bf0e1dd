"""Ships our code and the user's to Spark's Python workers, as a zip made from the modules imported here."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
import tempfile
import weakref
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import SparkError
from holdfast.pipeline.spark.pickling import modules_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH = (1980, 1, 1, 0, 0, 0)
# The zips of each Spark context. Executors may fetch them at any time, so the folder lives as long as the
# context.
_folders: weakref.WeakKeyDictionary[Any, tempfile.TemporaryDirectory[str]] = weakref.WeakKeyDictionary()


def ship(session: SparkSession, processor: Processor[Any, Any] | None = None) -> None:
    """Put holdfast, and the code *processor* is made of, on the import path of every Python worker of
    *session*.

    Local masters need it as well: the workers do not inherit this process's `sys.path`. Those of
    `worker_daemon` have imported holdfast before, and take the processor from here. Shipping the same code
    again does nothing.
    """
    content = pack(processor)
    name = f"holdfast-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    context = session.sparkContext
    folder = _folders.get(context)
    if folder is None:
        folder = _folders[context] = tempfile.TemporaryDirectory(
            prefix="holdfast-code-", ignore_cleanup_errors=True
        )
    path = Path(folder.name) / name
    if not path.exists():
        path.write_bytes(content)
        context.addPyFile(str(path))


class Packed(NamedTuple):
    """A file to ship, and a mark that changes with it."""

    name: str
    path: str
    changed_ns: int
    size: int


def pack(processor: Processor[Any, Any] | None = None) -> bytes:
    """Return the zip: the `holdfast` package from wherever each part of it is installed, and the processor's
    own package or module.

    Raises SparkError when something of the processor cannot be sent to workers, or they cannot import it.

    Equal sources give equal bytes. Each room is found as the import system finds it, in a wheel, in an
    editable install, in a checkout that lost its links.
    """
    ours = {file.name: file for file in _package("holdfast")}
    zipped = _zipped(tuple(sorted(ours.values())))
    if processor is None:
        return zipped
    own = {file.name: file for file in _code_of(_modules_of(processor)) if file.name not in ours}
    return _zipped(tuple(sorted(own.values())), zipped)


@lru_cache(maxsize=4)
def _zipped(files: tuple[Packed, ...], behind: bytes = b"") -> bytes:
    """Return the zip of *files*, and of those in another zip before them; one that was made is there as long
    as none of them changes.
    """
    content = {file.name: Path(file.path).read_bytes() for file in files}
    for file in files:
        for parent in Path(file.name).parents[:-1]:
            content.setdefault(f"{parent}/__init__.py", b"")  # zipimport on 3.11 knows regular packages only
    with tempfile.TemporaryFile() as made:
        made.write(behind)
        with zipfile.ZipFile(made, "a" if behind else "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(content):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), content[name], zipfile.ZIP_DEFLATED)
        made.seek(0)
        return made.read()


def _package(name: str) -> Iterator[Packed]:
    """Yield the files of a package and of all below it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise SparkError(f"package {name} cannot be shipped to Spark's workers: it is not installed as files")
    seen = set()
    for location in spec.submodule_search_locations:
        for file in _below(location, name.replace(".", "/")):
            seen.add(Path(file.name).parts[1])
            yield file
    if name == "holdfast":
        for room in ROOMS:
            if room not in seen and importlib.util.find_spec(f"holdfast.{room}") is not None:
                yield from _package(f"holdfast.{room}")


def _below(folder: str, base: str) -> Iterator[Packed]:
    with os.scandir(folder) as found:
        entries = [*found]
    for entry in entries:
        if entry.is_dir():
            if os.path.exists(os.path.join(entry.path, "__init__.py")):
                yield from _below(entry.path, f"{base}/{entry.name}")
        elif not entry.name.startswith(".") and not entry.name.endswith(".pyc"):
            yield _packed(f"{base}/{entry.name}", entry.path)


def _packed(name: str, path: str) -> Packed:
    known = os.stat(path)
    return Packed(name, path, known.st_mtime_ns, known.st_size)


ROOMS = ("agents", "tables", "outbox", "pipeline")


def _modules_of(processor: Processor[Any, Any]) -> Iterable[ModuleType]:
    """Return the user's modules that define the parts of the processor, and loaded modules in the same
    folders.
    """
    own = [
        module
        for name in sorted(modules_of(processor))
        if (module := sys.modules.get(name)) is not None and _is_users(module)
    ]
    folders = {_folder(module) for module in own}
    beside = [
        module for module in [*sys.modules.values()] if _is_users(module) and _folder(module) in folders
    ]
    return sorted({*own, *beside}, key=lambda module: module.__name__)


def _folder(module: ModuleType) -> Path:
    """Return the folder from which the module's top package or module is imported."""
    file = Path(str(module.__file__)).absolute()
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    return file.parents[depth] if depth < len(file.parents) else file.parent


def _is_users(module: ModuleType) -> bool:
    """Return whether workers would lack this module: it is Python source, and neither installed nor Python's
    or ours.
    """
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    top = name.partition(".")[0]
    if (
        not file
        or not name
        or top in sys.stdlib_module_names
        or top in ("holdfast", "__main__", "__mp_main__")
    ):
        return False
    path = Path(file).absolute()
    return path.suffix == ".py" and not any(path.is_relative_to(installed) for installed in _INSTALLED)


_INSTALLED = [
    Path(sysconfig.get_path(name)).absolute() for name in ("purelib", "platlib", "stdlib", "platstdlib")
]


def _code_of(modules: Iterable[ModuleType]) -> Iterator[Packed]:
    """Yield the files of each top package of *modules*, looked through once however many of its modules are
    named; of a module alone when no package is above it.
    """
    seen = set()
    for module in modules:
        name = module.__name__.partition(".")[0]
        top = sys.modules.get(name)
        if top is not None and getattr(top, "__path__", None) and getattr(top, "__file__", None):
            if name not in seen:
                seen.add(name)
                yield from _package(name)
        else:
            yield _alone(module)


def _alone(module: ModuleType) -> Packed:
    path = Path(str(module.__file__))
    name = module.__name__.replace(".", "/")
    return _packed(f"{name}/__init__.py" if path.name == "__init__.py" else f"{name}.py", str(path))
