"""The frames of the test kit that pytest leaves out: of an error that the kit raises, a reader needs the line
of the test.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError


def of_the_kit(excinfo: Any) -> bool:
    """Return whether pytest hides the frames of a module whose `__tracebackhide__` this is; `--full-trace`
    shows them.

    A bug of the kit shows all of its frames.
    """
    return excinfo is not None and isinstance(excinfo.value, HoldfastError)
