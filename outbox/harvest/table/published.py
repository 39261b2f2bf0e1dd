"""The rows that a term published last: what is deleted must be gone, and what comes back under its number is
either the same row, which the database did not delete, or another, since numbers began again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.outbox.row_marks import Known, fits
from holdfast.errors import OutboxDroppedError
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow, identity_of

logger = logging.getLogger(__name__)

LIMIT_REMEMBERED = 50_000
"""Rows; one that comes back does so in the next take, since it is the lowest."""


class RowsDone:
    """Remembers rows by number and by what identifies them beyond it."""

    def __init__(self, rows: OutboxRows) -> None:
        self._rows = rows
        self._identities: dict[int, Known] = {}
        self._returned: dict[int, Known] = {}

    def note(self, marks: Mapping[int, Known]) -> None:
        """Remember rows that were published, by their marks."""
        if len(self._identities) + len(marks) > LIMIT_REMEMBERED:
            self._identities.clear()
            self._returned.clear()
        self._identities.update(marks)

    def returned(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Return those of *rows* that were published and deleted before: do not publish them again.

        OutboxDroppedError for one that comes back a second time.
        """
        noted = self._identities
        found = [row for row in rows if row.id in noted and fits(identity_of(row), noted[row.id])]
        for row in found:
            if self._returned.get(row.id) == noted[row.id]:
                raise OutboxDroppedError(self._rows.kept_text(row.id, len(found)))
            self._returned[row.id] = noted[row.id]
        return found

    def others(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Return those of *rows* that have the number of another row that was published."""
        noted = self._identities
        found = [row for row in rows if row.id in noted and not fits(identity_of(row), noted[row.id])]
        for row in found:
            del noted[row.id]
        return found


def delete_again(
    rows: OutboxRows, call: Callable[..., Any], published: Sequence[OutboxRow], outbox: str
) -> None:
    """Delete rows that were published, deleted, and are there again, by *call*; OutboxDroppedError when they
    stay.
    """
    logger.warning(
        "outbox %(outbox)s: row %(row)d%(others)s is there again after it was published and deleted: it is "
        "deleted once more, and not published",
        {
            "outbox": outbox,
            "row": published[0].id,
            "others": f" (and {len(published) - 1} others)" if len(published) > 1 else "",
        },
    )
    if call(rows.delete, published) < len(published):
        call(rows.require_gone, published)
