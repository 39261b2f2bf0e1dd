"""How long tests wait for what must come."""

from __future__ import annotations

DEADLINE_S = 180.0
"""A wait for what must come ends as soon as it has come, so that a long deadline costs nothing. Where a whole run shares a slow machine, each
step takes fifteen times as long as on an idle one, and any process may stand still for half a minute.
"""

VAIN_S = (4, 16, 64)
"""For how long to wait for what does not come, until it is told why: a slow machine has asked nobody yet when the first of them is over."""
