"""A replay's waits for the needs of its folds, where a worker would wait. Spark's tasks wait so too."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from holdfast.clock import system_clock
from holdfast.core.engine.fold.patience import OnLater, Waiting
from holdfast.errors import Later

logger = logging.getLogger(__name__)


def _sleep(seconds: float, why: str) -> None:
    logger.warning("%(why)s", {"why": why})
    time.sleep(seconds)


def waiting(timeout_s: float) -> OnLater:
    """Return a callback that waits in this process, up to *timeout_s* for one record; then it raises
    StillWaitingError.
    """
    return Waiting(timeout_s, system_clock.monotonic_s, _sleep)


def fold_whole(folder: Any, given: Iterable[Any], on_later: OnLater, where: str) -> Any:
    """Return the changes of all that is *given*, which may be read again, as often as a record has to wait.

    *where* names table and partition.
    """
    while True:
        try:
            return folder.fold(given)
        except Later as later:
            topic, offset = later.at or ("", "")
            on_later(later, f"{where}: offset {offset}{f' of {topic}' if topic else ''}")
