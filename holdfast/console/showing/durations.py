"""Words for time spans, for pages and the terminal."""

from __future__ import annotations


def duration(ms: float | None) -> str:
    """Return a time span in the largest unit that fits.

    >>> [duration(each) for each in (None, 0, 350, 1_500, 95_000, 7_200_000, 200_000_000)]
    ['–', '0 ms', '350 ms', '1.5 s', '1.6 min', '2.0 h', '2.3 d']
    """
    if ms is None:
        return "–"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"
