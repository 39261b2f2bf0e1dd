"""The program `holdfast`. Ctrl-C ends it without a traceback also while it still imports what it runs."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process."""
    try:
        from holdfast.cli.__main__ import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
