"""The interface of a layout: its table, and the records in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Table,
)

from holdfast.outbox.schema.layouts.outbox_row import OutboxRow, PreparedRecord


class Layout(ABC):
    """One way to lay records out in columns."""

    name: ClassVar[str]
    order: ClassVar[str] = "id"
    """The column whose numbers order the rows."""
    topic: ClassVar[str]
    key: ClassVar[str]
    sharded: ClassVar[bool] = False
    """True if rows carry a bucket, so that several leaders may share the table."""
    written: ClassVar[Mapping[str, str]]
    """Of each column that a written record fills, its type as Postgres names it; arrays are handed over as
    JSON.
    """
    kinds: ClassVar[Mapping[str, str]]
    """Of each column, which kind of types it may have (holdfast.outbox.schema.kinds)."""
    stamped: ClassVar[str | None] = None
    """The column that takes the time of writing, where the database does not fill it by itself."""

    @abstractmethod
    def columns(self, dialect: str) -> list[Column[Any]]:
        """Return new columns, for one table of that dialect."""

    @abstractmethod
    def selection(self, table: Table) -> list[ColumnElement[Any]]:
        """Return the columns that `decode` takes, in its order, before the attempts."""

    def created(self, table: Table) -> ColumnElement[Any] | None:
        """Return when a row was created, in ms, as `decode` gives it; None where the layout has no time."""
        return None

    @abstractmethod
    def decode(self, raw: Sequence[Any]) -> OutboxRow:
        """Return the row of one selection, its last element the attempts."""

    @abstractmethod
    def encode(self, record: PreparedRecord) -> tuple[Any, ...]:
        """Return the values of `written`, in its order; OutboxRecordError if the layout has no column for
        one.
        """
