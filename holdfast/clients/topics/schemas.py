"""The schemas of an application's topics in their registry: registered when topics are created, compared when
they are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.clients.topics.types import Processors, RegisterSchema, TopicFinding
from holdfast.config import SchemaRegistrySettings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.streams import Stream
from holdfast.errors import Later, SchemaError
from holdfast.schemas import registry
from holdfast.schemas.registry import NotRegisteredError, SchemaRegistry
from holdfast.schemas.serde import SchemaSerde

LIMIT_WRAPPED = 3
"""The most wrappings of a decoder in which its serde is still found."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A serde with a schema, and the topic whose values or keys it reads or writes."""

    topic: str
    serde: SchemaSerde[Any]


def written(processors: Processors) -> list[TopicSchema]:
    """Return the schemas with which the folds of *processors* write, once for each subject; SchemaError if
    two differ on one.
    """
    found: dict[str, TopicSchema] = {}
    for processor in processors:
        for stream in processor.emits:
            if isinstance(stream, Stream):
                for each in _of(str(stream), stream.serde, stream.key):
                    assert each.serde.subject is not None
                    other = found.setdefault(each.serde.subject, each)
                    if other.serde.schema != each.serde.schema:
                        raise SchemaError(
                            f"subject {each.serde.subject}: topics {other.topic} and {each.topic} write it"
                            " with two schemas: declare the stream once, or give one of them another"
                            " subject="
                        )
    return list(found.values())


def read(processors: Processors) -> list[TopicSchema]:
    """Return the schemas with which *processors* read, once for each of their topics and types."""
    found = {
        (each.topic, each.serde.subject, repr(each.serde)): each
        for processor in processors
        for each in _read_by(processor)
    }
    return list(found.values())


def _read_by(processor: Processor[Any, Any]) -> Iterator[TopicSchema]:
    folds = processor.folds
    for source in (*(each.source for each in folds), *(each.source for each in processor.reads)):
        yield from _of(str(source.topic), source.serde, source.key)
    for each in folds:
        for serde in _behind(each.decode):
            yield from _of(str(each.source.topic), serde)


def _behind(decode: object, depth: int = 0) -> Iterator[object]:
    """Yield the serdes that a decoder is a method of, or that it was made from: steps and windows wrap that
    of their source.
    """
    owner = getattr(decode, "__self__", None)
    if owner is not None:
        yield owner
    elif depth < LIMIT_WRAPPED:
        for cell in getattr(decode, "__closure__", None) or ():
            yield from _behind(cell.cell_contents, depth + 1)


def _of(topic: str, serde: object, key: object = None) -> Iterator[TopicSchema]:
    for given, part in ((serde, "value"), (key, "key")):
        each = getattr(given, "serde", given)  # of values that are sent on as they are
        if isinstance(each, SchemaSerde):
            yield TopicSchema(topic, each if each.subject is not None else each.for_topic(topic, part))


def plan_schemas(settings: SchemaRegistrySettings, processors: Processors) -> list[RegisterSchema]:
    """Return which schemas are to be registered; raises SchemaError where one does not fit what its subject
    has, Later where the registry does not answer.
    """
    wanted = written(processors)
    if not wanted:
        return []
    asked = registry.use(settings)
    return [
        RegisterSchema(each.topic, str(each.serde.subject), each.serde.kind)
        for each in wanted
        if not _is_registered(asked, each)
    ]


def register_schemas(settings: SchemaRegistrySettings, processors: Processors) -> None:
    """Register what `plan_schemas` names, with the schemas that they name."""
    for each in written(processors):
        asked = registry.use(settings)
        if not _is_registered(asked, each):
            asked.register(str(each.serde.subject), each.serde.needed(asked, register=True))


def _is_registered(asked: SchemaRegistry, each: TopicSchema) -> bool:
    """Return whether a schema is registered; raises SchemaError for one that its subject does not take.

    Where a file that it imports is not registered, nothing can be compared before it is: the registry does so
    as it registers.
    """
    subject = str(each.serde.subject)
    try:
        schema = each.serde.needed(asked, register=False)
    except NotRegisteredError:
        return False
    try:
        asked.registered(subject, schema)
        return True
    except NotRegisteredError:
        pass
    if (latest := asked.latest(subject)) is not None and not asked.is_compatible(subject, schema):
        raise SchemaError(
            f"subject {subject}: the schema of {each.serde} is not compatible with version {latest.version}"
            f" in {asked.place}: change it as the subject's compatibility asks, for one with defaults for new"
            " fields, or emit to a new topic"
        )
    return False


def schema_findings(settings: SchemaRegistrySettings, processors: Processors) -> list[TopicFinding]:
    """Return the faults of the schemas of topics. A registry that does not answer is a warning: folds wait
    for it.
    """
    try:
        wanted = written(processors)
    except SchemaError as error:
        return [TopicFinding.error("-", str(error), "see above")]
    asked = registry.use(settings)
    try:
        return [*_of_writers(asked, wanted), *_of_readers(asked, read(processors))]
    except Later as error:
        cure = "bring it back, or correct the settings: folds wait for it, and no record is refused meanwhile"
        return [TopicFinding.warning("-", str(error), cure)]


def _of_writers(asked: SchemaRegistry, wanted: list[TopicSchema]) -> Iterator[TopicFinding]:
    for each in wanted:
        try:
            if not _is_registered(asked, each):
                text = f"has no schema of {each.serde} under subject {each.serde.subject}"
                yield TopicFinding.error(each.topic, text, "run `holdfast topics create`")
        except SchemaError as error:
            yield TopicFinding.error(each.topic, f"cannot take what is emitted: {error}", "see there")


def _of_readers(asked: SchemaRegistry, wanted: list[TopicSchema]) -> Iterator[TopicFinding]:
    for each in wanted:
        latest = asked.latest(str(each.serde.subject))
        if latest is None:
            continue
        schema = asked.schema(latest.schema_id, each.serde.form)
        if (why := each.serde.why_unreadable(schema, asked)) is not None:
            text = (
                f"version {latest.version} of subject {latest.subject} (schema {latest.schema_id}) cannot be"
                f" read as {each.serde}: {why}"
            )
            cure = (
                "records of it go to the quarantine: declare the type that fits, with defaults for what may"
                " be missing"
            )
            yield TopicFinding.warning(each.topic, text, cure)
