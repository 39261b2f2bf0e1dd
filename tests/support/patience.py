"""How long tests wait for what must come."""

from __future__ import annotations

DEADLINE_S = 540.0
"""The deadline of every wait for what must come: it ends as soon as that has come, so that a long deadline
costs nothing. Where a whole run shares a slow machine, each step takes fifteen times as long as on an idle
one, and any process may stand still for half a minute. Below the 900 s at which pytest ends a test, so that
the wait itself says what did not come.
"""

SCENARIO_S = 800.0
"""The deadline of a whole scenario of several such waits. Also below the 900 s of pytest, so that it tells of
itself.
"""

VAIN_S = (4, 16, 64)
"""For how long to wait for what does not come, until it is told why: a slow machine has asked nobody yet when
the first of them is over.
"""
