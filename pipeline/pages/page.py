"""One HTML page with its style in it. No script, no font, no picture from elsewhere, so that it can be kept and sent as one file."""

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
svg .bar { fill: var(--bar) } svg .step { stroke: var(--bar); stroke-width: 2; fill: none } .warn { color: var(--warn) } footer { color: var(--dim); margin-top: 3rem; font-size: 13px }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """Return a page of *parts*, which are HTML; *title* is text."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(each for each in parts if each)
        + "\n<footer>Times are UTC.</footer></body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; numbers stand to the right, None is a dash."""
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
