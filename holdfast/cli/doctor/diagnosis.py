"""The result of one check of `holdfast doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from holdfast.errors import HoldfastError


class Fitness(StrEnum):
    """`absent` is what only some work needs; `error` keeps a worker from its work."""

    OK = "ok"
    ABSENT = "absent"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line of `holdfast doctor`: the subject of the check, its state, and the remedy of a fault."""

    check: str
    fitness: Fitness
    found: str
    cure: str = ""


def examined(check: str, look: Callable[[], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    """Yield the diagnoses of *look*; if it cannot look, the error is the diagnosis. *check* names it then."""
    try:
        yield from look()
    except HoldfastError as error:
        yield from errors_of(check, error)


def errors_of(check: str, error: HoldfastError) -> Iterator[Diagnosis]:
    """Yield what an operating error says, cause and cure: a line for each wrong setting."""
    lines = [" ".join(str(line).split()).removeprefix("- ") for line in error.args]
    for line in lines if len(lines) == 1 else [line for line in lines if not line.endswith(":")]:
        cause, _, cure = line.partition("; ")
        yield Diagnosis(check=check, fitness=Fitness.ERROR, found=cause, cure=cure)
