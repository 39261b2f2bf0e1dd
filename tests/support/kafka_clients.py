"""How many Kafka clients of C live in this process: each has a thread of this name, until it is destroyed."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path


def clients_alive() -> int:
    """Return how many, once what nobody refers to is gone."""
    gc.collect()
    alive = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):
            alive += name.read_text().startswith("rdk:main")
    return alive
