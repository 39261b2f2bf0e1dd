"""`python -P -m holdfast.cli.worker APPLICATION SETTINGS [FAUST ARGUMENTS]`: one worker of an application.

It takes a second to import. Ctrl-C ends it without a traceback also while it does.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the worker until it is asked to end."""
    try:
        from holdfast.cli.worker.process import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
