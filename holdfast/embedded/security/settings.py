"""The security settings of an embedded cluster."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from holdfast.embedded.security.acl_rules import AclRule
from holdfast.embedded.security.authorizer import EmbeddedAuthorizer
from holdfast.embedded.security.tls import EmbeddedTls
from holdfast.embedded.security.users import ALL_MECHANISMS, SaslUsers
from holdfast.errors import DevBrokerError


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True):
    """With *users* (names and passwords) each client must show who it is by one of *mechanisms*. With *acls*
    a principal may do only what these rules, and those that clients add, allow; *super_users* (``User:root``)
    may do everything. With *reauth_ms* a connection must log in again within that time
    (``connections.max.reauth.ms``), 0: never.
    """

    users: Mapping[str, str] = msgspec.field(default_factory=dict)
    mechanisms: tuple[str, ...] = ALL_MECHANISMS
    tls: EmbeddedTls | None = None
    acls: tuple[AclRule, ...] | None = None
    super_users: tuple[str, ...] = ()
    allow_if_no_acl: bool = False
    reauth_ms: int = 0

    def __post_init__(self) -> None:
        unknown = [each for each in self.mechanisms if each not in ALL_MECHANISMS]
        if unknown or not self.mechanisms:
            raise DevBrokerError(
                f"mechanisms {', '.join(unknown) or 'none'}: the embedded Kafka has"
                f" {', '.join(ALL_MECHANISMS)}"
            )
        if "" in self.users or "" in self.users.values():
            raise DevBrokerError("a user of the embedded Kafka needs a name and a password")
        if self.reauth_ms < 0 or (self.reauth_ms and not self.users):
            raise DevBrokerError(
                f"reauth_ms={self.reauth_ms}: a time in milliseconds, for a broker with users; 0 for never"
            )
        for each in (*self.super_users, *(rule.principal for rule in self.acls or ())):
            if not each.startswith("User:"):
                raise DevBrokerError(f"{each} is no principal: write User:{each}")
        if self.super_users and self.acls is None:
            raise DevBrokerError(
                "super_users without acls: everybody may do everything; give acls=() to deny others"
            )

    def client_config(self, user: str | None = None) -> dict[str, str]:
        """Return a client's properties besides the broker's address, under Kafka's names: as *user*, or as
        the first one. DevBrokerError for an unknown user.
        """
        if user is not None and user not in self.users:
            known = ", ".join(self.users) or "none"
            raise DevBrokerError(f"the embedded Kafka knows no user {user}; it knows {known}")
        found: dict[str, str] = {}
        if self.users:
            name = next(iter(self.users)) if user is None else user
            found = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": max(self.mechanisms),
                "sasl.username": name,
                "sasl.password": self.users[name],
            }
        if self.tls is not None:
            protocol = "SASL_SSL" if self.users else "SSL"
            found |= {"security.protocol": protocol, "ssl.ca.location": str(self.tls.authority)}
        return found

    def sasl_users(self, chance: Random) -> SaslUsers:
        return SaslUsers(self.users, self.mechanisms, chance)

    def authorizer(self) -> EmbeddedAuthorizer | None:
        """Return the authorizer of principals; None where every client may do everything."""
        if self.acls is None:
            return None
        return EmbeddedAuthorizer(self.acls, self.super_users, allow_if_no_rule=self.allow_if_no_acl)
