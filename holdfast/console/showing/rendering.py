"""Turns what pages show into HTML: templates, and the filters by which they write numbers and times."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from holdfast.console.showing.durations import duration

ASSETS = {
    "console.js": "text/javascript",
    "charts.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "icon.svg": "image/svg+xml",
}
"""The assets that pages load, all of it from the console itself, with their types. None of it keeps a page
from being painted.
"""


@cache
def asset(name: str) -> bytes:
    """Return the content of one of ASSETS, or of the style."""
    return (resources.files("holdfast.console.showing") / "assets" / name).read_bytes()


@cache
def style() -> Markup:
    """Return the style of pages, to be embedded in each: a page is painted once it has come, and waits for no
    second answer.
    """
    css = asset("console.css").decode()
    assert "</" not in css, "it would end the element that it stands in"
    return Markup(css)


@cache
def style_hash() -> str:
    """Return by what a Content-Security-Policy allows that style and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()}'"


@cache
def asset_url(name: str) -> str:
    """Return an asset's URL: another one for other content, so that browsers may keep it for ever."""
    return f"/assets/{name}?{hashlib.sha256(asset(name)).hexdigest()[:12]}"


def count(value: float | None) -> str:
    """Return a number with its thousands apart, a dash if unknown.

    >>> count(1234567), count(12.5), count(None)
    ('1,234,567', '12.5', '–')
    """
    return "–" if value is None else f"{value:,}"


def moment(at_ms: int | None) -> str:
    """Return a time in UTC, in ms where calendars do not reach, a dash if unknown.

    >>> moment(1_700_000_000_250), moment(10**15 - 1), moment(None)
    ('2023-11-14 22:13:20.250', '999999999999999', '–')
    """
    if at_ms is None:
        return "–"
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def percent(share: float | None) -> str:
    """Return a share in whole per cent, rounded down, so that only all is 100.

    >>> percent(0.999), percent(1.0), percent(None)
    ('99 %', '100 %', '–')
    """
    return "–" if share is None else f"{int(share * 100)} %"


def size(count_bytes: float | None) -> str:
    """Return a number of bytes in the largest unit that fits.

    >>> [size(each) for each in (None, 0, 1_023, 1_536, 5 << 30)]
    ['–', '0 B', '1023 B', '1.5 KiB', '5.0 GiB']
    """
    if count_bytes is None:
        return "–"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count_bytes >= 1 << power:
            return f"{count_bytes / (1 << power):.1f} {unit}"
    return f"{count_bytes:.0f} B"


def slug(state: str) -> str:
    """Return a state as the class that colours it.

    >>> slug("owner is silent")
    'owner-is-silent'
    """
    return "".join(each if each.isalnum() else "-" for each in state.lower())


def commands(text: str) -> Markup:
    """Return text, escaped, with the parts between backticks as code.

    >>> str(commands("`holdfast outbox flush` <now>"))
    '<code>holdfast outbox flush</code> &lt;now&gt;'
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("holdfast.console.showing"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        count=count,
        duration=duration,
        moment=moment,
        percent=percent,
        bytes=size,
        slug=slug,
        asset=asset_url,
        commands=commands,
    )
    made.globals["style"] = style
    return made


def prepare() -> None:
    """Read all templates and assets, so that no request waits for that."""
    for name in _environment().list_templates():
        _environment().get_template(name)
    for name in ASSETS:
        asset(name)


def render(template: str, context: Mapping[str, Any]) -> str:
    """Return a template's HTML; text in *context* is escaped."""
    return _environment().get_template(template).render(context)


def render_block(template: str, block: str, context: Mapping[str, Any]) -> str:
    """Return the HTML of one block of a template."""
    found = _environment().get_template(template)
    return "".join(found.blocks[block](found.new_context(dict(context))))
