"""How hard the random tests try.

`make sim` sets `HOLDFAST_TEST_SCALE` and searches that many times longer; `make fast` sets a part of one,
since `make test` searches all of it before a change lands.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("HOLDFAST_TEST_SCALE", "1"))


def scaled(examples: int) -> int:
    """Return *examples*, times the scale asked for; one at least."""
    return max(1, round(examples * SCALE))
