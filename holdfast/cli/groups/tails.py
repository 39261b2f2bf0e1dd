"""A lag that consists of markers counts as none: the log itself shows whether records lie between a group's
offset and the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from holdfast.config import Settings
from holdfast.core.kafka.tails import only_markers
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import HoldfastError

LIMIT_LAG = 64
"""A longer tail is not looked at: so large a lag is a real one."""
PEEK_BYTES = 64 << 10


def without_records(
    settings: Settings, tails: Iterable[tuple[Place, int, int]], *, timeout_s: float
) -> set[tuple[Place, int]]:
    """Return the partition and first offset of those of *tails* (partition, first offset, end) in which no
    committed record lies.

    A tail about which the broker does not answer in time, or not to this principal, is not among them.
    """
    short = [tail for tail in tails if 0 < tail[2] - tail[1] <= LIMIT_LAG]
    if not short:
        return set()
    try:
        return asyncio.run(_without_records(settings, short, timeout_s))
    except (HoldfastError, TimeoutError):
        return set()


async def _without_records(
    settings: Settings, tails: Iterable[tuple[Place, int, int]], timeout_s: float
) -> set[tuple[Place, int]]:
    from holdfast.kafka.requests.raw_log import RawLog  # aiokafka takes a while to load

    found = set()
    async with asyncio.timeout(timeout_s), RawLog(settings, timeout_s=timeout_s) as log:
        for (topic, partition), first, end in tails:
            try:
                fetched = await log.fetch(topic, partition, first, committed=True, max_bytes=PEEK_BYTES)
                if fetched.last_stable >= end and only_markers(fetched.data, first, end, fetched.aborted):
                    found.add(((topic, partition), first))
            except HoldfastError:
                continue
    return found
