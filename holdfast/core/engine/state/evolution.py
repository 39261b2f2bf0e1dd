"""The types that the rows of a table were written as: a later one must read them all, or is refused before it
reads one.

A note on the changelog, `00 row-types`, in the first transaction of a type that is new there. It is
bookkeeping, as that of lost heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from holdfast.core.engine.state.codec import META
from holdfast.core.engine.state.row_schema import RowSchema, schema_of, why_reread, why_unreadable
from holdfast.core.engine.state.table_declaration import TableDeclaration
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError, ConfigError

ROW_TYPES = META + b"row-types"
ROW_TYPES_FORMAT = 1
LIMIT_TYPES = 20
"""The number of times that a row type may change before its table must be built again: each change is
compared with all before it.
"""

RowTypes: TypeAlias = Mapping[str, Sequence[RowSchema]]
"""The types of the rows of each table of a processor ("" for its own), the present one last."""


class _TypesNote(msgspec.Struct, frozen=True, array_like=True):
    format: int
    tables: dict[str, list[RowSchema]]


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(_TypesNote).decode


def encode_row_types(types: RowTypes) -> bytes:
    """Return the value of the note."""
    return _encode(_TypesNote(ROW_TYPES_FORMAT, {name: [*schemas] for name, schemas in types.items()}))


def decode_row_types(value: bytes | None) -> RowTypes | None:
    """Return the types in the note *value*, None without one; ChangelogError for bytes that no worker of this
    format wrote.
    """
    if value is None:
        return None
    try:
        note = _decode(value)
    except UNFIT as error:
        raise ChangelogError(f"the note of row types is malformed ({error}): no worker wrote it") from error
    if note.format != ROW_TYPES_FORMAT:
        raise ChangelogError(
            f"the note of row types has format {note.format}, this version reads {ROW_TYPES_FORMAT}: upgrade"
            " the workers"
        )
    return note.tables


def most_types(types: RowTypes | None) -> int:
    """Return the largest number of row types of any table; 1 if that is unknown."""
    return max((len(each) for each in (types or {}).values()), default=1)


def evolved(noted: RowTypes | None, processor: TableDeclaration) -> RowTypes:
    """Return the types of a table when *processor* continues it; ConfigError if that could not read its rows.

    Without a note nothing is known of the rows: an earlier holdfast wrote them.
    """
    now = {name: schema_of(processor.row_of(name)) for name in ("", *processor.tables)}
    if noted is None:
        return {name: [schema] for name, schema in now.items()}
    if gone := sorted(noted.keys() - now.keys()):
        raise _refused(processor, f"table {gone[0]} has rows and is not declared any more")
    return {name: _followed(noted.get(name, ()), schema, processor, name) for name, schema in now.items()}


def _followed(
    before: Sequence[RowSchema], now: RowSchema, processor: TableDeclaration, table: str
) -> Sequence[RowSchema]:
    if not before or before[-1] == now:
        return before or [now]
    where = f"table {table}: " if table else ""
    reasons = [why_unreadable(each, now) for each in before]
    reasons += [why_reread(each, before[-1], now) for each in before]
    if found := [why for why in reasons if why is not None]:
        raise _refused(processor, where + found[0])
    if len(before) >= LIMIT_TYPES:
        raise _refused(processor, f"{where}it has changed {LIMIT_TYPES} times since the table was built")
    return [*(each for each in before if each != now), now]


def _refused(processor: TableDeclaration, why: str) -> ConfigError:
    return ConfigError(
        f"processor {processor.name}: rows of table {processor.table} do not fit the row type any more:"
        f" {why}. Change it back, or write version={processor.version + 1}, which builds the table anew"
    )
