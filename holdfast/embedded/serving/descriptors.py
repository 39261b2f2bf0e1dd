"""Limits the open files of this process that connections take: a broker that cannot open its own stops."""

from __future__ import annotations

import resource

RESERVED = 256
"""Left to the broker's files, and to what else the process opens; where few are allowed, half of them."""


def is_crowded(descriptor: int) -> bool:
    """Return whether a connection of this *descriptor* is one too many. A new file gets the lowest number
    that is free, so that shows how many are open.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return allowed != resource.RLIM_INFINITY and descriptor >= allowed - min(RESERVED, allowed // 2)
