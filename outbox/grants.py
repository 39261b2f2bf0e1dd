"""The least that a harvester must be allowed on a cluster with ACLs; holdfast/clients/topics/grants.py has
those of the other roles.

The service that writes the outbox needs nothing of Kafka: it inserts into a table of its own database.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.kafka.grants import Grant, Operation, Resource, merged, topic_grants
from holdfast.outbox.schema.tables import OutboxTables
from holdfast.outbox.settings import HarvestSettings, Strategy
from holdfast.outbox.topics import wanted

READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
DESCRIBE_CONFIGS = Operation.DESCRIBE_CONFIGS


def harvester_grants(settings: HarvestSettings, destinations: Iterable[str]) -> list[Grant]:
    """Return the grants of a harvester that publishes to *destinations*.

    It makes its own topics where they are missing.
    """
    election = settings.election()
    out = topic_grants(election.leader_topic, "the election: heartbeats of whoever leads", READ, WRITE)
    out += topic_grants(settings.commands_topic, "commands: pause, resume, flush", READ)
    out += topic_grants(settings.answers_topic, "answers to commands", READ, WRITE)
    if settings.strategy is Strategy.FENCED:
        out += topic_grants(settings.progress_topic, "what was published, for the next leader", READ, WRITE)
        ids = map(settings.transactional_id, range(settings.shards))
        out += [
            Grant(Resource.TRANSACTIONAL_ID, each, WRITE, "a shard's leader fences the one before it")
            for each in ids
        ]
    for topic in wanted(settings):
        out += topic_grants(topic, "made at the first start", CREATE)
        out += topic_grants(topic, "looks at each start whether it keeps its records", DESCRIBE_CONFIGS)
    for topic in destinations:
        out += topic_grants(topic, "publishes to it", WRITE)
    out.append(Grant(Resource.GROUP, election.group_id, READ, "the group of the election"))
    return merged(out)


@dataclass(frozen=True, slots=True)
class TableGrant:
    """One privilege of SQL on one table, and *why* it is needed."""

    table: str
    privilege: str
    why: str


def service_table_grants(tables: OutboxTables) -> list[TableGrant]:
    """Return the grants of a service that writes the outbox: to insert, and nothing else.

    It cannot read other services' rows.
    """
    return [TableGrant(tables.outbox.fullname, "INSERT", "writes a row in its own transaction")]


def harvester_table_grants(tables: OutboxTables, strategy: Strategy) -> list[TableGrant]:
    """Return the grants of a harvester on the outbox's tables once an owner of the schema has made them
    (`holdfast outbox init`).
    """
    needs = [
        (tables.outbox, "SELECT", "reads what waits"),
        (tables.outbox, "DELETE", "takes out what is published"),
        (tables.attempts, "SELECT", "knows what was refused"),
        (tables.attempts, "INSERT", "notes a refusal"),
        (tables.attempts, "UPDATE", "notes another refusal"),
        (tables.attempts, "DELETE", "forgets refusals of what is done"),
        (tables.quarantine, "INSERT", "sets a poison row aside"),
    ]
    needs += [
        (tables.lease, privilege, "notes the leader's epoch") for privilege in ("SELECT", "INSERT", "UPDATE")
    ]
    if strategy is Strategy.MARK:
        needs.append((tables.outbox, "UPDATE", "marks rows as its own"))
    return [TableGrant(table.fullname, privilege, why) for table, privilege, why in needs]
