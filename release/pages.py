"""The text of the site's pages: links from the repository's places to the site's, and examples as code."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
    "bench/RESULTS.md": "measurements.md",
}
"""The pages outside docs/, by their place in the repository, with their place on the site."""
_FENCE = re.compile(r"^(?P<open>`{3,}[a-z]+) [^\n`]*$", re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>(?:[^\]\n]|\n(?!\n))*?)\]\((?P<target>[^)\s]+)\)")
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def page_text(markdown: str, uri: str, home: str) -> str:
    """Return the text of the page *uri*: links as the site has them, and each block of code with its language
    alone.

    >>> page_text("```python runnable\n```\n[a](docs/GLOSSARY.md#claim), [b](tables/store.py)", "index.md", "")
    '```python\n```\n[a](GLOSSARY.md#claim), b'
    """  # noqa: E501
    plain = _FENCE.sub(lambda found: found["open"], markdown)
    return _LINK.sub(lambda found: _linked(found["text"], found["target"], uri, home), plain)


def _linked(text: str, target: str, uri: str, home: str) -> str:
    """Return a link from the page *uri*: within the site, or to the repository; without a home, its text
    alone.
    """
    if re.match(r"[a-z]+:|#", target):
        return f"[{text}]({target})"
    path, mark, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(_place(uri)), path))
    within = _uri(place)
    if within is not None:
        return f"[{text}]({posixpath.relpath(within, posixpath.dirname(uri) or '.')}{mark}{anchor})"
    return f"[{text}]({home}/blob/HEAD/{place}{mark}{anchor})" if home else text


def _place(uri: str) -> str:
    """Return where the page *uri* of the site stands in the repository."""
    return {site: place for place, site in BESIDE.items()}.get(uri, f"docs/{uri}")


def _uri(place: str) -> str | None:
    """Return where a file of the repository stands on the site; None if it does not."""
    inside = place.startswith("docs/") and (ROOT / place).is_file()
    return BESIDE.get(place, place.removeprefix("docs/") if inside else None)


def with_examples(docstring: str) -> str:
    """Return *docstring* with a fence around each doctest, which Markdown would take for text.

    >>> with_examples("Adds.\n\n>>> 1 + 1\n2\n\nNo more.").splitlines()[2:6]
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
