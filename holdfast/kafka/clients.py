"""What librdkafka's clients need of their users: how a consumer that reads a log, and is a member of no group, is
set up; and what errors that a client raises while it is calling back must let go of.
"""

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


def forget_frames(error: BaseException) -> None:
    """Have *error* hold no frames any more, once it is told.

    An error that a client raises while it is calling back is referred to for ever by the client's C code, and its frames
    would keep what is in them as long: a producer, say, with its threads and its connections.
    """
    while True:
        error.__traceback__ = None
        cause = error.__cause__ or error.__context__
        if cause is None:
            return
        error = cause
