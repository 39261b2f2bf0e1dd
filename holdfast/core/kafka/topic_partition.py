"""One partition of a topic, as every room names it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """One partition of a topic. A plain tuple (topic, partition) is equal to it.

    >>> TopicPartition("orders", 3) == ("orders", 3)
    True
    """

    topic: str
    partition: int


Place: TypeAlias = tuple[str, int]
"""Topic and partition as a plain tuple, where one is made for every batch or record."""
