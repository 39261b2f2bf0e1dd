"""How hard the random tests try:

`make sim` sets `HOLDFAST_TEST_SCALE` and searches that many times longer.
"""

from __future__ import annotations

import os


def scaled(examples: int) -> int:
    """Return *examples*, times the scale asked for."""
    return examples * int(os.environ.get("HOLDFAST_TEST_SCALE", "1"))
