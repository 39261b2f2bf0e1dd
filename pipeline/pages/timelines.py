"""Plots over time as SVG: who held what, how many of what, and when something happened, all on one axis of
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NamedTuple

from holdfast.pipeline.pages.page import time_of
from holdfast.pipeline.pages.plots import LEFT, RIGHT, WIDTH, figure, shortened

LANE_LEFT = 250
LANE = 17
HUES = 9
"""The number of distinct colours, `h0` to `h8` of the page; `hx` is all others, `warn` marks faults."""
_STRIDES_MS = [
    count * unit
    for unit, counts in (
        (1_000, (1, 2, 5, 10, 30)),
        (60_000, (1, 2, 5, 10, 30)),
        (3_600_000, (1, 2, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 30, 90, 365)),
    )
    for count in counts
]


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time from *from_ms* on and before *to_ms*, drawn from *left* to the right edge."""

    from_ms: int
    to_ms: int
    left: int = LEFT

    def x(self, at_ms: float) -> float:
        """Return the coordinate of a time, held within the axis."""
        held = min(max(at_ms, self.from_ms), self.to_ms)
        return self.left + (held - self.from_ms) / max(1, self.to_ms - self.from_ms) * (
            WIDTH - RIGHT - self.left
        )

    def drawn(self, bottom: float) -> str:
        """Return lines and labels down to *bottom*, with room of 22 below for the labels."""
        span = self.to_ms - self.from_ms
        stride = next((each for each in _STRIDES_MS if span <= 8 * each), _STRIDES_MS[-1])
        first = -(-self.from_ms // stride) * stride
        return "".join(
            f'<line class="grid" x1="{self.x(at):.1f}" x2="{self.x(at):.1f}" y1="0" y2="{bottom}"/><text'
            f' class="dim" x="{self.x(at):.1f}" y="{bottom + 16}"'
            f' text-anchor="middle">{_tick(at, stride)}</text>'
            for at in range(first, self.to_ms, stride)
        )


def _tick(at_ms: int, stride_ms: int) -> str:
    day, clock = time_of(at_ms).split(" ")
    if stride_ms >= 86_400_000:
        return day
    text = clock[:5] if stride_ms >= 60_000 else clock[:8]
    return f"{day[5:]} {text}" if at_ms % 86_400_000 == 0 else text


class LaneBar(NamedTuple):
    """A bar of a lane: *hue* is its colour, *told* the text under the pointer."""

    from_ms: float
    to_ms: float
    hue: str
    told: str


class GanttLane(NamedTuple):
    """A line of a Gantt chart."""

    name: str
    bars: Sequence[LaneBar]


def gantt(caption: str, axis: TimeAxis, lanes: Sequence[GanttLane]) -> str:
    """Return bars on lanes; a later bar of a lane covers an earlier one."""
    bottom = len(lanes) * LANE + 4
    body = [axis.drawn(bottom)]
    for at, lane in enumerate(lanes):
        y = at * LANE + 2
        body.append(
            f'<text x="{axis.left - 8}" y="{y + 12}" text-anchor="end">{escape(shortened(lane.name))}</text>'
        )
        body += [
            _bar(axis, bar, y) for bar in lane.bars if bar.to_ms > axis.from_ms and bar.from_ms < axis.to_ms
        ]
    return figure(caption, bottom + 22, "".join(body))


def _bar(axis: TimeAxis, bar: LaneBar, y: int) -> str:
    x = axis.x(bar.from_ms)
    width = max(1.0, axis.x(bar.to_ms) - x)
    return (
        f'<rect class="{bar.hue}" x="{x:.1f}" y="{y}" width="{width:.1f}"'
        f' height="{LANE - 4}"><title>{escape(bar.told)}</title></rect>'
    )


def stacked(
    caption: str,
    axis: TimeAxis,
    series: Mapping[str, Sequence[float]],
    hues: Mapping[str, str],
    height: int = 240,
) -> str:
    """Return a plot of the sum of several *series*, a value each for equal parts of the axis."""
    parts = max((len(each) for each in series.values()), default=0)
    most = max((sum(values) for values in zip(*series.values(), strict=True)), default=0) or 1
    bottom, room = height - 26, height - 46
    width = (WIDTH - RIGHT - axis.left) / max(1, parts)
    below = [0.0] * parts
    body = [axis.drawn(bottom), _scale(axis.left, bottom, bottom - room, f"{most:g}")]
    for name, values in series.items():
        for at, value in enumerate(values):
            if value:
                top = below[at] + value
                body.append(
                    f'<rect class="{hues[name]}" x="{axis.left + at * width:.2f}"'
                    f' y="{bottom - top / most * room:.2f}" width="{width + 0.3:.2f}"'
                    f' height="{value / most * room:.2f}"><title>{escape(name)}: {value:g}</title></rect>'
                )
                below[at] = top
    return figure(caption, height, "".join(body)) + legend({name: hues[name] for name in series})


class Dot(NamedTuple):
    """An event: its time, amount and colour, and the text under the pointer."""

    at_ms: float
    value: float
    hue: str
    told: str


def dots(
    caption: str, axis: TimeAxis, points: Sequence[Dot], hues: Mapping[str, str], height: int = 240
) -> str:
    """Return points by time and value."""
    most = max((each.value for each in points), default=0) or 1
    bottom, room = height - 26, height - 46
    body = [axis.drawn(bottom), _scale(axis.left, bottom, bottom - room, f"{most:g}")]
    body += [
        f'<circle class="{each.hue}" cx="{axis.x(each.at_ms):.1f}"'
        f' cy="{bottom - max(0.0, each.value) / most * room:.1f}"'
        f' r="3.5"><title>{escape(each.told)}</title></circle>'
        for each in points
    ]
    return figure(caption, height, "".join(body)) + legend(hues)


def lines(
    caption: str,
    axis: TimeAxis,
    series: Mapping[str, Sequence[tuple[float, float]]],
    hues: Mapping[str, str],
    height: int = 240,
) -> str:
    """Return series of (time in ms, value), each as a line, in the order of time."""
    most = max((value for points in series.values() for _, value in points), default=0) or 1
    bottom, room = height - 26, height - 46
    body = [axis.drawn(bottom), _scale(axis.left, bottom, bottom - room, f"{most:g}")]
    for name, points in series.items():
        path = " ".join(
            f"{'M' if at == 0 else 'L'}{axis.x(at_ms):.1f},{bottom - max(0.0, value) / most * room:.1f}"
            for at, (at_ms, value) in enumerate(points)
        )
        body.append(f'<path class="line {hues[name]}" d="{path}"><title>{escape(name)}</title></path>')
    return figure(caption, height, "".join(body)) + legend({name: hues[name] for name in series})


def _scale(left: int, bottom: float, top: float, most: str) -> str:
    return "".join(
        f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text class="dim" x="{left - 8}" y="{y + 4}" text-anchor="end">{said}</text>'
        for y, said in ((bottom, "0"), (top, most))
    )


def legend(hues: Mapping[str, str]) -> str:
    """Return the legend of the colours."""
    return (
        '<p class="legend">'
        + "".join(
            f'<span><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class="{hue}" width="10"'
            f' height="10"/></svg>{escape(name)}</span>'
            for name, hue in hues.items()
        )
        + "</p>"
    )


def parted(axis: TimeAxis, parts: int) -> list[tuple[int, int]]:
    """Return the axis in equal *parts*, as (from, to) in ms.

    >>> parted(TimeAxis(0, 10), 2)
    [(0, 5), (5, 10)]
    """
    cuts = [axis.from_ms + (axis.to_ms - axis.from_ms) * at // parts for at in range(parts + 1)]
    return [*pairwise(cuts)]
