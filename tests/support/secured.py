"""A secured broker with ACLs, and principals that have exactly the rights they were granted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from holdfast.core.kafka.grants import Grant, Operation, Pattern, Resource
from holdfast.dev.broker.cluster import Cluster, Credentials
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from holdfast.embedded.kafka import EmbeddedKafka

SUPER = "root"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Nodes show each other the certificate of the development cluster.
    "super.users": f"User:{SUPER};User:CN=holdfast dev",
    "allow.everyone.if.no.acl.found": "false",
}
_RESOURCES = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    Resource.CLUSTER: ResourceType.BROKER,
}
_OPERATIONS = {
    Operation.READ: AclOperation.READ,
    Operation.WRITE: AclOperation.WRITE,
    Operation.CREATE: AclOperation.CREATE,
    Operation.DELETE: AclOperation.DELETE,
    Operation.ALTER: AclOperation.ALTER,
    Operation.DESCRIBE: AclOperation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS: AclOperation.ALTER_CONFIGS,
}
_PATTERNS = {Pattern.LITERAL: ResourcePatternType.LITERAL, Pattern.PREFIXED: ResourcePatternType.PREFIXED}


class Guarded:
    """A broker that denies everything except to its administrator and to users with a grant."""

    def __init__(self, broker: Cluster | EmbeddedKafka) -> None:
        self._broker = broker

    @classmethod
    def on_kafka(cls, folder: Path) -> Self:
        """Return Apache Kafka with SCRAM, TLS and ACLs, not started yet."""
        root = Credentials(username=SUPER, password=secrets.token_urlsafe(12))
        return cls(Cluster(folder, sasl=root, properties=AUTHORIZER, short_lived=True))

    @classmethod
    def on_embedded(cls) -> Self:
        """Return the embedded Kafka instead."""
        from holdfast.embedded.kafka import (
            EmbeddedKafka,  # a third of a second, and each process imports this module
        )

        users = {SUPER: secrets.token_urlsafe(12)}
        return cls(EmbeddedKafka(users=users, tls=True, acls=(), super_users=[f"User:{SUPER}"]))

    def __enter__(self) -> Self:
        self._broker.start()
        self.admin = AdminClient({**self.root()})
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()

    def root(self) -> dict[str, str]:
        """Return the Kafka properties of the administrator, who may do everything."""
        return self._broker.client_config()

    def principal(self, name: str) -> dict[str, str]:
        """Make a user without any grant and return its Kafka properties."""
        password = secrets.token_urlsafe(12)
        upsertion = UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        for made in self.admin.alter_user_scram_credentials([upsertion]).values():
            made.result(DEADLINE_S)
        return {**self.root(), "sasl.username": name, "sasl.password": password}

    def grant(self, name: str, grants: Iterable[Grant]) -> None:
        """Give user *name* the rights in *grants* and no others; returns when the broker does so."""
        wanted = {_binding(name, grant) for grant in grants}
        mine = self._granted(name)
        for binding in mine - wanted:
            self.admin.delete_acls([_filter(binding)])[_filter(binding)].result(DEADLINE_S)
        for made in self.admin.create_acls(list(wanted - mine)).values() if wanted - mine else ():
            made.result(DEADLINE_S)
        until_s = time.monotonic() + DEADLINE_S
        while self._granted(name) != wanted:
            assert time.monotonic() < until_s, f"the grants of {name} are not what they should be"
            time.sleep(0.02)

    def _granted(self, name: str) -> set[AclBinding]:
        return set(self.admin.describe_acls(acl_filter(principal=f"User:{name}")).result(DEADLINE_S))


def acl_filter(
    kind: Any = ResourceType.ANY,
    name: str | None = None,
    pattern: Any = ResourcePatternType.ANY,
    principal: str | None = None,
) -> AclBindingFilter:
    """Return a filter of rules; omitted fields match any."""
    told: Any = name, pattern, principal, None, AclOperation.ANY, AclPermissionType.ANY
    return AclBindingFilter(kind, *told)


def _binding(name: str, grant: Grant) -> AclBinding:
    return AclBinding(
        _RESOURCES[grant.resource],
        grant.name,
        _PATTERNS[grant.pattern],
        f"User:{name}",
        "*",
        _OPERATIONS[grant.operation],
        AclPermissionType.ALLOW,
    )


def _filter(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def environment(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return Kafka properties as environment variables of holdfast."""
    return {f"HOLDFAST_KAFKA__{name.upper().replace('.', '_')}": value for name, value in kafka.items()}
