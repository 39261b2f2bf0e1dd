"""The base of the settings' sections: a setting's declaration, its check and its name in an error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from functools import cache
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from holdfast.config.argument_types import type_problem
from holdfast.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float = math.inf,
    secret: bool = False,
) -> Any:
    """Declare a setting: its default, its meaning and, for numbers, its inclusive range."""
    return field(
        default=default,
        repr=not secret,
        metadata={"doc": doc, "low": low, "high": high, "secret": secret},
    )


@dataclass(frozen=True, kw_only=True)
class Section:
    """Settings of one subject. A setting has the same full name here, in `Settings`, as a flag and as a
    variable.
    """

    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The origin of each value, by setting name or "kafka.<property>"; filled by `load_settings`."""

    def problems(self) -> Iterator[str]:
        """Yield the faults of values that are each within their range."""
        yield from ()

    def place(self, *names: str) -> str:
        """Name settings with where they came from, to begin an error."""
        return " and ".join(
            f"{name} ({origin})" if (origin := self.origins.get(name)) else name for name in names
        )

    def at_most(self, smaller: str, larger: str, why: str, factor: int = 1) -> Iterator[str]:
        """Yield a problem if *factor* times the value of *smaller* is more than that of *larger*."""
        small, large = getattr(self, smaller), getattr(self, larger)
        if small * factor > large:
            share = "a third of " if factor == 3 else ""
            yield (
                f"{self.place(smaller, larger)} are {small:g} and {large:g}: "
                f"{smaller} may be at most {share}{larger}, since {why}"
            )

    def one_of(self, name: str, *choices: str) -> Iterator[str]:
        """Yield a problem if the value of *name* is none of *choices*."""
        if (value := getattr(self, name)) not in choices:
            yield f"{self.place(name)} is {value!r:.200}; write {' or '.join(choices)}"


def type_problems(settings: Section) -> Iterator[str]:
    """Yield what has not the type of its setting; paths given as text become paths."""
    if not isinstance(settings.origins, Mapping):
        raise ConfigError(f"origins must be a dict, not {settings.origins!r:.200}; load_settings fills it")
    section: Any = type(settings)
    for each in fields(settings):
        value, wanted = getattr(settings, each.name), _types(section)[each.name]
        secret = each.metadata.get("secret", False)
        problem = type_problem(settings.place(each.name), value, wanted, secret=secret)
        if problem is not None:
            yield problem
        elif isinstance(value, str | PathLike) and wanted in (Path, Path | None):
            object.__setattr__(settings, each.name, Path(value))


@cache
def _types(section: type[Section]) -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(section))


def section_problems(section: type[Section], settings: Section) -> Iterator[str]:
    """Yield the faults of the settings that *section* declares: their ranges, then their combinations."""
    declared = (each for each in fields(section) if each.metadata.get("low") is not None)
    ranges = [
        problem
        for each in declared
        if (problem := range_problem(each, getattr(settings, each.name), settings.place(each.name)))
    ]
    yield from ranges or section.problems(settings)


def range_problem(declared: Field[Any], value: object, place: str) -> str | None:
    """Return why *value* cannot be the number that *declared* asks for, None if it can; *place* begins the
    text.
    """
    low, high = declared.metadata["low"], declared.metadata["high"]
    if low is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{place} must be a number, not {value!r:.200}"
    return None if low <= value <= high else f"{place} is {value:g}; the range is {low:g} to {high:g}"


@contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Add a ConfigError of the block to *problems*, so that the next setting is looked at too."""
    try:
        yield
    except ConfigError as error:
        problems.append(str(error))


def refuse(problems: Sequence[str]) -> None:
    """Raise one ConfigError with all *problems*, a line each; nothing is raised for none."""
    if len(problems) > 1:
        raise ConfigError(f"{len(problems)} settings are wrong:", *(f"- {each}" for each in problems))
    if problems:
        raise ConfigError(*problems)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas, without blanks and empty entries."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def is_topic(name: str) -> bool:
    """Return whether Kafka takes *name* for a topic."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")
