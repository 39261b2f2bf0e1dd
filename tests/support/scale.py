"""How hard the random tests try.

`HOLDFAST_TEST_SCALE` says how many times as long as usual. `make test` searches half as long, and `make fast`
a tenth; Hypothesis draws other examples in each run. `make variants` searches twice as long as usual, and
`make sim` forty times.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("HOLDFAST_TEST_SCALE", "1"))


def scaled(examples: int) -> int:
    """Return *examples*, times the scale asked for; one at least."""
    return max(1, round(examples * SCALE))
