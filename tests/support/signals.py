"""Signals as a program at a terminal has them. In a run in the background Ctrl-C is ignored, and every
process that it starts inherits that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_at_a_terminal() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, here and in processes started in the block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
