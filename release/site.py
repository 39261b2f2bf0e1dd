"""What mkdocs asks of holdfast (`hooks` of mkdocs.yml): the pages beside docs/, the reference, the text of
each page.

It runs in the environment of the site's tools, where holdfast itself is not installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from release.pages import BESIDE, page_text  # mkdocs loads this file by its path

REFERENCE = {
    "holdfast": ("Public names", "Import these from `holdfast`. All else is internal, and may change."),
    "streams": ("Streams", "Import these from `holdfast.streams`: steps, aggregations, windows and joins."),
    "testing": ("Test kit", "Import these from `holdfast.testing`."),
    "errors": (
        "Errors",
        "Each says what was wrong, where, and what to do. Import these from `holdfast.errors`.",
    ),
}
STYLE = """\
.md-grid { max-width: 84rem; }
.md-typeset td:first-child code { white-space: nowrap; }
"""
"""Tables of settings and metrics need a wide page, and their names must not break."""
ERRORS, BASE_ERROR = "holdfast.errors", "HoldfastError"
"""The base of all errors is public in two modules, and shown with its family."""


def on_files(files: Files, config: Any) -> Files:
    """Add what stands beside docs/, the style, and a page of reference for each public module."""
    files.append(File.generated(config, "site.css", content=STYLE))
    for place, uri in BESIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / place).read_text("utf-8")))
    for name in REFERENCE:
        files.append(File.generated(config, f"reference/{name}.md", content=_reference(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return page_text(markdown, page.file.src_uri, os.environ.get("HOME_URL", "").rstrip("/"))


def _reference(name: str) -> str:
    """Return the page of the public module *name*: a directive for each of its names."""
    title, introduction = REFERENCE[name]
    module = "holdfast" if name == "holdfast" else f"holdfast.{name}"
    return f"# {title}\n\n{introduction}\n\n" + "\n".join(f"::: {home}\n" for home in _homes(module))


def _homes(module: str) -> list[str]:
    """Return where each public name of *module* is defined, read from its text: nothing is imported."""
    found = griffe.load(module, search_paths=[str(ROOT)])
    names = found.exports or [
        name for name, each in found.members.items() if not each.is_alias and each.is_class
    ]
    return [
        _home(found, str(name)) for name in sorted(names, key=str) if module == ERRORS or name != BASE_ERROR
    ]


def _home(module: Any, name: str) -> str:
    member = module.members[name]
    path: str = member.target_path if member.is_alias else member.path
    return path
