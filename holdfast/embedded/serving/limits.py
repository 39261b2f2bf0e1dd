"""Limits the cost of one client, and of all together, for the broker. It checks before it works: the first
bytes of a frame, and the counts of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from holdfast.clock import system_clock
from holdfast.embedded.settings import EmbeddedSettings

MEGABYTE = 1 << 20
LIMIT_BYTES, LIMIT_GROUP_BYTES = 4 * MEGABYTE, 16 * MEGABYTE
_BYTES: Mapping[str, int] = {"JoinGroup": LIMIT_GROUP_BYTES, "SyncGroup": LIMIT_GROUP_BYTES}
"""Requests that carry what clients say to each other; those with records may have ``request_max_bytes``."""
WITH_RECORDS = "Produce"
LIMIT_ELEMENTS = 12_000
_ELEMENTS: Mapping[str, int] = {
    "CreateTopics": 35_000,  # 10,000 partitions, each with its assignment
    "CreatePartitions": 35_000,
    "DescribeConfigs": 2_500,
    "DeleteAcls": 1_000,
    "DescribeGroups": 5_000,
    "ConsumerGroupDescribe": 5_000,
}
"""Limits for elements that are answered at some length, or compared with everything there is."""
TURN_S = 0.005
"""The time for the requests of one connection before others have their turn."""
LOG_EVERY_S = 1.0

_Held = TypeVar("_Held")


def limit_bytes(api: str, request_max_bytes: int) -> int:
    """Return how long a frame of *api* may be."""
    return request_max_bytes if api == WITH_RECORDS else min(_BYTES.get(api, LIMIT_BYTES), request_max_bytes)


def limit_elements(api: str) -> int:
    """Return how many elements the arrays of a request may have together."""
    return _ELEMENTS.get(api, LIMIT_ELEMENTS)


class SparingLog:
    """Logs each kind of line at most once in `LOG_EVERY_S`, and how many were left out: strangers cannot fill
    the disk with them.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since: dict[str, tuple[float, int]] = {}

    def warning(self, text: str, **fields: object) -> None:
        last_s, left_out = self._since.get(text, (-LOG_EVERY_S, 0))
        now_s = system_clock.monotonic_s()
        if now_s - last_s < LOG_EVERY_S:
            self._since[text] = last_s, left_out + 1
            return
        self._since[text] = now_s, 0
        line = f"{text} (and %(left_out)s more)" if left_out else text
        told = {**fields, "left_out": left_out}
        self._logger.warning(line, told)


sparing = SparingLog(logging.getLogger("holdfast.embedded.serving"))


class SharedRoom(Generic[_Held]):
    """Bytes that connections hold, at most *limit* together: who holds most is made to let go."""

    def __init__(self, limit: int, let_go: Callable[[_Held], None]) -> None:
        self._limit, self._let_go = limit, let_go
        self._sizes: dict[_Held, int] = {}
        self.total = 0

    def hold(self, who: _Held, size: int) -> None:
        """Note that *who* holds *size* bytes now; 0 is nothing."""
        self.total += size - self._sizes.pop(who, 0)
        if size:
            self._sizes[who] = size
        while self.total > self._limit:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self.total -= self._sizes.pop(largest)
            self._let_go(largest)


class Connections(Generic[_Held]):
    """All connections of a cluster, at most *most*, and the bytes that they hold together."""

    def __init__(
        self, settings: EmbeddedSettings, nodes: Iterable[int], close: Callable[[_Held], None]
    ) -> None:
        self.by_node: dict[int, set[_Held]] = {number: set() for number in nodes}
        self._most, self._close = settings.max_connections, close
        self.queued = SharedRoom[_Held](settings.queued_max_bytes, self._let_go_queued)
        self.unsent = SharedRoom[_Held](settings.unsent_max_bytes, self._let_go_unsent)

    def take(self, node_id: int, who: _Held) -> bool:
        """Take a connection with a broker in; False where there are too many."""
        if sum(map(len, self.by_node.values())) >= self._most:
            return False
        self.by_node[node_id].add(who)
        return True

    def forget(self, node_id: int, who: _Held) -> None:
        """Forget one that has ended."""
        self.by_node[node_id].discard(who)
        self.queued.hold(who, 0)
        self.unsent.hold(who, 0)

    def _let_go_queued(self, who: _Held) -> None:
        sparing.warning("requests wait with more bytes than queued_max_bytes: a connection is closed")
        self._close(who)

    def _let_go_unsent(self, who: _Held) -> None:
        sparing.warning("answers are not read, of more bytes than unsent_max_bytes: a connection is closed")
        self._close(who)
