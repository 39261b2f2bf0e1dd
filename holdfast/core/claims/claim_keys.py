"""The row keys of both views of the coordination topic.

They cannot be confused, since no id of a frame contains `/`:

    group/topic/partition      a claim: exactly two slashes
    /pause//group              a pause of a group: three
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.claims.frames import (
    coordination_partition,
)

PAUSE_PREFIX = "/pause//"
RESET_INSTANCE = "reset-"
"""Begins the instance id of an administrator that resets a group; what members make up are hexadecimal
digits.
"""


class ClaimKey(NamedTuple):
    """The subject of a claim: one partition of a topic, for one group."""

    group_id: str
    topic: str
    partition: int


def claim_key(group_id: str, topic: str, partition: int) -> str:
    """Return the row key of a claim in either view.

    `scan(f"{group}/")` gives the claims of a group, `scan(f"{group}/{topic}/")` those of a topic.
    """
    return f"{group_id}/{topic}/{partition}"


def parse_claim_key(key: str) -> ClaimKey:
    """Return the parts of a claim's row key; the inverse of `claim_key`.

    >>> parse_claim_key("foo.bar_consumer/orders/3")
    ClaimKey(group_id='foo.bar_consumer', topic='orders', partition=3)
    """
    group_id, topic, partition = key.split("/")
    return ClaimKey(group_id, topic, int(partition))


def pause_key(group_id: str) -> str:
    """Return the row key of a group's pause; `scan(PAUSE_PREFIX)` gives all pauses and nothing else."""
    return PAUSE_PREFIX + group_id


def route(key: str, partitions: int) -> int | None:
    """Return the coordination partition whose table holds *key*; None for a pause, which is sent to every
    partition it concerns.

    >>> route("foo.bar_consumer/test1/0", 4), route(pause_key("foo.bar_consumer"), 4)
    (2, None)
    """
    return (
        None
        if key.startswith(PAUSE_PREFIX)
        else coordination_partition(parse_claim_key(key).topic, partitions)
    )
