"""Values of columns as text, arrays or bytes, however a database gives them, and what a column cannot hold."""

from __future__ import annotations

import json
from typing import Any

from holdfast.errors import OutboxRecordError
from holdfast.outbox.schema.layouts.outbox_row import (
    PreparedRecord,
)


def read_texts(found: Any) -> list[str | None]:
    """Return an array of texts, however its database gave it."""
    if isinstance(found, list):
        return found
    try:
        read = json.loads(found)
    except (RecursionError, TypeError) as error:
        raise ValueError(f"{found!r:.200}: {error}") from error
    if not isinstance(read, list) or not all(each is None or isinstance(each, str) for each in read):
        raise ValueError(f"{found!r:.200}")
    "".join(
        each or "" for each in read
    ).encode()  # a lone surrogate, which JSON can spell, is no text for Kafka
    return read


def as_bytes(found: str | bytes | memoryview | None) -> bytes | None:
    """Return text as UTF-8, and bytes (which SQLite gives for any column they were put into) as they are."""
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else bytes(found)


def array_text(texts: list[str]) -> str:
    return json.dumps(texts, ensure_ascii=False)


def column_text(value: bytes, what: str, layout: str, limit: int | None = None) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise OutboxRecordError(
            f"{what} is not UTF-8 ({error}); the layout {layout} holds text only, the layout holdfast any bytes"
        ) from error
    if "\0" in text:
        raise OutboxRecordError(
            f"{what} has a NUL character, which text columns cannot hold; the layout holdfast holds any bytes"
        )
    if limit is not None and len(text) > limit:
        raise OutboxRecordError(f"{what} has {len(text)} characters; the layout {layout} holds {limit}")
    return text


def refuse_given(layout: str, record: PreparedRecord, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise OutboxRecordError(
                f"a record for {record.topic} has {name} {value!r}, and the layout {layout} has no column for it; use holdfast's"
            )
