"""What a user declares: a processor is a decoder, a fold and the type of a row.

Nothing here runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec

from holdfast.core.engine.declaring import why_uncallable
from holdfast.core.engine.row_types import why_unfit
from holdfast.core.engine.rows import Rows
from holdfast.errors import ConfigError

E = TypeVar("E")
R = TypeVar("R")

Headers = tuple[tuple[str, bytes | None], ...]
Input = Literal["value", "key", "headers", "offset", "partition"]
INPUTS: tuple[Input, ...] = get_args(Input)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Emit(msgspec.Struct, frozen=True, gc=False):
    """One record a fold sends, in the same Kafka transaction as the rows it changed.

    *partition* None leaves the choice to murmur2 of the key, as Java clients do.
    """

    topic: str
    key: str | bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


Emits = Iterable[Emit] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor(Generic[E, R]):
    """A named, versioned fold of one source topic into a table of rows.

    *decode* gets the *inputs* of a record in that order (only its value unless told otherwise) and returns an event, or raises:
    then the record goes to quarantine. *fold* gets the rows of the record's partition, the event and the partition's stream time
    in ms (the highest append time so far); it changes rows and may return or yield what to emit. *on_wake* is
    called when stream time passes a time set with `rows.wake_at`. All three must be pure: no clock, no
    randomness, no input or output.

    *route* tells queries in which source partition a row key lives, given the partition count; without it, or for None, a query asks every
    partition, since only the records' producer knows. `emits` names the topics the fold may emit to: a record whose fold emits to another
    is refused. With *in_place* the fold emits into the partition of the record it was given, so each of them
    needs as many partitions as the source.

    Rows of another *version* are never read: each version has its own table and changelog, built from the
    log's beginning.
    """

    name: str
    source: str
    decode: Callable[..., E]
    fold: Callable[[Rows[R], E, int], Emits]
    row: Any
    version: int = 1
    inputs: tuple[Input, ...] = ("value",)
    on_wake: Callable[[Rows[R], str, int], Emits] | None = None
    route: Callable[[str, int], int | None] | None = None
    emits: tuple[str, ...] = ()
    in_place: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"processor name {self.name!r}: use 1 to 100 letters, digits, '_' or '-'; it becomes part of a topic's name"
            )
        self._check_topics()
        if type(self.version) is not int:
            raise self._wrong(f"version {self.version!r} is not a whole number: write version=2, say")
        if self.version < 1:
            raise self._wrong(f"version {self.version}; versions start at 1")
        if isinstance(self.inputs, str):
            raise self._wrong(f"inputs {self.inputs!r}; write a tuple: ({self.inputs!r},)")
        if (
            not isinstance(self.inputs, tuple | list)
            or not self.inputs
            or any(name not in INPUTS for name in self.inputs)
        ):
            raise self._wrong(f"inputs {self.inputs}; choose from {', '.join(INPUTS)}")
        self._check_functions()
        if (why := why_unfit(self.row)) is not None:
            raise self._wrong(f"row type {self.row!r:.200}: {why}")

    def _check_topics(self) -> None:
        if not isinstance(self.source, str):
            raise self._wrong(
                f"source {self.source!r:.200} is not the name of a topic: a processor folds one; declare one for each topic"
            )
        if isinstance(self.emits, str):
            raise self._wrong(f"emits {self.emits!r}; write a tuple of topics: ({self.emits!r},)")
        if not isinstance(self.emits, tuple | list):
            raise self._wrong(f"emits {self.emits!r:.200} is not a tuple of topics")
        for topic in (self.source, *self.emits):
            if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise self._wrong(f"{topic!r:.200} is not a valid Kafka topic name")

    def _check_functions(self) -> None:
        wanted: list[tuple[str, Any, tuple[str, ...]]] = [
            ("decode", self.decode, tuple(self.inputs)),
            ("fold", self.fold, ("rows", "event", "at_ms")),
        ]
        if self.on_wake is not None:
            wanted.append(("on_wake", self.on_wake, ("rows", "key", "at_ms")))
        if self.route is not None:
            wanted.append(("route", self.route, ("key", "partitions")))
        for name, call, takes in wanted:
            if (why := why_uncallable(call, takes)) is not None:
                whence = "; its arguments are the inputs" if name == "decode" else ""
                raise self._wrong(f"{name} {why}{whence}")

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError(f"processor {self.name}: {text}")

    @property
    def table(self) -> str:
        """Return the table's name: name and version, so that versions never share state."""
        return f"{self.name}.v{self.version}"

    def changelog(self, app: str) -> str:
        """Return the changelog topic of this table in application *app* (Faust's naming)."""
        return f"{app}-{self.table}-changelog"

    def transactional_id(self, app: str, partition: int) -> str:
        """Return the id whose epoch fences older owners; one per application, processor and partition."""
        return f"{app}.{self.name}.{partition}"


def by_name(processors: Sequence[Processor[Any, Any]]) -> dict[str, Processor[Any, Any]]:
    """Return *processors* by their names; ConfigError when they are not a list of processors, or two share
    a name.
    """
    if isinstance(processors, Processor):
        raise ConfigError(
            f"processors is the processor {processors.name} alone; write a list: [{processors.name}]"
        )
    if not isinstance(processors, Sequence) or isinstance(processors, str | bytes):
        raise ConfigError(f"processors is {processors!r:.200}; write a list of Processor")
    found: dict[str, Processor[Any, Any]] = {}
    for each in processors:
        if not isinstance(each, Processor):
            raise ConfigError(
                f"processors holds {each!r:.200}, which is no Processor; write Processor(name=..., source=..., ...)"
            )
        if each.name in found:
            raise ConfigError(
                f"two processors share a name, {each.name} of {found[each.name].source} and of {each.source}: give one another, since "
                "tables and topics are named after it"
            )
        found[each.name] = each
    return found
