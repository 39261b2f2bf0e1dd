"""Deadlines of waits in tests."""

from __future__ import annotations

DEADLINE_S = 540.0
"""Deadline of every wait for an expected event. The wait ends as soon as the event has occurred, so a long
deadline costs no time. Where a whole run shares a slow machine, each step takes fifteen times as long as on
an idle one, and any process may stall for half a minute. Below the 900 s at which pytest ends a test, so that
the wait itself reports the missing event.
"""

SCENARIO_S = 800.0
"""Deadline of a whole scenario of several such waits. Also below the 900 s of pytest, so that the scenario
reports its own failure.
"""

VAIN_S = (4, 16, 64)
"""Timeouts, tried in turn, of calls that must fail with a certain reason: on a slow machine the first may end
before any request was sent.
"""
