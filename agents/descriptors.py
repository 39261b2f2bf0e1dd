"""The number of files and sockets that this process may have open, and the number that a worker needs."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

BASE = 128
"""Kafka's clients, the process itself, and what opens for a moment."""
PER_PARTITION = 7
"""A store's log, lock, manifest and info log, and its writer's connections; its tables of rows come on
top, up to 256 a store.
"""
WANTED = 65_536
_SHARE_OF_CONNECTIONS = 4


def raised_limit() -> int:
    """Raise the soft limit of open files as far as the hard one allows, `WANTED` at most; return what
    holds now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def connections_within(limit: int, connections: int) -> int:
    """Return how many connections may be open under *limit*: at most a quarter of it, so that stores and
    Kafka's clients keep theirs.

    >>> connections_within(65_536, 1_000), connections_within(256, 1_000)
    (1000, 64)
    """
    return min(connections, max(1, limit // _SHARE_OF_CONNECTIONS))


def needed(partitions: int, connections: int) -> int:
    """Return how many descriptors a worker needs that holds *partitions*, owned and standby, and admits
    *connections*.

    >>> needed(32, 1_000)
    1352
    """
    return BASE + PER_PARTITION * partitions + connections


def shortage(limit: int, partitions: int, connections: int) -> str | None:
    """Return the warning when *limit* is below the need, None when it is enough.

    >>> shortage(256, 4, 64) is None
    True
    >>> shortage(256, 64, 64)
    'this process may open 256 files and needs about 640 (7 for each of 64 partitions, 64 connections, 128 others): raise ulimit -n'
    """  # noqa: E501
    want = needed(partitions, connections)
    if want <= limit:
        return None
    return (
        f"this process may open {limit} files and needs about {want} ({PER_PARTITION} for each of"
        f" {partitions} partitions, {connections} connections, {BASE} others): raise ulimit -n"
    )
