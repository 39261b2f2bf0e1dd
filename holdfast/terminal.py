r"""Output for terminals: no foreign text moves the cursor, and characters that the terminal lacks are
escaped.

A terminal of ASCII or cp1252, or a pipe under LC_ALL=C, takes all that a command writes: `\u0301` stands for
what its encoding lacks, and for a lone surrogate. So JSON stays JSON, and no command ends in the middle.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Final, TextIO

ESCAPING: Final = "holdfast-escaping"
"""The error handler that escapes."""
ASCII: Final = "holdfast_ascii"
"""ASCII under another name: for one that is called so, click writes UTF-8 all the same."""


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _find(name: str) -> codecs.CodecInfo | None:
    if name != ASCII:
        return None
    found = codecs.lookup("ascii")
    return codecs.CodecInfo(
        found.encode,
        found.decode,
        incrementalencoder=found.incrementalencoder,
        incrementaldecoder=found.incrementaldecoder,
        streamreader=found.streamreader,
        streamwriter=found.streamwriter,
        name=ASCII,
    )


codecs.register_error(ESCAPING, _escaped)
codecs.register(_find)


def printable(told: str) -> str:
    r"""Return text with invisible characters escaped: names of groups and clients, keys and reasons are
    others', and must neither move a terminal's cursor, nor turn the order of its letters, nor begin a line
    that looks like ours.

    >>> printable("ada lovelace"), printable("a\x1b[2J\n\u202eb") == r"a\x1b[2J\n\u202eb", printable("\ud800") == r"\ud800"
    ('ada lovelace', True, True)
    """  # noqa: E501
    if told.isprintable():
        return told
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in told
    )


def visible_lines(told: str) -> str:
    r"""Return text of several lines as `printable` does, with the ends of its lines and its tabs as they are.

    >>> visible_lines("a\n\tb"), visible_lines("a\x1b[2J\nb") == "a\\x1b[2J\nb"
    ('a\n\tb', True)
    """
    if told.isprintable():
        return told
    return re.sub(r"[^\n\t]+", lambda found: printable(found[0]), told)


def escape_what_is_not_shown() -> None:
    """Have stdout and stderr escape what they cannot show, unless PYTHONIOENCODING says otherwise."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper) or stream.errors in (
            "ignore",
            "replace",
            "xmlcharrefreplace",
        ):
            continue
        is_ascii = codecs.lookup(stream.encoding).name == "ascii"
        stream.reconfigure(encoding=ASCII if is_ascii else None, errors=ESCAPING)


def shown_on(stream: TextIO, text: str) -> str:
    r"""Return *text* as *stream* shows it once `escape_what_is_not_shown` was called, to count its columns.

    >>> from io import BytesIO
    >>> shown_on(TextIOWrapper(BytesIO(), encoding="cp1252"), "é e\u0301") == "é e" + r"\u0301"
    True
    """
    if text.isascii():
        return text
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, ESCAPING).decode(encoding)


def given_arguments(arguments: list[str]) -> list[str]:
    """Return arguments as text: bytes that a locale of ASCII did not take for letters are so by UTF-8.

    >>> given_arguments(["caf" + os.fsdecode(b"\\xc3\\xa9"), "plain"])
    ['café', 'plain']
    """
    return [each if each.isascii() else _as_utf8(each) for each in arguments]


def _as_utf8(argument: str) -> str:
    with suppress(UnicodeError):
        argument.encode()
        return argument
    with suppress(UnicodeError):
        return os.fsencode(argument).decode()
    return argument
