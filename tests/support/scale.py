"""Effort of the random tests.

A test says how long it searches, and `HOLDFAST_TEST_SCALE` how many times that it does: a fifth in
`make fast` and `make test`, half in `make test-all`, four times in `make variants`, forty in `make sim`.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("HOLDFAST_TEST_SCALE", "1"))


def scaled(examples: int) -> int:
    """Return *examples*, times the scale asked for; one at least."""
    return max(1, round(examples * SCALE))
