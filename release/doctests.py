"""What mkdocstrings asks of holdfast (`extensions` of mkdocs.yml): docstrings with their examples as code."""

from __future__ import annotations

from typing import Any

import griffe

from release.pages import with_examples


class Doctests(griffe.Extension):  # type: ignore[misc]  # the site's tools are in an environment of their own
    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)
