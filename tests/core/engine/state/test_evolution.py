"""The notes of a table on the types of its rows, and the later declarations that may keep its rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.evolution import (
    LIMIT_TYPES,
    ROW_TYPES_FORMAT,
    decode_row_types,
    encode_row_types,
    evolved,
    most_types,
)
from holdfast.errors import ChangelogError, ConfigError


def row(*fields: Any) -> Any:
    return msgspec.defstruct("Row", fields, frozen=True)


ONE, MORE, OTHER = row(("count", int)), row(("count", int), ("note", str, "")), row(("count", str))


def of(of_row: Any, **tables: Any) -> Processor[Any, Any]:
    return Processor(
        name="totals",
        source="in",
        decode=bytes,
        fold=lambda rows, event, at_ms: None,
        row=of_row,
        tables=tables,
    )


def test_notes_are_read_as_they_were_written() -> None:
    types = evolved(None, of(MORE, sessions=int))
    assert decode_row_types(encode_row_types(types)) == types
    assert (sorted(types), most_types(types)) == (["", "sessions"], 1)
    assert evolved(decode_row_types(encode_row_types(types)), of(MORE, sessions=int)) == types


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"x", msgspec.msgpack.encode((ROW_TYPES_FORMAT + 1, {})), b"\x91" * 100_000]
)
def test_what_no_worker_wrote_is_an_error(value: bytes) -> None:
    with pytest.raises(ChangelogError, match="the note of row types"):
        decode_row_types(value)


def test_a_compatible_change_is_noted_and_compared_with_all_before_it() -> None:
    types = evolved(evolved(None, of(ONE)), of(MORE))
    assert most_types(types) == 2
    assert evolved(types, of(MORE)) == types
    assert most_types(evolved(types, of(ONE))) == 2, (
        "changed back: the type of now is last, and each is there once"
    )
    again = row(("count", int), ("note", int, 0))
    assert evolved(evolved(None, of(ONE)), of(again))
    with pytest.raises(ConfigError, match="field note was str and is int"):
        evolved(types, of(again))
    with pytest.raises(ConfigError, match="the default of field note is another"):
        evolved(types, of(row(("count", int), ("note", str, "-"))))


def test_an_incompatible_change_says_what_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as refused:
        evolved(evolved(None, of(ONE)), of(OTHER))
    assert (
        str(refused.value)
        == "processor totals: rows of table totals.v1 do not fit the row type any more: field count was int"
        " and is str. Change it back, or write version=2, which builds the table anew"
    )


def test_named_tables_are_compared_too() -> None:
    types = evolved(None, of(ONE, sessions=ONE))
    assert most_types(evolved(types, of(ONE, sessions=MORE))) == 2
    assert sorted(evolved(types, of(ONE, sessions=ONE, more=int))) == ["", "more", "sessions"]
    with pytest.raises(ConfigError, match="table sessions: field count was int and is str"):
        evolved(types, of(ONE, sessions=OTHER))
    with pytest.raises(ConfigError, match="table sessions has rows and is not declared any more"):
        evolved(types, of(ONE))


def test_a_type_that_changes_without_end_is_refused() -> None:
    fields: list[Any] = [("count", int)]
    types = evolved(None, of(row(*fields)))
    for number in range(1, LIMIT_TYPES):
        fields.append((f"n{number}", int, 0))
        types = evolved(types, of(row(*fields)))
    assert most_types(types) == LIMIT_TYPES
    more = of(row(*fields, ("last", int, 0)))
    with pytest.raises(ConfigError, match=f"it has changed {LIMIT_TYPES} times"):
        evolved(types, more)
