"""One HTML page with its style in it. No script, no font, no picture from elsewhere, so that it can be kept
and sent as one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from holdfast.pipeline.bronze.lake import LAST_TIME_MS, LEAST_TIME_MS

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #66707b; --line: #d5dae0; --paper: #fff; --bar: #3b6fb6; --warn: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ec; --dim: #98a3af; --line: #3a424b; --paper: #14181d; --bar: #7aa7e6; --warn: #ff8a80 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto; max-width: 1160px; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem } figure { margin: 1.5rem 0 } figcaption { font-weight: 600; margin-bottom: .4rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px } th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { color: var(--dim); font-weight: 600 } td.n { text-align: right; font-variant-numeric: tabular-nums } td { overflow-wrap: break-word; max-width: 26rem }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--ink); font-size: 12px } svg .dim { fill: var(--dim) } svg .grid { stroke: var(--line) }
svg .bar, svg .h0 { fill: var(--bar) } svg .h1 { fill: #4c9f70 } svg .h2 { fill: #d08c2f } svg .h3 { fill: #8a63c9 } svg .h4 { fill: #2a9db0 } svg .h5 { fill: #b85c9e }
svg .h6 { fill: #7d8f2a } svg .h7 { fill: #a0693c } svg .h8 { fill: #5566a8 } svg .hx { fill: #9aa4ae } svg .bad { fill: var(--warn) } svg .nobody { fill: var(--warn); fill-opacity: .4 }
svg .line { fill: none; stroke-width: 2 } svg .line.h0 { stroke: var(--bar) } svg .line.h1 { stroke: #4c9f70 } svg .line.h2 { stroke: #d08c2f } svg .line.bad { stroke: var(--warn) }
.legend { font-size: 13px; margin: -.8rem 0 1.5rem } .legend span { margin-right: 1.2rem; white-space: nowrap } .legend svg.swatch { display: inline; width: 11px; height: 11px; margin-right: .35rem }
svg .bar { fill: var(--bar) } svg .step { stroke: var(--bar); stroke-width: 2; fill: none } .warn { color: var(--warn) } footer { color: var(--dim); margin-top: 3rem; font-size: 13px }
"""  # noqa: E501


def document(title: str, parts: Iterable[str]) -> str:
    """Return a page of *parts*, which are HTML; *title* is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        ' content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n<main><h1>{escape(title)}</h1>\n"
        + "\n".join(each for each in parts if each)
        + "\n</main><footer>Times are UTC.</footer></body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; numbers are aligned right, None is a dash."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    if value is None:
        return "<td>–</td>"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=n' if number else ''}>{escape(str(value))}</td>"


def time_of(at_ms: int) -> str:
    """Return a time as people read it.

    >>> time_of(1_714_564_800_123)
    '2024-05-01 12:00:00.123'
    """
    held = min(max(at_ms, LEAST_TIME_MS), LAST_TIME_MS)
    seconds, ms = divmod(held, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{ms:03d}"
