"""Applies changelog records to the state of a partition that this worker restores or keeps as a standby."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Message
from rocksdict import WriteOptions

from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.errors import ChangelogError
from holdfast.tables.state import UNKNOWN, CommittedState

BUFFERED_ROWS = 4_000
"""More rows than these of a transaction whose end has not come are not held in memory: they wait in the
store, unseen.
"""


class ChangelogReplay:
    """Applies a changelog to a partition's state, and finds records that no worker wrote.

    *notify* is called on the thread that applies, once for each group of transactions.
    """

    def __init__(self, state: CommittedState, notify: Callable[[], None]) -> None:
        self._state, self._notify = state, notify
        self._buffered: dict[bytes, bytes | None] = {}
        self._torn = False
        self._objection: ChangelogError | None = None
        self.restored_records = 0
        """Changelog records read since the store was opened."""
        self.changelog_end = UNKNOWN
        """The end offset of the changelog when it was last read here."""

    def apply(self, messages: list[Message], options: WriteOptions) -> None:
        """Apply changelog records; readers see whole transactions only."""
        self.restored_records += len(messages)
        keys: list[Any] = list(map(Message.key, messages))
        values = list(map(Message.value, messages))
        closed = len(keys) - keys[::-1].index(APPLIED) if APPLIED in keys else 0
        marker = self._position(values[closed - 1], messages[closed - 1]) if closed else None
        if marker is None:
            closed = 0
        else:
            # Only the last of a row's changes counts. Markers of the transactions before are among the keys,
            # and written over by this one's.
            self._buffered.update(zip(keys[:closed], values, strict=False))
            del self._buffered[APPLIED]
            changelog_next = (messages[closed - 1].offset() or 0) + 1
            self._state.store.write(self._buffered.items(), marker, changelog_next, options=options)
            self._buffered = {}
            self._notify()
        self._torn = closed < len(keys)
        self._buffered.update(zip(keys[closed:], values[closed:], strict=True))
        self._buffered.pop(APPLIED, None)
        if len(self._buffered) > BUFFERED_ROWS:
            self._state.store.write_pieces(
                list(self._buffered.items()), (messages[-1].offset() or 0) + 1, options=options
            )
            self._buffered = {}

    def _position(self, value: bytes | None, message: Message) -> Position | None:
        """Return the position that a transaction ends with; None for one that is no position, which is
        objected to if no good one follows.
        """
        try:
            if value is None:
                raise ChangelogError(self._state.made_again())
            marker = self._state.positions.decode(value)
        except ChangelogError as error:
            self._objection = ChangelogError(
                f"{self._state.changelog} partition {self._state.partition}, offset {message.offset()}:"
                f" {error}{self._way_out()}"
            )
            return None
        self._objection = None
        return marker

    @property
    def misplaced(self) -> ChangelogError | None:
        """Return the fault of the last position that was read, None for a valid one."""
        return self._objection

    def objection(self) -> ChangelogError | None:
        """Return the fault of the changelog as far as it was read, None if it ends as workers leave it."""
        if self._objection is not None:
            return self._objection
        if not self._torn:
            return None
        return ChangelogError(
            f"changelog {self._state.changelog} partition {self._state.partition} ends inside a transaction:"
            f" records behind {self._state.changelog_next} have no position after them{self._way_out()}"
        )

    def _way_out(self) -> str:
        name = self._state.processor.name
        return f"; `holdfast tables repair {name}` shows what no worker wrote, and the ways on"

    def torn(self) -> bool:
        """Return whether changelog records have come that no marker has closed."""
        return self._torn

    def forget_torn(self) -> None:
        """Drop records that no marker has closed; they come again when reading resumes at
        `changelog_next`.
        """
        self._buffered, self._torn, self._objection = {}, False, None
