"""Column types and expressions that each database writes in its own way."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    Integer,
    LargeBinary,
    String,
    Text,
    Uuid,
    cast,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import UserDefinedType

MYSQL = ("mysql", "mariadb")

big_id = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER PRIMARY KEY numbers rows there
blob = LargeBinary().with_variant(mysql.LONGBLOB(), *MYSQL)
instant = DateTime(timezone=True).with_variant(mysql.TIMESTAMP(fsp=6), *MYSQL)
long_text = Text().with_variant(mysql.LONGTEXT(), *MYSQL)
uuid_text = Uuid(as_uuid=False).with_variant(String(36), *MYSQL, "sqlite")
# Array columns exist on Postgres alone; elsewhere the same array is stored as JSON text.
texts: Any = ARRAY(Text()).with_variant(mysql.LONGTEXT(), *MYSQL).with_variant(Text(), "sqlite")


class now_ms(FunctionElement[int]):
    """The database's wall clock in ms since the epoch, as a column's default."""

    type = BigInteger()
    inherit_cache = True


class epoch_ms(FunctionElement[int]):
    """A timestamp column in ms since the epoch."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _now_postgres(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:
    return "(CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT))"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _now_mysql(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:
    return "(CAST(UNIX_TIMESTAMP(CURRENT_TIMESTAMP(3)) * 1000 AS SIGNED))"


@compiles(now_ms, "sqlite")
def _now_sqlite(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:
    return "(CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER))"


@compiles(epoch_ms, "postgresql")
def _epoch_postgres(element: epoch_ms, compiler: SQLCompiler, **more: Any) -> str:
    at = compiler.process(element.clauses, **more)
    # `infinity` is a time, and no number: the statement would fail, for every row that it reads.
    return f"CASE WHEN isfinite({at}) THEN CAST(EXTRACT(EPOCH FROM {at}) * 1000 AS BIGINT) END"


@compiles(epoch_ms, "mysql")
@compiles(epoch_ms, "mariadb")
def _epoch_mysql(element: epoch_ms, compiler: SQLCompiler, **more: Any) -> str:
    return f"CAST(UNIX_TIMESTAMP({compiler.process(element.clauses, **more)}) * 1000 AS SIGNED)"


@compiles(epoch_ms, "sqlite")
def _epoch_sqlite(element: epoch_ms, compiler: SQLCompiler, **more: Any) -> str:
    return (
        f"CAST(ROUND((julianday({compiler.process(element.clauses, **more)}) - 2440587.5) * 86400000.0) AS"
        " INTEGER)"
    )


class JsonText(UserDefinedType[str]):
    """A JSON column that is written and read as text:

    Kafka is given the text, so nothing may parse and print it again.
    """

    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Read the column as text."""
        return cast(column, Text().with_variant(mysql.CHAR(), *MYSQL))


@compiles(JsonText, "postgresql")
def _json_postgres(element: JsonText, compiler: object, **_: Any) -> str:
    return "JSONB"


@compiles(JsonText, "mysql")
@compiles(JsonText, "mariadb")
def _json_mysql(element: JsonText, compiler: object, **_: Any) -> str:
    return "JSON"


@compiles(JsonText, "sqlite")
def _json_sqlite(element: JsonText, compiler: object, **_: Any) -> str:
    return "TEXT"
