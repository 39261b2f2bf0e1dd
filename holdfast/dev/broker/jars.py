"""The class path of the local broker; how jars are fetched and checked is `holdfast.jars`."""

from __future__ import annotations

import os

from holdfast.jars import Progress, find_java, kafka_jars

__all__ = ["KAFKA_VERSION", "class_path", "find_java"]

KAFKA_VERSION = "4.3.1"


def class_path(*, progress: Progress | None = None) -> str:
    """Return the verified jars of the broker as Java wants them; fetches them when this user's cache lacks
    some.
    """
    return os.pathsep.join(str(jar) for jar in (kafka_jars(progress=progress) if progress else kafka_jars()))
