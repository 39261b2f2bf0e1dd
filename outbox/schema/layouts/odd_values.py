"""Values that are not of their column's type: what a row with such a value means, or why it means nothing.

SQLite keeps whatever it is given, text where bytes belong and numbers where text belongs, and every database
takes texts that Kafka does not. One such row must not end the harvester, whose other rows are as they should
be.
"""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

from holdfast.core.outbox.created_times import is_created_time
from holdfast.errors import OutboxSchemaError
from holdfast.outbox.schema.layouts.outbox_row import LIMIT_TOPIC

LIMIT_SHOWN: Final = 60
LIMIT_KNOWN: Final = 4_096
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{LIMIT_TOPIC}}}")


class KnownTopics(set[str]):
    """Names that were found to be a topic's, so that most rows cost one look-up; for any thread."""

    def holds(self, topic: str) -> bool:
        """Return whether *topic* can be the name of a topic, and remember it if it can."""
        if topic in self:
            return True
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            return False
        if len(self) < LIMIT_KNOWN:
            self.add(topic)
        return True


class OddValues:
    """Reads the values of one row one by one. `flaw` describes the first invalid value and the values that
    its column takes; None while all are valid.
    """

    __slots__ = ("flaw",)

    def __init__(self) -> None:
        self.flaw: str | None = None

    def refuse(self, column: str, found: Any, takes: str) -> None:
        """Note that *found* means nothing in *column*, unless something was noted before."""
        if self.flaw is None:
            self.flaw = f"column {column} holds {shown(found)}; it takes {takes}"

    def row_id(self, column: str, found: Any) -> int:
        """Return the number of a row; OutboxSchemaError where it has none: nothing can be done then."""
        if type(found) is not int:
            raise OutboxSchemaError(
                f"column {column} holds {shown(found)}, and must number the rows: make it a primary key "
                "of whole numbers"
            )
        if found < 0:
            self.refuse(column, found, "numbers from 0")
        return found

    def as_bytes(self, column: str, found: Any) -> bytes | None:
        """Return bytes as they are and text as UTF-8; None for null and for other values."""
        if found is None or type(found) is bytes:
            return found
        if isinstance(found, bytearray | memoryview):
            return bytes(found)
        if isinstance(found, str):
            try:
                return found.encode()
            except UnicodeEncodeError:
                self.refuse(column, found, "text that is UTF-8, or bytes")
                return None
        self.refuse(column, found, "bytes, or text")
        return None

    def as_text(self, column: str, found: Any) -> str:
        """Return text as it is and bytes read as UTF-8; a representation for null and other values."""
        read = self.as_bytes(column, str(found) if isinstance(found, uuid.UUID) else found)
        if read is None:
            self.refuse(column, found, "text")
            return shown(found)
        try:
            return read.decode()
        except UnicodeDecodeError:
            self.refuse(column, found, "text that is UTF-8")
            return shown(found)

    def as_topic(self, column: str, found: Any, known: KnownTopics, prefix: str = "") -> str:
        """Return the name of the topic that *found* with *prefix* before it is, as it is written also where
        no topic can be called so; what shows it where it is no text, or has a NUL.
        """
        text = self.as_text(column, found)
        if not known.holds(prefix + text):
            self.refuse(
                column, found, f"names of topics: 1 to {LIMIT_TOPIC} letters, digits, '.', '_' and '-'"
            )
        return prefix + (text if "\0" not in text else shown(found))

    def number(
        self, column: str, found: Any, *, is_wanted: bool = False, least: int | None = None
    ) -> int | None:
        """Return a whole number of at least *least*, or null where none *is_wanted*; else None."""
        if (found is None and not is_wanted) or (type(found) is int and (least is None or found >= least)):
            return found
        null = "" if is_wanted else ", or null"
        self.refuse(column, found, f"whole numbers{'' if least is None else f' from {least}'}{null}")
        return None


def created_time(found: Any) -> int | None:
    """Return when a row was created, in ms; None where *found* is no such time, for it can be published all
    the same.
    """
    return found if type(found) is int and is_created_time(found) else None


def shown(found: Any) -> str:
    r"""Return a value as messages show it: in short, and nothing in it that does not print.

    >>> shown("a\0b"), shown(7.5), shown(None), shown(b"x" * 99)[:24]
    ("'a\\x00b'", 'the number 7.5', 'null', "b'xxxxxxxxxxxxxxxxxxxxxx")
    """
    if found is None:
        return "null"
    if isinstance(found, int | float):
        return f"the number {found!r}"
    text = ascii(bytes(found) if isinstance(found, bytearray | memoryview) else found)
    return text if len(text) <= LIMIT_SHOWN else f"{text[:LIMIT_SHOWN]}…"
