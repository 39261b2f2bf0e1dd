"""The formats of a topic's keys and values: declared once, for its readers and its writers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import UnionType
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

import msgspec

from holdfast.core.engine.emits import Headers
from holdfast.core.untrusted import UNFIT
from holdfast.core.untrusted.equal_hashes import guarded, read_json
from holdfast.core.untrusted.msgpack_pairs import read_msgpack
from holdfast.core.untrusted.nesting import LIMIT_DEPTH, is_shallow
from holdfast.core.value_types import (
    class_of,
    has_open_keys,
    is_model,
    may_nest,
    model_reader,
    model_writer,
    packed_reader,
    packed_writer,
    takes_none,
    unfit_type,
    without_none,
)
from holdfast.errors import ConfigError, DecodeError, FoldError

T = TypeVar("T")


class Serde(Protocol[T]):
    """Turns bytes into values of one type and back. Both ways are pure.

    `decode` raises for bytes that hold no such value: their record is quarantined. `encode` raises FoldError
    for a value of another type: readers must get the declared type. None is a tombstone both ways.
    """

    def decode(self, value: bytes | None) -> T: ...

    def encode(self, value: T) -> bytes | None: ...


def of_topic(serde: Serde[T], topic: str, part: str) -> Serde[T]:
    """Return *serde* bound to the *part* ("value" or "key") of the records of *topic*, if it needs that to
    find the schema in a registry; else *serde* itself.
    """
    tell: Callable[[str, str], Serde[T]] | None = getattr(serde, "for_topic", None)
    return serde if tell is None else tell(topic, part)


Framing: TypeAlias = Callable[[bytes | None, Headers], bytes | None]


VALUE_ID, KEY_ID = "__value_schema_id", "__key_schema_id"
"""The headers in which newer serializers name the schema of a record's value, and of its key."""


def without_ids(headers: Headers, *names: str) -> Headers:
    """Return *headers* without the schema ids *names*, for a record whose parts are encoded again.

    >>> without_ids((("a", b""), (VALUE_ID, b"\\0")), VALUE_ID)
    (('a', b''),)
    """
    return tuple(each for each in headers if each[0] not in names) if headers else headers


def framing(serde: Serde[Any]) -> Framing | None:
    """Return the function from a record's bytes and headers to the bytes that *serde* decodes; None if it
    reads no headers.
    """
    found: Framing | None = getattr(serde, "framed", None)
    return found


def writes_anew(serde: Serde[Any]) -> bool:
    """Return whether bytes that *serde* encodes may have another schema, or none, than the headers of the
    decoded record name; other serdes may return the bytes unchanged.
    """
    return framing(serde) is not None or isinstance(serde, _Typed | Text)


def decode_with(serde: Serde[T], value: bytes | None, headers: Headers) -> T:
    """Return the value of a record's bytes by *serde*, whose schema *headers* may name; raises as `decode`
    does.
    """
    frames = framing(serde)
    return serde.decode(value if frames is None else frames(value, headers))


def decoder_of(serde: Serde[Any]) -> tuple[Callable[..., Any], tuple[Literal["value", "headers"], ...]]:
    """Return a function that decodes a record's value as *serde* does, and the columns that it takes."""
    read, frames = serde.decode, framing(serde)
    if frames is None:
        return read, ("value",)

    # It holds the serde's own method, so that the schema can be found from it.
    def decode(value: bytes | None, headers: Headers) -> Any:
        return read(frames(value, headers))

    return decode, ("value", "headers")


def alike(one: Serde[Any], other: Serde[Any]) -> bool:
    """Return whether two serdes are of one format and one type of values."""
    return type(one) is type(other) and getattr(one, "of", None) == getattr(other, "of", None)


class _Typed(Generic[T]):
    """Values of one type in one of msgspec's formats.

    *of* is a type that msgspec takes, or a pydantic model. Where it allows None (`Order | None`), None is a
    tombstone; where it does not, a record without a value is refused.
    """

    _name: str
    _codec: Any
    _decode: Callable[[Any], Any]
    _encode: Callable[[Any], bytes]
    _read: Callable[[bytes], Any]
    _may_nest = False
    """True where a value may nest so deep that one reader would take it and another not."""

    def __init__(self, of: Any) -> None:
        self.of = of
        inner, self._tombstones = without_none(of)
        self._open_keys = False
        try:
            if is_model(inner):
                self._decode, self._encode = self._model_codec(inner)
            elif (why := unfit_type(of)) is not None:
                raise ConfigError(f"{self._name}({getattr(of, '__name__', of)}): {why}")
            else:
                self._decode = guarded(self._codec.Decoder(of).decode, of, self._read)
                self._encode = self._codec.Encoder(order="deterministic").encode
                self._open_keys, self._tombstones = has_open_keys(of), takes_none(of)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._name}({of!r:.200}): {error}; give a type, as in {self._name}(int)"
            ) from error
        kind = class_of(of)
        self._kind = kind if kind not in (object, float, UnionType, Any) else None

    def _model_codec(self, model: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
        return model_reader(model), model_writer(model)

    def decode(self, value: bytes | None) -> T:
        """Return the value in these bytes; raises DecodeError when it is not of the declared type."""
        try:
            if self._may_nest and value is not None and not is_shallow(value):
                raise msgspec.ValidationError(f"it nests more than {LIMIT_DEPTH} deep")
            decoded: T = self._decode(value)
        except UNFIT as error:
            raise DecodeError(f"not {self}: {error}") from error
        except TypeError as error:
            if value is None and self._tombstones:
                return None  # type: ignore[return-value]  # T has None among its values
            raise DecodeError(f"not {self}: the record has no value; declare | None if it may") from error
        return decoded

    def encode(self, value: T) -> bytes | None:
        """Return the bytes of *value*, the same for equal values; raises FoldError when it is not of the
        declared type at any depth.
        """
        if value is None and self._tombstones:
            return None
        if self._kind is not None and not isinstance(value, self._kind):
            raise FoldError(
                f"{value!r:.200} cannot be written as {self}: it is of type {type(value).__name__}"
            )
        try:
            encoded: bytes = self._encode(value)
            if self._may_nest and not is_shallow(encoded):
                raise ValueError(f"it nests more than {LIMIT_DEPTH} deep")
            read = self._decode(encoded)
            if self._open_keys and self._encode(read) != encoded:
                raise TypeError("it has keys that its TypedDict does not declare")
        except (*UNFIT, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise FoldError(f"{value!r:.200} cannot be written as {self}: {error}") from error
        return encoded

    def __repr__(self) -> str:
        return f"{self._name}({getattr(self.of, '__name__', self.of)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.of,)


class Json(_Typed[T]):
    """Values of type *of* as JSON.

    >>> Json(tuple[int, str]).decode(b'[1,"a"]'), Json(tuple[int, str]).encode((1, "a"))
    ((1, 'a'), b'[1,"a"]')
    >>> Json(int).encode("1")
    Traceback (most recent call last):
    holdfast.errors.FoldError: '1' cannot be written as Json(int): it is of type str
    >>> Json(int | None).decode(None) is None
    True
    """

    _name, _codec, _read = "Json", msgspec.json, staticmethod(read_json)

    @overload
    def __init__(self, of: type[T]) -> None: ...
    @overload
    def __init__(self: Json[Any], of: Any) -> None: ...
    def __init__(self, of: Any) -> None:
        super().__init__(of)
        self._may_nest = may_nest(without_none(of)[0]) and not is_model(without_none(of)[0])


class Msgpack(_Typed[T]):
    """Values of type *of* as MessagePack.

    >>> Msgpack(int).decode(Msgpack(int).encode(7))
    7
    """

    _name, _codec, _read = "Msgpack", msgspec.msgpack, staticmethod(read_msgpack)

    def _model_codec(self, model: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
        return packed_reader(model_reader(model)), packed_writer(model_writer(model))

    @overload
    def __init__(self, of: type[T]) -> None: ...
    @overload
    def __init__(self: Msgpack[Any], of: Any) -> None: ...
    def __init__(self, of: Any) -> None:
        super().__init__(of)


class Bytes:
    """Values as they are; None is a tombstone."""

    # Any as well as bytes: a tombstone is None, and a function of bytes alone is none the worse for that.
    def decode(self, value: bytes | None) -> bytes | Any:
        return value

    def encode(self, value: bytes | None) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        raise FoldError(f"{value!r:.200} cannot be written as Bytes(): it is of type {type(value).__name__}")

    def __repr__(self) -> str:
        return "Bytes()"


class Text:
    """Text in UTF-8, as most keys are; None for none.

    >>> Text().decode(b"a"), Text().encode("a")
    ('a', b'a')
    """

    def decode(self, value: bytes | None) -> str | Any:
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"not Text(): {error}") from error

    def encode(self, value: str | None) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise FoldError(
                f"{value!r:.200} cannot be written as Text(): it is of type {type(value).__name__}"
            )
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise FoldError(f"{value!r:.200} cannot be written as Text(): {error}") from error

    def __repr__(self) -> str:
        return "Text()"


def decode_all(serde: Serde[Any], values: Sequence[bytes | None]) -> Iterable[Any]:
    """Return the values that *serde* decodes, lazily and in order; where one fails, the error may be another
    than `decode` raises.

    >>> list(decode_all(Json(int), [b"1", b"2"])), list(decode_all(Text(), [b"a", None]))
    ([1, 2], ['a', None])
    """
    # A serde made of one of these may decode otherwise.
    how = getattr(serde.decode, "__func__", None)
    if how is Bytes.decode:
        return values
    if how is Text.decode and all(values):
        return map(bytes.decode, values)  # type: ignore[arg-type]  # there is no None
    if how is _Typed.decode and values and all(values):
        has_long = serde._may_nest and max(map(len, values)) > LIMIT_DEPTH  # type: ignore[attr-defined, arg-type]
        if has_long and not all(map(is_shallow, values)):  # type: ignore[arg-type]  # there is no None
            return map(serde.decode, values)
        return map(serde._decode, values)  # type: ignore[attr-defined]
    return map(serde.decode, values)
