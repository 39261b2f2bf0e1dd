"""Finds the calls of users' code that an error left: file, line and function."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import NamedTuple

FRAMES = 8
"""The number of frames that are kept, the innermost."""
LIMIT_CALLS = 600
"""The most characters of a line of calls."""
_PACKAGES = ("/site-packages/", "/dist-packages/")


class UserFrame(NamedTuple):
    """One call: the file, the line at which it was left, and the function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}"


def user_frames(error: BaseException) -> tuple[UserFrame, ...]:
    """Return the calls of users' code that *error* left, the innermost last; none where C code raised it.

    Frames of packages and of the standard library are left out, unless there are no others.
    """
    found: list[UserFrame] = []
    others: list[UserFrame] = []
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        package = _package(traceback.tb_frame)
        if package != "holdfast":
            is_user = package not in sys.stdlib_module_names and not any(
                each in code.co_filename for each in _PACKAGES
            )
            into = found if is_user else others
            into.append(UserFrame(code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return tuple((found or others)[-FRAMES:])


def calls_line(frames: tuple[UserFrame, ...]) -> str:
    """Return calls in one line, the innermost first; as many as LIMIT_CALLS holds.

    >>> calls_line((UserFrame("/a/shop.py", 12, "fold"), UserFrame("/a/shop.py", 9, "fee")))
    'shop.py:9 in fee, called from shop.py:12 in fold'
    """
    line = ", called from ".join(str(each) for each in reversed(frames))
    return line if len(line) <= LIMIT_CALLS else f"{line[: LIMIT_CALLS - 1]}…"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
