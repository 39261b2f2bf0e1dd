"""Plots as SVG, in the colours of their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from holdfast.pipeline.pages.page import time_of

WIDTH, LEFT, RIGHT = 1100, 70, 20
STEPS = 400
"""A line has at most so many points: finer detail than a dot is not drawn."""


def figure(caption: str, height: int, body: str) -> str:
    """Return a plot of WIDTH and *height* units."""
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(caption)}">{body}</svg></figure>'
    )


def steps(caption: str, times_ms: Sequence[int], height: int = 220) -> str:
    """Return how many of *times_ms* there are up to each time, as a line of steps."""
    ordered = sorted(times_ms)
    first, span, count = ordered[0], max(1, ordered[-1] - ordered[0]), len(ordered)
    bottom, room, across = height - 30, height - 50, WIDTH - LEFT - RIGHT
    stride = max(1, count // STEPS)
    path = f"M{LEFT},{bottom}"
    for number in sorted({*range(stride, count + 1, stride), 1, count}):
        x = LEFT + (ordered[number - 1] - first) / span * across
        path += f"H{x:.1f}V{bottom - number / count * room:.1f}"
    return figure(
        caption,
        height,
        _axis(bottom, 20, count)
        + f'<path class="step" d="{path}H{WIDTH - RIGHT}"/>'
        + f'<text class="dim" x="{LEFT}" y="{height - 8}">{time_of(first)}</text>'
        + f'<text class="dim" x="{WIDTH - RIGHT}" y="{height - 8}"'
        f' text-anchor="end">{time_of(ordered[-1])}</text>',
    )


def _axis(bottom: int, top: int, most: int) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text class="dim" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{said}</text>'
        for y, said in ((bottom, 0), (top, most))
    )


def bars(caption: str, counts: Mapping[str, int], limit: int = 30) -> str:
    """Return counts by name as bars, the first *limit* of them."""
    shown, most, left = [*counts.items()][:limit], max(counts.values()), 260
    body = "".join(
        f'<text x="{left - 8}" y="{at * 24 + 17}" text-anchor="end">{escape(shortened(name))}</text><rect'
        f' class="bar" x="{left}" y="{at * 24 + 4}"'
        f' width="{max(1.0, count / most * (WIDTH - left - 90)):.1f}" height="16" rx="2"/><text class="dim"'
        f' x="{left + count / most * (WIDTH - left - 90) + 6:.1f}" y="{at * 24 + 17}">{count}</text>'
        for at, (name, count) in enumerate(shown)
    )
    more = f" ({len(counts) - limit} more are not shown)" if len(counts) > limit else ""
    return figure(caption + more, len(shown) * 24 + 8, body)


def shortened(name: str, limit: int = 34) -> str:
    """Return a name as a label has room for it."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
