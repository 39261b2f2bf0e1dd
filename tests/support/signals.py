"""Signals as a program at a terminal has them: whoever runs the tests in the background has Ctrl-C ignored,
and every process that they start inherits that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_at_a_terminal() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, here and in processes that are started meanwhile."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
