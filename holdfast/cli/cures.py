"""Commands that errors and findings advise, as whoever asked must type them: with the application that was
named.
"""

from __future__ import annotations

import re
import shlex

OF_AN_APPLICATION = (
    "acls",
    "bootstrap",
    "compare",
    "explain",
    "pipeline",
    "quarantine",
    "replay",
    "reset",
    "tables",
    "tail",
    "topics",
    "topology",
    "verify",
    "worker",
)
"""Commands that without `-A` speak of holdfast's own application."""
_ADVISED = re.compile(rf"`holdfast (?=(?:{'|'.join(OF_AN_APPLICATION)})\b)")
_OF_NONE = "without -A"


def with_application(text: str, application: str | None) -> str:
    """Return *text* with `-A` in the commands that it advises.

    Where an error is raised, the topics are known, and not how the command line named the application.

    >>> with_application("run `holdfast topics create`; see `holdfast dev up`", "shop:app")
    'run `holdfast -A shop:app topics create`; see `holdfast dev up`'
    >>> with_application("run `holdfast topics create`, without -A", "shop")
    'run `holdfast topics create`, without -A'
    >>> with_application("run `holdfast topics create`", None)
    'run `holdfast topics create`'
    """
    if application is None or _OF_NONE in text:
        return text
    named = f"`holdfast -A {shlex.quote(application)} "
    return _ADVISED.sub(lambda _: named, text)
