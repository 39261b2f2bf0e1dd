"""The column types that each kind of database may have for a layout's columns: those from which rows come out
as they went in.

A type that pads, trims, rounds or folds its values is not among them, nor one that the harvester's statements
cannot compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import String, Table
from sqlalchemy.dialects.postgresql import DOMAIN, ENUM
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import CompileError

_MYSQL_TEXT = ("VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
_MYSQL_BYTES = ("VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
_SQLITE_TEXT = ("VARCHAR", "TEXT", "CHAR", "CLOB")

POSTGRES: Final[Mapping[str, tuple[str, ...]]] = {
    "id": ("BIGINT", "INTEGER"),
    "number": ("BIGINT", "INTEGER", "SMALLINT"),
    "big number": ("BIGINT",),
    "text": ("VARCHAR", "TEXT"),
    "bytes": ("BYTEA",),
    "payload": ("JSONB", "JSON", "VARCHAR", "TEXT", "BYTEA"),
    "uuid": ("UUID", "VARCHAR", "TEXT"),
    "mark": ("UUID",),
    "texts": ("TEXT[]", "VARCHAR[]"),
    "time": ("TIMESTAMP",),
}
MYSQL: Final[Mapping[str, tuple[str, ...]]] = {
    "id": ("BIGINT", "INTEGER"),
    "number": ("BIGINT", "INTEGER", "SMALLINT"),
    "big number": ("BIGINT",),
    "text": _MYSQL_TEXT,
    "bytes": _MYSQL_BYTES,
    "payload": ("JSON", *_MYSQL_TEXT, *_MYSQL_BYTES),
    "uuid": ("CHAR(36)", *_MYSQL_TEXT),
    "mark": ("CHAR(36)", *_MYSQL_TEXT),
    "texts": _MYSQL_TEXT,
    "time": ("TIMESTAMP", "DATETIME"),
}
SQLITE: Final[Mapping[str, tuple[str, ...]]] = {
    "id": ("INTEGER",),
    "number": ("INTEGER", "BIGINT", "SMALLINT"),
    "big number": ("INTEGER", "BIGINT"),
    "text": _SQLITE_TEXT,
    "bytes": ("BLOB",),
    "payload": (*_SQLITE_TEXT, "BLOB"),
    "uuid": _SQLITE_TEXT,
    "mark": _SQLITE_TEXT,
    "texts": _SQLITE_TEXT,
    "time": ("DATETIME", "TIMESTAMP"),
}
ACCEPTED: Final = {"postgresql": POSTGRES, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}

_NAME = re.compile(
    r"(?P<name>[A-Z]+)(?![A-Z0-9_$.\"])(?P<length>\((?P<most>\d+)[^)]*\))?[^\[]*(?P<array>\[\])?"
)


def type_name(type_: Any, dialect: Dialect) -> str:
    """Return how the database calls *type_*, in capitals: VARCHAR(255), BYTEA, TEXT[]."""
    try:
        name: str = type_.compile(dialect=dialect)
    except CompileError:
        return "UNKNOWN"
    if isinstance(type_, ENUM | DOMAIN):
        return (  # whose name is anybody's choice: it may be called like a type that is accepted
            f"the {type(type_).__name__.lower()} {name}"
        )
    if dialect.name == "postgresql" and type(type_) is String:
        return 'a type that cuts texts, name or "char"'  # both are reflected as a text without a name
    return name.partition(" COLLATE ")[0].partition(" CHARACTER SET ")[0]


def _parts(name: str) -> tuple[str, int | None]:
    """Return the name of a type without its length, and the length.

    >>> _parts("VARCHAR(255)"), _parts("BIGINT UNSIGNED"), _parts("VARCHAR(20)[]"), _parts("TIMESTAMP(6) WITH TIME ZONE")
    (('VARCHAR', 255), ('BIGINT', None), ('VARCHAR[]', 20), ('TIMESTAMP', 6))
    """  # noqa: E501
    found = _NAME.match(name.upper())
    if found is None:
        return name, None
    return found["name"] + (found["array"] or ""), int(found["most"]) if found["most"] else None


def type_problems(
    there: Mapping[str, Any], table: Table, kinds: Mapping[str, str], dialect: Dialect
) -> list[str]:
    """Return the faults of the types *there* (by column) of a table whose columns are to be of *kinds*."""
    accepted, out = ACCEPTED[dialect.name], []
    for column, kind in kinds.items():
        if column not in there:
            continue
        name, takes = type_name(there[column], dialect), accepted[kind]
        if name.upper() not in takes and _parts(name)[0] not in takes:
            out.append(
                f"column {table.fullname}.{column} is {name}; this layout takes {' or '.join(takes)} on"
                f" {dialect.name}"
            )
    return out


def narrower(
    there: Mapping[str, Any],
    outbox: Mapping[str, Any],
    table: Table,
    columns: Iterable[tuple[str, str]],
    dialect: Dialect,
) -> list[str]:
    """Return which of *columns*, pairs of a column of *table* and one of the outbox, cannot hold what the
    outbox's holds.
    """
    out = []
    for mine, theirs in columns:
        if mine not in there or theirs not in outbox:
            continue
        actual, wanted = type_name(there[mine], dialect), type_name(outbox[theirs], dialect)
        (name, most), (wanted_name, wanted_most) = _parts(actual), _parts(wanted)
        if name != wanted_name or (most is not None and (wanted_most is None or wanted_most > most)):
            out.append(f"column {table.fullname}.{mine} is {actual}, and the outbox's {theirs} is {wanted}")
    return out
