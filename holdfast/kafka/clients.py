"""How consumers that read a log, and are members of no group, are set up: all of them hear of ends alike."""

from __future__ import annotations

from typing import Literal

Options = dict[str, str | int | bool]


def reader_options(
    group: str, *, committed: bool, wait_ms: int, lost: Literal["earliest", "error"] = "earliest"
) -> Options:
    """Return the options of a consumer that is given its partitions with `assign` and is told of their ends.

    librdkafka wants a *group* named; it is never joined and never committed to. *committed* hides what open
    transactions hold, and all that lies behind their beginning; without it, an open transaction of a stranger
    hides nothing. *wait_ms* is how long a broker may wait for records: an end is told only with an answer.
    *lost* is what happens where the position is not in the log any more.

    >>> reader_options("app-readers", committed=True, wait_ms=10)["isolation.level"]
    'read_committed'
    """
    return {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "auto.offset.reset": lost,
        "fetch.wait.max.ms": wait_ms,
        "fetch.queue.backoff.ms": 5,
    }
