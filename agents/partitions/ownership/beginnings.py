"""The first worker of a version that goes on emitting where the one before stood: a bootstrap may be writing the same changelog, beside
workers of the version before, by an id of its own. One of the two begins a partition, and the other finds that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from holdfast.errors import FencedError
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

TRIES = 5
"""As often may a bootstrap come in between: each that does is shut out by the next try, and has to be started again by somebody."""


async def begin(
    parts: Iterable[Partition], read: Callable[[list[Partition]], Awaitable[int]], timeout_s: float
) -> int:
    """Begin those of *parts* that are empty, which are fenced and restored, unless a bootstrap was quicker; *read* restores. Returns how many records
    that took. Raises FencedError when bootstraps come again and again.
    """
    records, tried = 0, 0
    while waiting := [part for part in parts if part.is_to_begin]:
        tried += 1
        try:
            records += await _begin(waiting, read, timeout_s)
        except FencedError:
            if tried == TRIES:
                raise
            logger.info("a bootstrap has come in between; trying again")
    return records


async def _begin(
    waiting: list[Partition], read: Callable[[list[Partition]], Awaitable[int]], timeout_s: float
) -> int:
    builders = [(part, part.builder()) for part in waiting]
    try:
        await all_of(builder.fence(timeout_s) for _, builder in builders)
        records = await read(waiting)
        await all_of(part.begin(builder, timeout_s) for part, builder in builders if part.is_to_begin)
    finally:
        await all_of(builder.close() for _, builder in builders)
    return records + await read(waiting)


async def all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run *works* beside each other until the last has ended; raises the first failure only then: none
    goes on unseen.
    """
    failures = [found for found in await asyncio.gather(*works, return_exceptions=True) if found is not None]
    if failures:
        raise failures[0]
