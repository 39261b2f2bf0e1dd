"""Kafka's error codes of consumer groups, as the folds of groups answer with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum


class GroupCode(IntEnum):
    """Names and numbers of the Kafka protocol."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    COORDINATOR_NOT_AVAILABLE = 15
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_REQUEST = 42
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113


def chosen_protocol(candidates: Iterable[Sequence[str]]) -> str | None:
    """Return the protocol a group uses: among those every member supports, the one most members prefer; None
    without any in common.

    Each member votes for the first of its own that all support. A tie goes to the name that comes first.

    >>> chosen_protocol([("range", "sticky"), ("sticky", "range"), ("sticky", "range", "roundrobin")])
    'sticky'
    """
    lists = [tuple(names) for names in candidates]
    if not lists:
        return None
    common = set(lists[0]).intersection(*lists[1:])
    if not common:
        return None
    votes = Counter(next(name for name in names if name in common) for names in lists)
    return min(votes, key=lambda name: (-votes[name], name))
