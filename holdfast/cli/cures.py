"""Commands that errors and findings advise, as the user must type them: with the application that was
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


def without_application(text: str) -> str:
    """Return *text* of a worker of holdfast's own application, if it advises a command: most often -A was
    forgotten.

    >>> without_application("run `holdfast topics create`")
    "run `holdfast topics create`; no -A was given, so this is holdfast's own application: your own starts with `holdfast -A MODULE worker`"
    >>> without_application("no broker")
    'no broker'
    """  # noqa: E501
    if _ADVISED.search(text) is None:
        return text
    return (
        f"{text}; no -A was given, so this is holdfast's own application: your own starts with"
        " `holdfast -A MODULE worker`"
    )
