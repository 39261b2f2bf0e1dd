"""The serde of values in Avro's binary form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any, TypeVar, overload
from uuid import UUID

import msgspec

from holdfast.core.untrusted import UNFIT
from holdfast.core.untrusted.equal_hashes import LIMIT_BYTES, keys_of
from holdfast.core.value_types import is_model, unfit_type, without_none
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas import avro_schemas
from holdfast.schemas.avro_logical import install, unmarked
from holdfast.schemas.avro_resolution import plain
from holdfast.schemas.avro_types import schema_of
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from holdfast.schemas.serde import Read, SchemaSerde
from holdfast.schemas.types import alternatives, is_record, missing

T = TypeVar("T")

_AS_THEY_ARE = (bytes, bytearray, datetime, date, time, UUID, Decimal)
"""The types that fastavro takes and returns unchanged."""


class Avro(SchemaSerde[T]):
    """Values of type *of* in Avro, as Confluent's serializer writes them.

    The schema is made from the type (a Struct or dataclass, or a union of them), in *namespace* if one is
    given, or is *schema*: JSON text, or what it means. A record of another schema is read into the type by
    the names of its fields; fields that are missing have their defaults. With *schema*, records are first
    read as that schema, by its aliases and defaults.

    ConfigError for a type that Avro cannot hold, or a schema that does not fit the type.

    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     cents: int = 0
    >>> print(Avro(Order, namespace="com.shop").schema.text)
    {"type":"record","name":"Order","fields":[{"name":"customer","type":"string"},{"name":"cents","type":"long","default":0}],"namespace":"com.shop"}
    """

    name, kind = "Avro", "AVRO"

    @overload
    def __init__(
        self,
        of: type[T],
        schema: str | Mapping[str, Any] | None = None,
        *,
        namespace: str | None = None,
        subject: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Avro[Any],
        of: Any,
        schema: str | Mapping[str, Any] | None = None,
        *,
        namespace: str | None = None,
        subject: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        of: Any,
        schema: str | Mapping[str, Any] | None = None,
        *,
        namespace: str | None = None,
        subject: str | None = None,
    ) -> None:
        inner, tombstones = without_none(of)
        super().__init__(of, tombstones=tombstones, subject=subject)
        self._schema, self._namespace, self._inner = schema, namespace, inner
        kinds = alternatives(inner)
        if schema is not None and any(is_model(each) or unfit_type(each) for each in kinds):
            raise ConfigError(
                f"{self}: use a Struct, a dataclass or a TypedDict, or Json for pydantic models"
            )
        if len(kinds) > 1 and not all(map(is_record, kinds)):
            raise ConfigError(f"{self}: a union is of Structs or dataclasses; wrap other values in one")
        self._kinds = {each.__name__: each for each in kinds} if len(kinds) > 1 else {}
        made = schema_of(inner, namespace) if schema is None else _json_of(schema)
        self._text = _text_of(made)
        self._own, self._named = _parsed_own(made)
        self._into = _info_of(inner)
        for each in self._kinds.values() or (inner,):
            _learn(each)
        self._keys = None if self._into is None else keys_of(inner)
        install()
        self._written = _parsed_own(plain(self._own, writes=True))[0]
        if schema is not None:
            self._check_given()

    @property
    def schema(self) -> SchemaText:
        return SchemaText("AVRO", self._text)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.of, self._schema), {"namespace": self._namespace, "subject": self._given}

    def reader(self, schema: SchemaText, asked: SchemaRegistry) -> Read:
        written, named = avro_schemas.parsed(schema, asked)
        by_name = self._schema is not None
        if not self._kinds and (
            why := avro_schemas.why_unlike(written, named, self._own, self._named, by_name=by_name)
        ):
            raise DecodeError(why)
        read = avro_schemas.reading(
            written,
            named,
            self._own,
            self._named,
            self._into,
            by_name=by_name,
            tells_names=bool(self._kinds),
        )
        top = written.get("name", "") if isinstance(written, dict) else ""
        keys = self._keys

        def value(payload: bytes) -> Any:
            found = read(payload)
            try:
                if keys is not None and len(payload) > LIMIT_BYTES:
                    keys.check(found)
                return self._converted(found, top)
            except (msgspec.ValidationError, *UNFIT) as error:
                raise DecodeError(str(error)) from None

        return value

    def payload(self, value: T) -> bytes:
        from fastavro import schemaless_writer

        if self._kinds and type(value).__name__ not in self._kinds:
            raise self._unwritten(value, f"it is of type {type(value).__name__}")
        file = BytesIO()
        try:
            found = msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE, order="deterministic")
            _converted_to(type(value) if self._kinds else self._inner, found)
            if self._kinds:
                found = (self._full_name(type(value).__name__), found)
            schemaless_writer(file, self._written, found)
        except MemoryError:  # no record is to blame
            raise
        except Exception as error:
            raise self._unwritten(value, unmarked(str(error))) from error
        return file.getvalue()

    def _converted(self, found: Any, top: str) -> Any:
        if not self._kinds:
            return _converted_to(self._inner, found)
        name, fields = found if isinstance(found, tuple) else (top, found)
        kind = self._kinds.get(name.rpartition(".")[2])
        if kind is None:
            raise DecodeError(f"it is a {name or 'value without a name'}, not {' or '.join(self._kinds)}")
        return _converted_to(kind, _unnamed(fields))

    def _full_name(self, name: str) -> str:
        branches = self._own if isinstance(self._own, list) else [self._own]
        names = [each["name"] if isinstance(each, dict) else each for each in branches]
        return next((each for each in names if each.rpartition(".")[2] == name), name)

    def _unwritten(self, value: object, why: str) -> FoldError:
        return FoldError(f"{value!r:.200} cannot be written as {self}: {why}")

    def _check_given(self) -> None:
        """Raise ConfigError where the given schema holds what the type cannot."""
        try:
            wanted, named = _parsed_own(schema_of(self._inner))
        except ConfigError:
            return  # only its values show their types
        if self._kinds:
            return
        if (why := avro_schemas.why_unlike(self._own, self._named, wanted, named)) is not None:
            raise ConfigError(f"{self}: the schema does not fit the type: {why}")


def _converted_to(kind: Any, found: Any) -> Any:
    """Return fastavro's value as *kind*; text is never taken for bytes in base 64."""
    return msgspec.convert(found, kind, builtin_types=(bytes,))


def _learn(kind: Any) -> None:
    """Have msgspec read a type's annotations now: where two threads do that at once, the process ends."""
    try:
        _converted_to(kind, None)
    except (msgspec.ValidationError, TypeError, NameError):
        pass  # None is no such value; or only values show the type


def _info_of(of: Any) -> msgspec.inspect.Type | None:
    try:
        return msgspec.inspect.type_info(of)
    except (TypeError, NameError, NotImplementedError):
        return None  # only its values show their types


def _json_of(schema: str | Mapping[str, Any]) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        return schema  # the name of a primitive type


def _text_of(schema: Any) -> str:
    try:
        return json.dumps(schema, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:  # not JSON; or a default that is no number, or infinite
        raise ConfigError(f"the Avro schema cannot be written as JSON: {error}; {schema!r:.200}") from error


def _parsed_own(schema: Any) -> tuple[Any, dict[str, Any]]:
    try:
        from fastavro.schema import parse_schema
    except ImportError as error:
        raise missing("avro", error) from error
    named: dict[str, Any] = {}
    try:
        return parse_schema(avro_schemas.readable(schema), named_schemas=named), named
    except Exception as error:
        raise ConfigError(f"the Avro schema cannot be used: {type(error).__name__}: {error}") from error


def _unnamed(found: Any) -> Any:
    """Return a value without the names that records of unions come with."""
    match found:
        case dict():
            return {key: _unnamed(value) for key, value in found.items()}
        case list():
            return [_unnamed(each) for each in found]
        case (str(), dict() as fields):
            return _unnamed(fields)
        case _:
            return found
