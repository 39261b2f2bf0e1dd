"""How hard the random tests try.

`HOLDFAST_TEST_SCALE` says how many times as long as usual: `make fast` searches a fifth, since `make test`
searches all of it before a change lands. `make variants` searches four times as long, and `make sim` forty.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("HOLDFAST_TEST_SCALE", "1"))


def scaled(examples: int) -> int:
    """Return *examples*, times the scale asked for; one at least."""
    return max(1, round(examples * SCALE))
