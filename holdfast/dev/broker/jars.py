"""The class path of the local broker, and how far its fetch is; how jars are checked is `holdfast.jars`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from holdfast.cli.status_line import status_line
from holdfast.jars import Progress, find_java, kafka_jars
from holdfast.maven import FetchProgress, Meter, bar

__all__ = ["KAFKA_VERSION", "class_path", "find_java", "with_bar"]

KAFKA_VERSION = "4.3.1"


class _Fetch(Protocol):
    def __call__(self, *, progress: Progress, meter: Meter | None) -> list[Path]: ...


def class_path(*, progress: Progress | None = None) -> str:
    """Return the verified jars of the broker as Java wants them; fetches them when this user's cache lacks
    some, with a bar if there is *progress* to show.
    """
    return os.pathsep.join(str(jar) for jar in (with_bar(kafka_jars, progress) if progress else kafka_jars()))


def with_bar(fetch: _Fetch, progress: Callable[[str], None]) -> list[Path]:
    """Return the result of *fetch*; while it fetches, stderr has a line with a bar."""
    seen: list[FetchProgress] = []

    def meter(fetched: FetchProgress) -> None:
        seen[:] = [fetched]

    with status_line(lambda _: bar(seen[0]) if seen else None):
        return fetch(progress=progress, meter=meter)
