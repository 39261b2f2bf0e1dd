"""A request as a handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.embedded.cluster import EmbeddedCluster
from holdfast.embedded.kept_room import OVERHEAD_BYTES
from holdfast.embedded.security.acl_rules import CLUSTER_NAME, AclOperation, AclResource
from holdfast.embedded.security.authorizer import OPERATIONS
from holdfast.embedded.security.tls import ANONYMOUS

Fields: TypeAlias = dict[str, Any]


COPIES = 4
"""So often what a request says is kept at most: said, worked out, and as it was written."""
NO_KEPT_ROOM = "What is kept of groups, offsets, ids, settings, rules and users has reached kept_max_bytes."


class HangUp(Exception):
    """Raised by a handler that can report a failure to its client only by the end of the connection."""


@dataclass(slots=True)
class Call:
    """One request: *fields* by the table of messages, of *version*; *node_id* is the broker that was asked,
    *principal* who asks.
    """

    cluster: EmbeddedCluster
    node_id: int
    version: int
    fields: Fields
    client_id: str = ""
    host: str = "/127.0.0.1"
    principal: str = ANONYMOUS
    size: int = 0
    """In bytes, as it came."""

    def has_room(self) -> bool:
        """Return whether what it says may be kept: other clients may have filled the room for that."""
        return self.cluster.kept.take(COPIES * self.size + OVERHEAD_BYTES)

    def may(self, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether who asks may do *operation* to a resource; everybody may on a broker without an
        authorizer.
        """
        authorizer = self.cluster.authorizer
        return authorizer is None or authorizer.may(self.principal, self._address, operation, resource, name)

    def may_topic(self, operation: AclOperation, name: str) -> bool:
        return self.may(operation, AclResource.TOPIC, name)

    def may_group(self, operation: AclOperation, name: str) -> bool:
        return self.may(operation, AclResource.GROUP, name)

    def may_cluster(self, operation: AclOperation) -> bool:
        return self.may(operation, AclResource.CLUSTER, CLUSTER_NAME)

    def may_transact(self, operation: AclOperation, transactional_id: str) -> bool:
        return self.may(operation, AclResource.TRANSACTIONAL_ID, transactional_id)

    def may_somewhere(self, operation: AclOperation, resource: AclResource) -> bool:
        """Return whether there is a resource of that kind to which who asks may do *operation*."""
        authorizer = self.cluster.authorizer
        return authorizer is None or authorizer.may_somewhere(
            self.principal, self._address, operation, resource
        )

    def operations(self, resource: AclResource, name: str) -> int:
        """Return the operations that the caller may do on a resource, as the protocol's bits."""
        if self.cluster.authorizer is None:
            return sum(1 << each for each in OPERATIONS[resource])
        return self.cluster.authorizer.operations(self.principal, self._address, resource, name)

    @property
    def _address(self) -> str:
        return self.host.removeprefix("/")


Handler: TypeAlias = Callable[[Call], "Fields | Awaitable[Fields | None] | None"]
"""Answers a call: with fields, with none (a producer that wants no answer), or later."""
