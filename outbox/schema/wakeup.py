"""Hearing of new rows on Postgres:

LISTEN on a connection of its own, so that an idle harvester asks nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.engine.url import URL

from holdfast.outbox.schema.database import Database

LIMIT_CHANNEL_BYTES: Final = 63


def channel_of(table: Table) -> str:
    """Return the channel on which writers of *table* notify of new rows.

    >>> from sqlalchemy import MetaData
    >>> channel_of(Table("outbox", MetaData(), schema="shop"))
    'holdfast:shop.outbox'
    """
    return f"holdfast:{table.fullname}"[:LIMIT_CHANNEL_BYTES]


class Wakeup:
    """Waits for the next commit that wrote rows.

    A commit before the listener began sends no notification: look at the table first.
    """

    def __init__(self, url: URL, table: Table) -> None:
        self._database = Database(url)
        self._channel = channel_of(table)
        self._listening: Any = None
        self._read, self._write = os.pipe()

    def listen(self) -> bool:
        """Begin to listen, or continue, and return whether it began only now, so that rows may have come
        unnoticed.
        """
        connection = self._database.connection()
        if connection is self._listening:
            return False
        self._database.run(f'LISTEN "{self._channel}"').close()
        self._listening = connection
        return True

    def wait(self, timeout_s: float) -> bool:
        """Return True once rows were committed, or might have been unheard; False after *timeout_s* or
        `interrupt`.

        Raises OutboxDatabaseError when the connection is lost; the next call listens again.
        """
        if self.listen():
            return True
        if self._notified(0.0):
            return True
        ready, _, _ = select.select([self._listening.fileno(), self._read], [], [], timeout_s)
        if self._read in ready or not ready:
            return False
        return self._notified(0.0)

    def _notified(self, timeout_s: float) -> bool:
        with self._database.errors_of(self._listening):
            return any(True for _ in self._listening.notifies(timeout=timeout_s))

    def interrupt(self) -> None:
        """Let `wait` return now, and at once from now on; from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")

    def close(self) -> None:
        """Close the connection."""
        self._listening = None
        self._database.close()
        for number in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(number)
