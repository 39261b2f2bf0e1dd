"""Access control lists as Kafka keeps them: rules, and filters that find some of them
(org.apache.kafka.common.acl).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeVar

ANYTHING = "*"
"""The name of a literal rule about every resource, and the host of a rule that holds from everywhere."""
EVERYONE = "User:*"
CLUSTER_NAME = "kafka-cluster"

_Known = TypeVar("_Known", bound=IntEnum)


class AclResource(IntEnum):
    """The kind of resource that a rule is about, by the protocol's numbers."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """The meaning of a rule's name: one resource's, or the beginning of many resources' names; ANY and MATCH
    are of filters.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """The operation that a rule allows or denies."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """The effect of a rule: it allows or denies; a denial always wins."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class AclRule(NamedTuple):
    """One rule: *principal* (``User:alice``), from *host*, may or may not do *operation* to the resources of
    *name*.
    """

    resource: AclResource
    name: str
    principal: str
    operation: AclOperation
    pattern: AclPattern = AclPattern.LITERAL
    permission: AclPermission = AclPermission.ALLOW
    host: str = ANYTHING

    def covers(self, resource: AclResource, name: str) -> bool:
        """Return whether the rule is about that resource."""
        if self.resource is not resource:
            return False
        if self.pattern is AclPattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANYTHING)

    def concerns(self, principal: str, host: str) -> bool:
        """Return whether the rule is about *principal* at *host*."""
        return self.principal in (principal, EVERYONE) and self.host in (host, ANYTHING)


class AclFilter(NamedTuple):
    """Finds rules; None and ANY stand for everything. MATCH finds all that are about the resource *name*."""

    resource: AclResource
    name: str | None
    pattern: AclPattern
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: AclPermission

    def finds(self, rule: AclRule) -> bool:
        """Return whether *rule* is one of those looked for."""
        return (
            self.resource in (AclResource.ANY, rule.resource)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (AclPermission.ANY, rule.permission)
            and self._names(rule)
        )

    def _names(self, rule: AclRule) -> bool:
        if self.pattern not in (AclPattern.ANY, AclPattern.MATCH, rule.pattern):
            return False
        if self.name is None:
            return True
        return (
            rule.covers(rule.resource, self.name)
            if self.pattern is AclPattern.MATCH
            else self.name == rule.name
        )


def known(kind: type[_Known], number: int) -> _Known:
    """Return the member of *kind* with a number of the protocol; UNKNOWN for one that Kafka does not know
    either.

    >>> known(AclPermission, 3), known(AclPermission, 99)
    (<AclPermission.ALLOW: 3>, <AclPermission.UNKNOWN: 0>)
    """
    try:
        return kind(number)
    except ValueError:
        return kind(0)
