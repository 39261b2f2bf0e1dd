"""The progress of a replay, a verification, a bootstrap or an audit, for all work that takes longer than a
moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.cli.status_line import status_line
from holdfast.pipeline.progress import Work, watched

PATIENCE_S = 2.0
BAR = 20


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show a line of the work that this context does, once it has taken PATIENCE_S."""
    with watched() as watcher:
        seen: Work | None = None
        since_s = 0.0

        def tell(passed_s: float) -> str | None:
            nonlocal seen, since_s
            if watcher.work is not seen:
                seen, since_s = watcher.work, passed_s
            if seen is None or passed_s < PATIENCE_S:
                return None
            return progress_line(seen, passed_s - since_s)

        with status_line(tell):
            yield


def progress_line(work: Work, passed_s: float) -> str:
    """Return how far *work* is after *passed_s*.

    >>> progress_line(Work("replay of totals", 4_000_000, 1_000_000), 2.0)
    'replay of totals [#####...............] 25 %, 1,000,000 of 4,000,000 offsets, 500,000/s, 6 s left'
    >>> progress_line(Work("replay of totals on Spark", None), 75.0)
    'replay of totals on Spark, 1 min 15 s so far'
    """
    if work.total is None:
        return f"{work.what}, {duration(passed_s)} so far"
    done = min(work.done, work.total)
    share = done / work.total if work.total else 1.0
    rate = done / passed_s if passed_s > 0 else 0.0
    left = f", {duration((work.total - done) / rate)} left" if rate else ""
    bar = "#" * int(BAR * share)
    return (
        f"{work.what} [{bar:.<{BAR}}] {100 * share:.0f} %, {done:,} of {work.total:,} offsets,"
        f" {rate:,.0f}/s{left}"
    )


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(6.2), duration(75), duration(7_260)
    ('6 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
