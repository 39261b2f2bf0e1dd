"""Begins a version that emits from where the version before ended. A bootstrap with an id of its own may be
writing the same changelog, while workers of the version before still run. One of the two begins a partition,
and the other notices that.
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
"""The number of tries: each shuts out the bootstrap that came before it, which an operator has to start
again.
"""


async def begin(
    parts: Iterable[Partition], read: Callable[[list[Partition]], Awaitable[int]], timeout_s: float
) -> int:
    """Begin those of *parts* that are empty, which are fenced and restored, unless a bootstrap was quicker;
    *read* restores. Return the number of records read. Raises FencedError when bootstraps interrupted TRIES
    tries.
    """
    records, tried = 0, 0
    while waiting := [part for part in parts if part.owner.is_to_begin]:
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
    builders = [(part, part.owner.builder()) for part in waiting]
    try:
        await all_of(builder.fence(timeout_s) for _, builder in builders)
        records = await read(waiting)
        begun = [(part, builder) for part, builder in builders if part.owner.is_to_begin]
        await all_of(part.owner.begin(builder, timeout_s) for part, builder in begun)
    finally:
        await all_of(builder.close() for _, builder in builders)
    _tell([part for part, _ in begun])
    return records + await read(waiting)


def _tell(begun: Iterable[Partition]) -> None:
    """Warn that the versions before are not updated: a bootstrap, which operators may not know, avoids
    that.
    """
    by_table: dict[tuple[str, str], list[int]] = {}
    for part in begun:
        by_table.setdefault((part.processor.table, part.processor.name), []).append(part.partition)
    for (table, name), numbers in sorted(by_table.items()):
        logger.warning(
            "%(table)s partitions %(partitions)s begin empty: the version before is still served, but not"
            " updated until they have caught up; `holdfast bootstrap %(name)s` before its workers builds"
            " a version while the one before is still updated",
            {"table": table, "partitions": sorted(numbers), "name": name},
        )


async def all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run *works* at the same time until the last has ended; raise the first failure only then, so that no
    work is left running unseen.
    """
    failures = [found for found in await asyncio.gather(*works, return_exceptions=True) if found is not None]
    if failures:
        raise failures[0]
