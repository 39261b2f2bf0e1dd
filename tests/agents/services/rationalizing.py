"""The built-in application as a worker that restores slowly on demand:

`python -P -m tests.agents.services.rationalizing worker`.
"""

from __future__ import annotations

import os

from tests.chaos.faults import slow_down

if __name__ == "__main__":
    if pause_ms := os.environ.get("CHAOS_RESTORE_PAUSE_MS"):
        slow_down(float(pause_ms))
    from holdfast.agents.builtin import app

    app.main()
