"""The permissions that a principal needs on a Kafka cluster: grants as values, and as arguments of Kafka's
own `kafka-acls`.

The grants of a role are listed next to the role's code: holdfast/clients/topics/grants.py, outbox/grants.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Resource(StrEnum):
    """The kind of resource that a grant is for, under the names of `kafka-acls`."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(StrEnum):
    """The operation that a grant allows, under Kafka's names.

    READ, WRITE, DELETE and ALTER of a resource imply DESCRIBE of it.
    """

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"


class Pattern(StrEnum):
    """The meaning of a name: one resource's, or the beginning of many resources' names."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One operation on one resource, and *why* the role needs it."""

    resource: Resource
    name: str
    operation: Operation
    why: str
    pattern: Pattern = Pattern.LITERAL

    @property
    def place(self) -> tuple[Resource, str, Pattern, Operation]:
        """Return the grant without its reason."""
        return self.resource, self.name, self.pattern, self.operation


def topic_grants(name: str, why: str, *operations: Operation) -> list[Grant]:
    """Return grants for *operations* on one topic."""
    return [Grant(Resource.TOPIC, name, operation, why) for operation in operations]


def merged(grants: Iterable[Grant]) -> list[Grant]:
    """Return *grants* sorted and without repetitions, each with the first reason that was given for it."""
    first: dict[tuple[Resource, str, Pattern, Operation], Grant] = {}
    for grant in grants:
        first.setdefault(grant.place, grant)
    return [first[place] for place in sorted(first)]


def kafka_acls(grants: Iterable[Grant], principal: str) -> list[str]:
    """Return the arguments of `kafka-acls`, a line for each resource, that give *grants* to *principal*.

    >>> kafka_acls(topic_grants("orders", "", Operation.READ, Operation.WRITE), "User:shop")
    ['--add --allow-principal User:shop --operation Read --operation Write --topic orders']
    """
    lines: dict[tuple[Resource, str, Pattern], list[str]] = {}
    for grant in grants:
        lines.setdefault((grant.resource, grant.name, grant.pattern), []).append(
            f"--operation {grant.operation}"
        )
    return [
        " ".join(["--add", f"--allow-principal {shlex.quote(principal)}", *operations, *_about(*about)])
        for about, operations in lines.items()
    ]


def _about(resource: Resource, name: str, pattern: Pattern) -> Iterable[str]:
    if resource is Resource.CLUSTER:
        yield "--cluster"
        return
    yield f"--{resource} {shlex.quote(name)}"
    if pattern is not Pattern.LITERAL:
        yield f"--resource-pattern-type {pattern}"
