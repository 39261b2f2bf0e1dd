"""The least that each role must be allowed on a cluster with ACLs. docs/SECURITY.md shows them; a test runs
each role with exactly these.

Everything else is refused then. A worker's principal cannot make topics, a reader's cannot write, a claim
client's cannot touch tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from holdfast.clients.topics.specs import topic_names
from holdfast.clients.topics.types import FaustTopics, Processors
from holdfast.config import Settings
from holdfast.core.claims.resets import RESETS_TOPIC
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.kafka.grants import Grant, Operation, Pattern, Resource, merged, topic_grants

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = (
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)

NO_FAUST = FaustTopics()


def worker_grants(settings: Settings, processors: Processors, faust: FaustTopics = NO_FAUST) -> list[Grant]:
    """Return the grants of a worker of these processors, and of the agents of *faust*. Its topics must exist:
    an administrator makes them; Faust makes its own. What agents send to by name is not known here.
    """
    out: list[Grant] = [*_faust_grants(faust)]
    for processor in processors:
        for topic in processor.topics:
            out += topic_grants(topic, "folds it", READ)
        for each in processor.reads:
            out += topic_grants(each.topic, f"folds it into the global table {each.name}", READ)
        for topic in processor.choices_topics(settings.app):
            out += topic_grants(topic, "in which order it folded its sources", READ, WRITE)
        out += topic_grants(
            processor.changelog(settings.app), "its rows are written and restored", READ, WRITE
        )
        if processor.hands_over:
            why = "where earlier versions stood is read once"
            out.append(
                Grant(Resource.TOPIC, f"{settings.app}-{processor.name}.v", READ, why, Pattern.PREFIXED)
            )
        for topic in map(str, processor.emits):
            out += topic_grants(topic, "its folds emit to it", WRITE)
        for topic in map(str, processor.internal if settings.trim_internal else ()):
            out += topic_grants(topic, "what all that read it have in their state is deleted", DELETE)
    out += topic_grants(settings.quarantine_topic, "refused records are copied to it", WRITE)
    out += topic_grants(
        settings.workers_topic, "workers announce what they serve, and which version is current", WRITE
    )
    out += topic_grants(settings.reset_topic, "a reset that is under way is seen at start", DESCRIBE)
    out += topic_grants(
        settings.skips_topic,
        "what cannot be read is skipped there first, and left out by whoever comes next",
        READ,
        WRITE,
    )
    for topic in topic_names(settings, processors):
        out += topic_grants(topic, "its configuration is checked at start", DESCRIBE_CONFIGS)
    out.append(Grant(Resource.GROUP, settings.app, READ, "the group that shares out partitions"))
    if processors:
        out += _table_grants(settings)
    return merged(out)


def _table_grants(settings: Settings) -> Iterator[Grant]:
    why = "which version of a table is current is read while there are several"
    yield from topic_grants(settings.workers_topic, why, READ)
    why = "one transactional id for each partition of a table"
    yield Grant(Resource.TRANSACTIONAL_ID, f"{settings.app}.", WRITE, why, Pattern.PREFIXED)


def _faust_grants(faust: FaustTopics) -> Iterator[Grant]:
    electing = (CREATE, DESCRIBE_CONFIGS, READ)
    making = (*electing, WRITE)
    for topic in faust.read:
        yield from topic_grants(topic, "agents read it", READ)
    for topic in faust.kept:
        yield from topic_grants(topic, "is made for a table or an agent", *making)
    for topic in faust.leader:
        yield from topic_grants(topic, "who has it is the leader", *electing)
    for prefix in faust.begin:
        why = "is made for group_by, or for replies"
        yield from (Grant(Resource.TOPIC, prefix, operation, why, Pattern.PREFIXED) for operation in making)


def reader_grants(settings: Settings) -> list[Grant]:
    """Return the grants of a process that queries tables (TableClient); the web port has its own token or
    certificate.
    """
    return topic_grants(settings.workers_topic, "finds the workers", READ)


def replayer_grants(settings: Settings, processors: Processors) -> list[Grant]:
    """Return the grants of `holdfast replay`, `verify` and `pipeline land`; `verify --store` asks workers by
    their web port too.
    """
    out: list[Grant] = []
    for processor in processors:
        for topic in processor.topics:
            out += topic_grants(topic, "reads its history", READ)
        for each in processor.reads:
            out += topic_grants(each.topic, f"reads the history of the global table {each.name}", READ)
        for topic in processor.choices_topics(settings.app):
            out += topic_grants(topic, "folds in the order that was recorded", READ)
        out += topic_grants(processor.changelog(settings.app), "compares it with a replay", READ)
        if processor.migrate:
            out += topic_grants(processor.base(settings.app), "reads what the table began with", READ)
    out += topic_grants(settings.skips_topic, "leaves out what workers have skipped", READ)
    why = "landings note there how far they have come"
    out.append(Grant(Resource.GROUP, "holdfast-landed-", READ, why, Pattern.PREFIXED))
    return merged(out)


def claim_client_grants(
    settings: Settings,
    topics: Iterable[str],
    group: str,
    *,
    balanced: bool = False,
    resets_topic: str = RESETS_TOPIC,
) -> list[Grant]:
    """Return the grants of a member of a claim group; *topics* are those that it consumes."""
    out = topic_grants(settings.coordination_topic, "claims and heartbeats", READ, WRITE)
    for topic in topics:
        out += topic_grants(topic, "consumes it", READ)
    out += topic_grants(resets_topic, "ends a reset whose administrator died", READ, WRITE, DESCRIBE_CONFIGS)
    out.append(Grant(Resource.GROUP, group, READ, "offsets are committed to Kafka beside the claims"))
    if balanced:
        out += topic_grants(settings.groups_topic, "members announce themselves", READ, WRITE)
    return merged(out)


def resetter_grants(settings: Settings, processors: Processors) -> list[Grant]:
    """Return the grants of `holdfast reset`."""
    anew, internal = "is made anew, in all versions", set[str]()
    out = topic_grants(
        settings.reset_topic, "tells workers that a reset is under way", CREATE, DELETE, DESCRIBE_CONFIGS
    )
    out += topic_grants(settings.workers_topic, "is made anew", CREATE, DELETE, DESCRIBE_CONFIGS)
    for processor in processors:
        own = f"{settings.app}-{processor.name}"
        out += _prefixed(own, anew)
        place = "is begun at a time with --to-datetime, or behind what is emptied"
        out.append(Grant(Resource.TOPIC, own, WRITE, place, Pattern.PREFIXED))
        for topic in (*processor.topics, *processor.emits):
            if isinstance(topic, Internal):
                internal.add(topic.base)
            elif topic in processor.emits:
                out += topic_grants(str(topic), "is emptied with --outputs empty", DELETE, DESCRIBE_CONFIGS)
            else:
                out += topic_grants(str(topic), "is left, and counted", DESCRIBE, DESCRIBE_CONFIGS)
        for each in processor.reads:
            out += topic_grants(each.topic, "is left, and counted", DESCRIBE, DESCRIBE_CONFIGS)
    for base in sorted(internal):
        out += _prefixed(f"{base}.v", anew)
    for name in (settings.quarantine_topic, settings.skips_topic):
        out += topic_grants(name, "is left", DESCRIBE, DESCRIBE_CONFIGS)
    out.append(
        Grant(Resource.GROUP, settings.app, DELETE, "sees that no worker runs, and deletes its offsets")
    )
    why = "fences workers that are frozen"
    out.append(Grant(Resource.TRANSACTIONAL_ID, f"{settings.app}.", WRITE, why, Pattern.PREFIXED))
    return merged(out)


def _prefixed(prefix: str, why: str) -> list[Grant]:
    return [
        Grant(Resource.TOPIC, prefix, operation, why, Pattern.PREFIXED)
        for operation in (CREATE, DELETE, DESCRIBE_CONFIGS)
    ]


def administrator_grants(
    settings: Settings,
    processors: Processors,
    groups: Mapping[str, Iterable[str]] | None = None,
    *,
    resets_topic: str = RESETS_TOPIC,
) -> list[Grant]:
    """Return the grants of `holdfast topics create | check`, `holdfast groups` and `holdfast quarantine
    skip`.

    *groups* are Kafka's consumer groups, and claim groups that consumed before they claimed, each with its
    topics.
    """
    sources = {topic for processor in processors for topic in processor.topics} - {
        settings.coordination_topic
    }
    sources |= {each.topic for processor in processors for each in processor.reads}
    out: list[Grant] = []
    for topic in topic_names(settings, processors):
        out += topic_grants(topic, "makes, checks and alters it", CREATE, ALTER_CONFIGS)
        if topic not in {
            *sources,
            settings.coordination_topic,
            settings.skips_topic,
        }:  # to read them implies it
            out += topic_grants(topic, "makes, checks and alters it", DESCRIBE)
    for topic in sources:
        out += topic_grants(topic, "looks at a batch that cannot be read", READ)
    out += topic_grants(settings.skips_topic, "asks for such a batch to be skipped", READ, WRITE)
    out += topic_grants(
        settings.coordination_topic, "reads claims; pauses and resets groups", READ, WRITE, DESCRIBE_CONFIGS
    )
    out += topic_grants(resets_topic, "decides resets", READ, WRITE, CREATE, DESCRIBE_CONFIGS)
    for group, topics in (groups or {}).items():
        out.append(Grant(Resource.GROUP, group, READ, "reads and sets its offsets"))
        for topic in topics:
            out += topic_grants(topic, "finds offsets in it", READ, DESCRIBE_CONFIGS)
    return merged(out)
