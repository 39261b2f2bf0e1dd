"""Arrays of texts, however a database gives them, and what a column cannot hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from holdfast.core.untrusted import UNFIT
from holdfast.errors import OutboxRecordError
from holdfast.outbox.schema.layouts.outbox_row import (
    PreparedRecord,
)

_read_array = msgspec.json.Decoder(list[str | None]).decode


def read_texts(found: Any) -> list[str | None]:
    """Return an array of texts, however its database gave it; ValueError where it is none."""
    if isinstance(found, list):
        return _texts_of(found)
    try:
        return _read_array(found)
    except (*UNFIT, TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"{found!r:.200}: {error}") from error


def _texts_of(found: list[Any]) -> list[str | None]:
    try:
        "".join(found)
        return found
    except TypeError:
        pass  # a null among them; bytes, of a Postgres with encoding SQL_ASCII; or arrays within the array
    try:
        read = [each.decode() if isinstance(each, bytes) else each for each in found]
    except UnicodeDecodeError as error:
        raise ValueError(f"{found!r:.200}: {error}") from error
    if not all(each is None or isinstance(each, str) for each in read):
        raise ValueError(f"{found!r:.200}")
    return read


def array_text(texts: list[str]) -> str:
    return json.dumps(texts, ensure_ascii=False)


def column_text(value: bytes, what: str, layout: str, limit: int | None = None) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise OutboxRecordError(
            f"{what} is not UTF-8 ({error}); the layout {layout} holds text only, the layout holdfast any"
            " bytes"
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
                f"a record for {record.topic} has {name} {value!r}, and the layout {layout} has no column for"
                " it; use holdfast's"
            )
