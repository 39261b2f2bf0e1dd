"""Avro's logical types as Python's values, and back: exact, or an error that says why not.

fastavro rounds a decimal to its precision, cuts the microseconds off a time that is written in milliseconds,
and takes a time before midnight for one after it. So it is given plain types, with marks where a value is to
be converted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

Convert = Callable[[Any], Any]

MARK: Final = "holdfast"
"""The logical type that fastavro meets, and the property that holds the conversion."""
LIMIT_DIGITS: Final = 4_096
"""A decimal with more digits is refused: to make one costs the square of them."""
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DAY_US: Final = 86_400_000_000
_EXACT: Final = Context(prec=LIMIT_DIGITS + 1, Emax=10**9, Emin=-(10**9))
_SAYS: Final = ("logicalType", "precision", "scale")
_MARKS: Final = re.compile(rf"'logicalType': '{MARK}', '{MARK}': <([^<>]*)>(?:, )?")
_UNITS_US: Final = {"millis": 1_000, "micros": 1}
LIMIT_INT: Final = 1 << 31


def logical(schema: Any) -> tuple[str, str] | None:
    """Return the family of a schema's logical type and its name; None for one that is none, is not known, or
    does not fit its underlying type: then Avro has it ignored.

    >>> logical({"type": "long", "logicalType": "timestamp-millis"})
    ('timestamp', 'timestamp-millis')
    >>> logical({"type": "string", "logicalType": "timestamp-millis"}), logical("long")
    (None, None)
    """
    if not isinstance(schema, dict):
        return None
    name, kind = schema.get("logicalType"), schema["type"]
    match name, kind:
        case (("timestamp-millis" | "timestamp-micros" | "timestamp-nanos"), "long"):
            return "timestamp", name
        case (("local-timestamp-millis" | "local-timestamp-micros" | "local-timestamp-nanos"), "long"):
            return "local timestamp", name
        case ("time-millis", "int") | ("time-micros", "long"):
            return "time", str(name)
        case ("date", "int"):
            return "date", "date"
        case ("uuid", "string"):
            return "uuid", "uuid"
        case ("uuid", "fixed") if schema["size"] == 16:
            return "uuid", "uuid"
        case "decimal", "bytes" | "fixed":
            return ("decimal", "decimal") if _is_decimal(schema) else None
    return None


def _is_decimal(schema: dict[str, Any]) -> bool:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return False
    if schema["type"] == "bytes":
        return True
    bits = 8 * int(schema["size"]) - 1
    return bits > 0 and precision <= len(str((1 << min(bits, 14_000)) - 1)) - 1


def reading(schema: Any) -> Convert:
    """Return a function that converts fastavro's value of a schema with a logical type; its ValueError names
    an inexact value.
    """
    found = logical(schema)
    assert found is not None
    family, name = found
    match family:
        case "timestamp":
            return partial(_moment, name, _EPOCH)
        case "local timestamp":
            return partial(_moment, name, _EPOCH.replace(tzinfo=None))
        case "time":
            return partial(_time, name)
        case "date":
            return _date
        case "uuid":
            return _uuid
    return partial(_decimal, min(schema["precision"], LIMIT_DIGITS), schema.get("scale", 0))


def writing(schema: Any) -> Convert:
    """Return a function that converts a value to fastavro's for a schema with a logical type; values of other
    types are left as they are.
    """
    found = logical(schema)
    assert found is not None
    family, name = found
    match family:
        case "timestamp" | "local timestamp":
            return partial(_from_moment, name, family == "timestamp")
        case "time":
            return partial(_from_time, name)
        case "date":
            return _from_date
        case "uuid":
            return _bytes_of_uuid if schema["type"] == "fixed" else _text_of_uuid
    size = schema["size"] if schema["type"] == "fixed" else None
    return partial(_from_decimal, min(schema["precision"], LIMIT_DIGITS), schema.get("scale", 0), size)


def checked_int(value: Any) -> Any:
    """Return a value for Avro's int; ValueError for a number that has more than 32 bits."""
    if isinstance(value, int) and not -LIMIT_INT <= value < LIMIT_INT:
        raise ValueError(f"{value} does not fit an int of 32 bits")
    return value


# -- reading


def _moment(name: str, epoch: datetime, value: int) -> datetime:
    if name.endswith("nanos"):
        micros, rest = divmod(value, 1_000)
        if rest:
            raise ValueError(f"{name} {value} has nanoseconds, which no datetime holds: declare int")
    else:
        micros = value * _UNITS_US[name.rpartition("-")[2]]
    try:
        return epoch + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueError(f"{name} {value} is in no year from 1 to 9999") from None


def _time(name: str, value: int) -> time:
    micros = value * _UNITS_US[name.rpartition("-")[2]]
    if not 0 <= micros < _DAY_US:
        raise ValueError(f"{name} {value} is no time of a day")
    seconds, micros = divmod(micros, 1_000_000)
    return time(seconds // 3_600, seconds // 60 % 60, seconds % 60, micros)


def _date(value: int) -> date:
    try:
        return date.fromordinal(value + _EPOCH_DAY)
    except (ValueError, OverflowError):
        raise ValueError(f"date {value} is in no year from 1 to 9999") from None


def _uuid(value: str | bytes) -> UUID:
    return UUID(bytes=value) if isinstance(value, bytes) else UUID(value)


def _decimal(precision: int, scale: int, value: bytes) -> Decimal:
    unscaled = int.from_bytes(value, "big", signed=True)
    if unscaled.bit_length() > 4 * precision or abs(unscaled) >= 10**precision:
        raise ValueError(
            f"a decimal of {len(value)} bytes has more than the {precision} digits of its precision"
        )
    return Decimal(unscaled).scaleb(-scale, _EXACT)


# -- writing


def _from_moment(name: str, is_zoned: bool, value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    if (value.tzinfo is not None) != is_zoned:
        why = f"no time zone, which {name} asks for" if is_zoned else f"a time zone, which {name} has not"
        raise ValueError(f"{value!r} has {why}")
    micros = (value - (_EPOCH if is_zoned else _EPOCH.replace(tzinfo=None))) // _MICROSECOND
    if name.endswith("nanos"):
        return _fitting(value, name, micros * 1_000)
    return _in_units(value, name, micros)


def _fitting(value: object, name: str, number: int) -> int:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{value} does not fit {name}")
    return number


def _in_units(value: object, name: str, micros: int) -> int:
    number, rest = divmod(micros, _UNITS_US[name.rpartition("-")[2]])
    if rest:
        raise ValueError(f"{value} has microseconds, which {name} does not hold")
    return number


def _from_time(name: str, value: Any) -> Any:
    if not isinstance(value, time):
        return value
    if value.tzinfo is not None:
        raise ValueError(f"{value!r} has a time zone, which {name} has not")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _in_units(value, name, seconds * 1_000_000 + value.microsecond)


def _from_date(value: Any) -> Any:
    if isinstance(value, datetime):
        raise ValueError(f"{value!r} has a time, which date does not hold")  # noqa: TRY004  as all others
    return value.toordinal() - _EPOCH_DAY if isinstance(value, date) else checked_int(value)


def _text_of_uuid(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def _bytes_of_uuid(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value


def _from_decimal(precision: int, scale: int, size: int | None, value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite():
        raise ValueError(f"{value} is no number, which decimal does not hold")
    # Compared before anything of that size is made: an exponent may be a thousand million.
    if value and value.adjusted() + scale >= precision:
        raise ValueError(f"{value!s:.50} has more digits than the precision {precision} with scale {scale}")
    if value and value.adjusted() < -scale:
        raise ValueError(f"{value!s:.50} has more than the {scale} digits of the scale")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    surplus = -scale - exponent
    if value and surplus > 0 and any(digits[-surplus:]):
        raise ValueError(f"{value!s:.50} has more than the {scale} digits of the scale")
    unscaled = int(value.scaleb(scale, _EXACT)) if value else 0
    if size is None:
        size = (unscaled.bit_length() + 8) // 8
    try:
        return unscaled.to_bytes(size, "big", signed=True)
    except OverflowError:
        raise ValueError(f"{value} does not fit {size} bytes") from None


# -- for fastavro


class Marked(partial[Any]):
    """A conversion that fastavro finds in a schema, and shows in its errors as what the schema says there."""

    says: str

    @classmethod
    def of(cls, convert: Convert, schema: Any) -> Marked:
        made = cls(convert)
        made.says = "".join(f"{name!r}: {schema[name]!r}, " for name in _SAYS if name in schema)
        return made

    def __repr__(self) -> str:
        return f"<{self.says}>"


def unmarked(text: str) -> str:
    """Return the text of an error of fastavro with the schemas in it as they were before they were marked.

    >>> mark = {"logicalType": MARK, MARK: Marked.of(_date, {"type": "int", "logicalType": "date"})}
    >>> unmarked(f"not {mark | {'type': 'int'}}")
    "not {'logicalType': 'date', 'type': 'int'}"
    """
    return _MARKS.sub(r"\1", text)


def _read(value: Any, written: Any, read: Any = None) -> Any:
    return written[MARK](value)


def _write(value: Any, schema: Any) -> Any:
    return schema[MARK](value)


def install() -> None:
    """Have fastavro convert where a schema is marked; what others declare stays as it is."""
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS

    for kind in ("int", "long", "float", "double", "string", "bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{MARK}"] = _read
        LOGICAL_WRITERS[f"{kind}-{MARK}"] = _write
