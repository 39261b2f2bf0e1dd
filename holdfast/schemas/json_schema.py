"""The serde of values in JSON with a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import msgspec

from holdfast.core.untrusted import UNFIT
from holdfast.core.untrusted.equal_hashes import guarded, read_json
from holdfast.core.untrusted.nesting import LIMIT_DEPTH, is_shallow
from holdfast.core.value_types import (
    has_open_keys,
    is_model,
    model_reader,
    model_writer,
    unfit_type,
    without_none,
)
from holdfast.errors import ConfigError, DecodeError, FoldError
from holdfast.schemas.json_rules import JsonRules
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from holdfast.schemas.serde import Read, SchemaSerde

T = TypeVar("T")

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""Of schemas that are made from types, and of those that name none."""


class JsonSchema(SchemaSerde[T]):
    """Values of type *of* in JSON, each with the id of its JSON Schema, as Confluent's serializer writes
    them.

    The schema is made from the type, or is *schema*: JSON text, or what it means. A record must be valid by
    the schema that it was written with (unless *validate* is false) and fit the type; so must values that are
    written.

    ConfigError for a type that JSON cannot hold, or an invalid schema.

    >>> serde = JsonSchema(int)
    >>> print(serde.schema.text)
    {"$schema":"https://json-schema.org/draft/2020-12/schema","title":"int","type":"integer"}
    """

    name, kind = "JsonSchema", "JSON"

    @overload
    def __init__(
        self,
        of: type[T],
        schema: str | Mapping[str, Any] | None = None,
        *,
        validate: bool = True,
        subject: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: JsonSchema[Any],
        of: Any,
        schema: str | Mapping[str, Any] | None = None,
        *,
        validate: bool = True,
        subject: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        of: Any,
        schema: str | Mapping[str, Any] | None = None,
        *,
        validate: bool = True,
        subject: str | None = None,
    ) -> None:
        inner, tombstones = without_none(of)
        super().__init__(of, tombstones=tombstones, subject=subject)
        self._schema, self._validate, self._open_keys = schema, validate, False
        self._decode: Callable[[Any], Any]
        self._encode: Callable[[Any], bytes]
        try:
            if is_model(inner):
                self._decode, self._encode = model_reader(inner), model_writer(inner)
            elif (why := unfit_type(inner)) is not None:
                raise TypeError(why)
            else:
                self._decode = guarded(msgspec.json.Decoder(inner).decode, inner, read_json)
                self._encode = msgspec.json.Encoder(order="deterministic").encode
                self._open_keys = has_open_keys(inner)
            made = _made_of(inner) if schema is None else _given(schema)
            self._text = json.dumps(made, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ConfigError(f"{self}: {error}") from error
        rules = JsonRules(made)
        self._check_own = None if schema is None or not validate else rules.check

    @property
    def schema(self) -> SchemaText:
        return SchemaText("JSON", self._text)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.of, self._schema), {"validate": self._validate, "subject": self._given}

    def reader(self, schema: SchemaText, asked: SchemaRegistry) -> Read:
        named: dict[str, Any] = {}
        _collect(schema, asked, named)
        try:
            check = JsonRules(json.loads(schema.text), named).check if self._validate else None
        except ConfigError as error:
            raise DecodeError(str(error)) from error

        def value(payload: bytes) -> Any:
            try:
                if check is not None:
                    check(msgspec.json.decode(payload), payload)
                elif not is_shallow(payload):
                    raise DecodeError(f"it nests more than {LIMIT_DEPTH} deep")
                return self._decode(payload)
            except UNFIT as error:
                raise DecodeError(str(error)) from None

        return value

    def payload(self, value: T) -> bytes:
        try:
            encoded = self._encode(value)
            if not is_shallow(encoded):
                raise ValueError(f"it nests more than {LIMIT_DEPTH} deep")
            read = self._decode(encoded)
            if self._open_keys and self._encode(read) != encoded:
                raise TypeError("it has keys that its TypedDict does not declare")
            if self._check_own is not None:
                self._check_own(msgspec.json.decode(encoded), encoded)
        except MemoryError:  # no record is to blame
            raise
        except Exception as error:
            raise FoldError(f"{value!r:.200} cannot be written as {self}: {error}") from error
        return encoded


def _made_of(of: Any) -> dict[str, Any]:
    found = of.model_json_schema() if is_model(of) else msgspec.json.schema(of)
    return {"$schema": DIALECT, "title": getattr(of, "__name__", str(of)), **found}


def _given(schema: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that names its dialect, which some registries ask for."""
    found = json.loads(schema) if isinstance(schema, str) else schema
    if not isinstance(found, Mapping):
        raise TypeError(f"the schema is {found!r:.100}; write an object")
    return {"$schema": DIALECT, **found}


def _collect(schema: SchemaText, asked: SchemaRegistry, named: dict[str, Any]) -> None:
    """Add the schemas that *schema* names, and those that they name, under the names that they are named
    by.
    """
    for name, subject, version in schema.references:
        if name not in named:
            found = asked.version(subject, version).schema
            named[name] = json.loads(found.text)
            _collect(found, asked, named)
