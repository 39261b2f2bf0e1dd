"""The rows that a term published last. Deleted rows must be gone; a row that comes back under its number is
either the same row, which the database did not delete, or another, since numbers began again. A row that
comes back under another number is written again by the DELETE itself: a trigger that keeps deleted rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.outbox.row_marks import Known, fits, known
from holdfast.errors import OutboxDroppedError
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow, identity_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

LIMIT_REMEMBERED = 50_000
"""Rows; one that comes back does so in the next take, since it is the lowest."""
LOOKED_ABOVE = 100
"""The search for a row that the DELETE wrote covers so many more than were deleted: it may write others."""


class RowsDone:
    """Remembers rows by number and by what identifies them beyond it. Its deletes run where its rows do, on
    their thread.
    """

    def __init__(self, rows: OutboxRows) -> None:
        self._rows = rows
        self._identities: dict[int, Known] = {}
        self._returned: dict[int, Known] = {}
        self._contents: set[Known] = set()

    def note(self, marks: Mapping[int, Known]) -> None:
        """Remember rows that were published, by their marks."""
        if len(self._identities) + len(marks) > LIMIT_REMEMBERED:
            self._identities.clear()
            self._returned.clear()
        self._identities.update(marks)
        self.note_contents(marks.values())

    def note_contents(self, marks: Collection[Known]) -> None:
        """Remember what rows were like that were published, whatever their numbers."""
        if len(self._contents) + len(marks) > LIMIT_REMEMBERED:
            self._contents.clear()
        self._contents.update(marks)

    def are_suspect(self, marks: Mapping[int, Known]) -> bool:
        """Return whether a row like one of these was published before, under another number: a service wrote
        both in one transaction, or a DELETE wrote it again. `delete_suspects` decides which.
        """
        return not self._contents.isdisjoint(marks.values())

    def delete_suspects(self, rows: Sequence[OutboxRow], delete: Callable[[], T]) -> T:
        """Return the result of *delete*, which deletes *rows*, and remember the rows that it wrote instead of
        them as published.
        """
        result, came = self._deleted(rows, delete)
        self._identities.update({row.id: known(identity_of(row)) for row in came})
        return result

    def _deleted(self, rows: Sequence[OutboxRow], delete: Callable[[], T]) -> tuple[T, list[OutboxRow]]:
        """Return the result of *delete*, and the rows like *rows* that it wrote.

        A service may commit such a row at the same time, which was never published: the transaction does not
        see it.
        """
        with self._rows.database.transaction(snapshot=True):
            highest = self._rows.highest()
            result = delete()
            found = self._rows.above(highest, len(rows) + LOOKED_ABOVE)
        marks = {identity_of(row) for row in rows}
        return result, [row for row in found if identity_of(row) in marks]

    def delete_returned(self, rows: Sequence[OutboxRow]) -> None:
        """Delete rows that were published, deleted, and are there again; OutboxDroppedError when they stay,
        or come back under other numbers.
        """
        deleted, came = self._deleted(rows, lambda: self._rows.delete(rows))
        if came:
            raise OutboxDroppedError(self._rows.kept_text(came[0].id, len(came)))
        if deleted < len(rows):
            self._rows.require_gone(rows)

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
    done: RowsDone, call: Callable[..., Any], published: Sequence[OutboxRow], outbox: str
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
    call(done.delete_returned, published)
