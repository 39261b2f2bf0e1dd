"""The base of serdes with schemas: the frame, the reader of each schema's id, the writer's own id, and their
pickled form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from holdfast.config import SchemaRegistrySettings
from holdfast.errors import ConfigError, DecodeError, FoldError, Later, SchemaError, UnknownSchemaError
from holdfast.schemas import registry
from holdfast.schemas.bounded import Bounded
from holdfast.schemas.frames import SchemaId, framed, header, split
from holdfast.schemas.registry import NotRegisteredError, SchemaRegistry, SchemaText

T = TypeVar("T")

LIMIT_READERS = 256
"""The most schemas of which one serde keeps readers."""
LIMIT_REASON = 500
Read = Callable[[bytes], Any]


class SchemaSerde(Generic[T]):
    """Values whose bytes name the schema that they were written with.

    `decode` reads the schema of a record's id, once, from the registry of this process, and `encode` writes
    with the id that `holdfast topics create` has registered the own schema with. Both raise Later where the
    registry, or the own schema in it, is not there.

    *subject* is that of the own schema, by default the topic's name with -value or -key, as other clients
    have it; ConfigError for anything but text.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    form: ClassVar[str | None] = None
    """In which form a registry is asked for schemas."""

    def __init__(self, of: Any, *, tombstones: bool, subject: str | None) -> None:
        self.of, self._tombstones, self._given = of, tombstones, subject
        if subject is not None and (not isinstance(subject, str) or not subject):
            raise ConfigError(
                f"{self}: subject {subject!r:.100}: give the name that the schema has in the registry, or"
                " leave it out"
            )
        self.subject = subject
        self._part = "value"
        self._header: bytes | None = None
        self._forget(None)

    # -- of each format

    @property
    def schema(self) -> SchemaText:
        """The own schema, as it is registered."""
        raise NotImplementedError

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return its arguments."""
        raise NotImplementedError

    def reader(self, schema: SchemaText, asked: SchemaRegistry) -> Read:
        """Return a function that reads payloads written with *schema*; raises DecodeError for a schema that
        does not fit.
        """
        raise NotImplementedError

    def payload(self, value: T) -> bytes:
        """Return the bytes of *value*, the same for equal values; raises FoldError for one of another
        type.
        """
        raise NotImplementedError

    def needed(self, asked: SchemaRegistry, *, register: bool) -> SchemaText:
        """Return the own schema with the versions of those that it names, which are registered first if so
        asked.
        """
        return self.schema

    # -- of all

    def decode(self, value: bytes | None) -> T:
        """Return the value in these bytes; raises DecodeError for bytes that are none, Later where the
        registry does not answer.
        """
        if value is None:
            if self._tombstones:
                return None  # type: ignore[return-value]  # T has None among its values
            raise DecodeError(f"not {self}: the record has no value; declare | None if it may")
        try:
            schema_id, payload = split(value)
        except DecodeError as error:
            raise DecodeError(f"not {self}: {error}") from None
        if registry.current() is not self._registry:
            self._forget(registry.current())
        read = self._reads.get(schema_id) or self._open(schema_id)
        try:
            decoded: T = read(payload)
        except (MemoryError, Later):  # no record is to blame
            raise
        except Exception as error:
            why = str(error) or ("it ends too soon" if isinstance(error, EOFError) else type(error).__name__)
            raise DecodeError(f"not {self}: {self._label(schema_id)}: {why[:LIMIT_REASON]}") from error
        return decoded

    def encode(self, value: T) -> bytes | None:
        """Return the bytes of *value*; raises FoldError when it is not of the declared type at any depth,
        Later where the own schema is not registered.
        """
        if value is None and self._tombstones:
            return None
        payload = self.payload(value)
        if registry.current() is not self._registry:
            self._forget(registry.current())
        if self._header is None:
            self._header = header(self._own_id())
        return self._header + payload

    def for_topic(self, topic: str, part: str) -> Self:
        """Return this serde for the *part* ("value" or "key") of a topic's records; its subject follows,
        unless one was given.
        """
        subject = f"{topic}-{part}" if self._given is None else self._given
        if (subject, part) == (self.subject, self._part):
            return self
        arguments, named = self.arguments()
        made = type(self)(*arguments, **named)
        made.subject, made._part = subject, part
        return made

    def framed(self, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """Return the input of `decode` for a record whose *headers* may hold its schema instead of its
        bytes.
        """
        return framed(self._part, value, headers) if headers else value

    def why_unreadable(self, schema: SchemaText, asked: SchemaRegistry) -> str | None:
        """Return why values written with *schema* cannot be read, None where they can or where each value
        decides.
        """
        try:
            self._reading(schema, asked)
        except DecodeError as error:
            return str(error)
        return None

    def _forget(self, asked: SchemaRegistry | None) -> None:
        self._registry = asked
        self._reads: Bounded[SchemaId, Read] = Bounded(LIMIT_READERS)
        self._labels: Bounded[SchemaId, str] = Bounded(LIMIT_READERS)
        self._header = None

    def _open(self, schema_id: SchemaId) -> Read:
        """Return the reader of this id, which is kept; one that refuses every record, where the schema does
        not fit.
        """
        assert self._registry is not None
        try:
            schema = self._registry.schema(schema_id, self.form)
        except NotRegisteredError as error:
            raise UnknownSchemaError(f"not {self}: {error}") from error
        except SchemaError as error:
            raise DecodeError(f"not {self}: {error}") from error
        try:
            read = self._reading(schema, self._registry)
        except DecodeError as error:
            self._registry.require_same(schema_id)
            read = _Refusing(f"does not fit: {error}")
        self._reads[schema_id] = read
        return read

    def _reading(self, schema: SchemaText, asked: SchemaRegistry) -> Read:
        if schema.kind != self.kind:
            raise DecodeError(f"it is of type {schema.kind}")
        try:
            return self.reader(schema, asked)
        except (DecodeError, Later, MemoryError):
            raise
        except Exception as error:
            raise DecodeError(f"it cannot be used: {type(error).__name__}: {error}") from error

    def _label(self, schema_id: SchemaId) -> str:
        """Name a schema for an error."""
        if (known := self._labels.get(schema_id)) is None:
            assert self._registry is not None
            subjects = [self.subject] if self.subject is not None else []
            try:
                if isinstance(schema_id, int):
                    subjects = self._registry.subjects_of(schema_id) or subjects
            except (Later, SchemaError):
                pass
            known = f"schema {schema_id} of subject {', '.join(subjects)[:200] or '(unknown)'}"
            self._labels[schema_id] = known
        return known

    def _own_id(self) -> int:
        if self.subject is None:
            raise FoldError(f"{self} is of no topic, which names its subject: emit by Stream(topic, {self})")
        assert self._registry is not None
        cure = "run `holdfast topics create`, which registers it"
        try:
            return self._registry.id_of(self.subject, self.needed(self._registry, register=False))
        except NotRegisteredError as error:
            text = f"the schema of {self} is not registered under {self.subject} ({error}): {cure}"
            raise Later(text, needs=f"schema of {self.subject} in {self._registry.place}") from error

    def __repr__(self) -> str:
        return f"{self.name}({getattr(self.of, '__name__', self.of)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), *self.arguments(), self.subject, self._part, registry.told())


class _Refusing:
    """Refuses payloads written with a schema that does not fit."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, payload: bytes) -> Any:
        raise DecodeError(self._reason)


def _unpickled(
    kind: Callable[..., SchemaSerde[Any]],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    subject: str | None,
    part: str,
    settings: SchemaRegistrySettings | None,
) -> SchemaSerde[Any]:
    """Return the serde again: in another process it asks the registry that the sender asked."""
    if settings is not None:
        registry.use(settings)
    made = kind(*arguments, **named)
    made.subject, made._part = subject, part
    return made
