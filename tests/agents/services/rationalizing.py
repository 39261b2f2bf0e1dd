"""The built-in application as a worker that restores nothing while the file `CHAOS_RESTORE_HELD` is there:

`python -P -m tests.agents.services.rationalizing worker`.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.faults import hold_up

if __name__ == "__main__":
    if held := os.environ.get("CHAOS_RESTORE_HELD"):
        hold_up(Path(held))
    from holdfast.agents.builtin import app

    app.main()
