"""The application of stateless steps under test, and its worker: `python -P -m tests.chaos.stepping worker`.

Lines of words go through every kind of step, over internal topics, to the topic `STEPS_OUT` and to a table
that counts. A word `raise` is refused. `CHAOS_FAULT` is as for `tests.chaos.worker`; `STEPS_VERSION` and
`STEPS_COUNTS_VERSION` are the versions of the first step and of the table downstream.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json, Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.streams import Branch, Filter, Map, Merge, Rekey, count
from tests.chaos.faults import Doom, plant

LONG = 4
"""Minimum number of letters of a long word."""


def split(line: str | None) -> list[tuple[str, str]]:
    """Return the words of a line, each under itself as its key."""
    words = (line or "").split()
    if "raise" in words:
        raise ValueError("told to fail")
    return [(word, word) for word in words]


def is_named(word: str | None) -> bool:
    return word != "the"


def is_long(word: str | None) -> bool:
    return len(word or "") >= LONG


def is_short(word: str | None) -> bool:
    return len(word or "") < LONG


def letters(word: str | None) -> int:
    return len(word or "")


def steps(
    prefix: str, lines: str, out: str, version: int = 1, counts_version: int = 1
) -> list[Processor[Any, Any]]:
    """Return the chain: words of lines by word, counted; and their lengths, by way of all other steps."""
    words = Rekey(
        name=f"{prefix}-words", source=Source(lines, Text()), pairs=split, serde=Text(), version=version
    )
    read = Source(words.to, Text())
    named = Filter(name=f"{prefix}-named", source=read, keep=is_named, version=counts_version)
    sizes = Branch(
        name=f"{prefix}-sizes",
        source=Source(named.to, Text()),
        into={"long": is_long, "short": is_short},
        version=counts_version,
    )
    merged = Merge(
        name=f"{prefix}-merged",
        sources=[Source(sizes["long"], Text()), Source(sizes["short"], Text())],
        version=counts_version,
    )
    lengths = Map(
        name=f"{prefix}-lengths",
        source=Source(merged.to, Text()),
        each=letters,
        to=Stream(out, Json(int)),
        version=counts_version,
    )
    counts = count(name="counts", source=words.to, decode=bytes.decode, key=str, version=counts_version)
    return [words, named, sizes, merged, lengths, counts]


def from_environment() -> list[Processor[Any, Any]]:
    prefix, lines, out = (os.environ[f"STEPS_{name}"] for name in ("PREFIX", "LINES", "OUT"))
    versions = (int(os.environ.get(name, "1")) for name in ("STEPS_VERSION", "STEPS_COUNTS_VERSION"))
    return steps(prefix, lines, out, *versions)


processors = from_environment() if "STEPS_OUT" in os.environ else []

if __name__ == "__main__":
    if fault := os.environ.get("CHAOS_FAULT"):
        plant(Doom(fault))
    create_app(processors).main()
