"""Loads the application of a command: the module named with `-A`, as for `faust -A`, or holdfast's own."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from holdfast.clients.topics.grants import NO_FAUST
from holdfast.clients.topics.types import FaustTopics
from holdfast.config import Settings
from holdfast.config.kafka_properties import suggest
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError, HoldfastError
from holdfast.extras import extra_of
from holdfast.schemas import registry

BUILT_IN = "holdfast.agents.services.all:processors"
BUILT_IN_APP = "holdfast.agents.builtin:app"
NAMES = ("app", "processors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The processors of one application and the settings they run under. *faust* are the topics of its
    ordinary agents.
    """

    settings: Settings
    processors: tuple[Processor[Any, Any], ...]
    faust: FaustTopics = NO_FAUST
    is_built_in: bool = False
    """True if this is holdfast's own, since no -A names another."""

    @property
    def read_topics(self) -> list[str]:
        """Return the topics that the workers of this application read."""
        return sorted(
            {
                *self.faust.read,
                *(topic for processor in self.processors for topic in processor.topics),
            }
        )

    def processor(self, name: str) -> Processor[Any, Any]:
        """Return the processor of this name; ConfigError with its neighbours when there is none."""
        for processor in self.processors:
            if processor.name == name:
                return processor
        names = [processor.name for processor in self.processors]
        cure = "; name your application with -A MODULE" if self.is_built_in else ""
        raise ConfigError(
            f"application {self.settings.app} has no processor {name}{suggest(name, names)}; it has"
            f" {', '.join(sorted(names))}{cure}"
        )


def load_application(spec: str | None, settings: Settings) -> Application:
    """Return the application that *spec* names: "module", "module:name", or None for the built-in one.

    The module may contain an app of `create_app`, a list of processors, or a function from settings to one.
    Settings that an app was made with count where the command line, the environment and the file say nothing.
    """
    place = BUILT_IN if spec is None else spec
    found = _named(place)
    own, faust = getattr(found, "settings", None), NO_FAUST
    if isinstance(own, Settings):
        settings = merge(settings, own)
        faust = found.faust_topics()  # type: ignore[attr-defined]
        found = found.processors  # type: ignore[attr-defined]  # what carries settings is an app
    elif not isinstance(found, Sequence | Mapping) and isinstance(found, Callable):  # type: ignore[arg-type]
        found = _call(found, settings, place)  # type: ignore[arg-type]
    processors = (
        tuple(found.values() if isinstance(found, Mapping) else found)
        if isinstance(found, Mapping | Sequence)
        else ()
    )
    is_app = isinstance(own, Settings)  # which may have agents alone
    if not (processors or is_app) or not all(isinstance(processor, Processor) for processor in processors):
        raise ConfigError(
            f"-A {place}: found {type(found).__name__} instead of an app of create_app or a list of"
            " processors: write `app = create_app([...])` there, and name the module alone"
        )
    if len({processor.name for processor in processors}) < len(processors):
        raise ConfigError(
            f"-A {place}: two processors share a name: {sorted(processor.name for processor in processors)}"
        )
    registry.use(settings)
    return Application(settings=settings, processors=processors, faust=faust, is_built_in=spec is None)


def load_app(spec: str | None) -> object:
    """Return the app of create_app that *spec* names: "module", "module:name", or None for holdfast's own."""
    place = BUILT_IN_APP if spec is None else spec
    found = _named(place)
    if not isinstance(getattr(found, "settings", None), Settings):
        raise ConfigError(
            f"-A {place}: found {type(found).__name__}, and a worker runs an app of create_app: write `app ="
            " create_app([...])` there"
        )
    return found


def load_function(place: str) -> Callable[..., Any]:
    """Return the function that "module:name" names."""
    module, _, attribute = place.partition(":")
    found = getattr(_import(module), attribute or "", None)
    if not callable(found):
        raise ConfigError(
            f"{place}: write MODULE:FUNCTION, the name of a function in a module that can be imported here"
        )
    return found  # type: ignore[no-any-return]


def merge(settings: Settings, own: Settings) -> Settings:
    """Return *settings* with the application's *own* instead of defaults.

    >>> merge(Settings(web_port=7000), Settings(app="shop", web_port=1)).app, merge(Settings(web_port=7000), Settings(web_port=1)).web_port
    ('shop', 7000)
    """  # noqa: E501
    names = [
        declared.name
        for declared in fields(Settings)
        if declared.name not in ("kafka", "spark_conf", "origins")
    ]
    changes = {name: getattr(own, name) for name in names if settings.origin(name) == "default"}
    chosen = {
        name: value for name, value in settings.kafka.items() if settings.origin(f"kafka.{name}") != "default"
    }
    return replace(
        settings,
        **changes,
        kafka={**own.kafka, **chosen},
        spark_conf={**own.spark_conf, **settings.spark_conf},
    )


def _named(place: str) -> object:
    module, _, attribute = place.partition(":")
    return _attribute(_import(module), attribute)


def _import(name: str) -> ModuleType:
    # A script's sys.path lacks the current folder, where `-A shop` looks for shop.py. At the end, since a
    # folder of some common name next to it (tables, agents) must not hide an installed package.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    if (file := PurePath(name)).suffix == ".py" or len(file.parts) > 1:
        raise ConfigError(
            f"-A {name}: -A takes a module and no file: start in its folder, and write -A {file.stem}"
        )
    if not name or name.startswith("."):
        raise ConfigError(f"-A {name!r}: name a module, such as -A shop, or module:name")
    try:
        return import_module(name)
    except HoldfastError:
        raise
    except Exception as error:
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            raise ConfigError(
                f"-A {name}: there is no module {missing} in {folder} or among the installed packages: start"
                " where its file lies, or install it"
            ) from error
        extra = extra_of(missing)
        more = f"pip install 'holdfast[{extra}]'" if extra else "-v shows the traceback"
        reason = _reason(error)
        told = "" if more in reason else f"; {more}"
        raise ConfigError(f"-A {name} cannot be imported: {reason}{told}") from error


def _call(function: Callable[[Settings], object], settings: Settings, place: str) -> object:
    try:
        inspect.signature(function).bind(settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"-A {place}: found a function that cannot be called with the settings ({error}); name an app of"
            " create_app"
        ) from error
    try:
        return function(settings)
    except HoldfastError:
        raise
    except Exception as error:
        raise ConfigError(f"-A {place} failed: {_reason(error)}; -v shows the traceback") from error


def _reason(error: Exception) -> str:
    """Return the message of an exception in the user's code, and where it was raised."""
    files = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")
    ]
    where = (
        "" if isinstance(error, SyntaxError) or not files else f"{files[-1].filename}:{files[-1].lineno}: "
    )
    return f"{where}{type(error).__name__}: {error}"


def _attribute(module: ModuleType, name: str) -> object:
    if name:
        if not hasattr(module, name):
            raise ConfigError(
                f"-A {module.__name__}:{name}: {module.__file__} has no"
                f" {name}{suggest(name, [*vars(module)])}; leave out :{name} to take `app`"
            )
        return getattr(module, name)
    for candidate in NAMES:
        if hasattr(module, candidate):
            return getattr(module, candidate)
    raise ConfigError(
        f"-A {module.__name__}: {module.__file__} has neither `app` nor `processors`; name one with -A"
        f" {module.__name__}:NAME"
    )
