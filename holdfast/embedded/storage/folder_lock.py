"""One process at a time has a folder: Kafka's ``.lock``, held for as long as the broker runs, however it
ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holdfast.embedded.storage.disk import folder_error
from holdfast.errors import BrokerFolderError

NAME = ".lock"


class FolderLock:
    """Holds *folder* from `take` to `release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take it, or raise BrokerFolderError when another broker has it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise folder_error("open", self._path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BrokerFolderError(
                f"a broker runs in {self._path.parent} already: stop it first, or take another folder"
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
