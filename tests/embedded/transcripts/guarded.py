"""Brokers that ask who comes: Apache Kafka and the embedded one with the same users, certificates and rules,
and clients that log in.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import ManualClock
from holdfast.dev import ports
from holdfast.dev.broker.cluster import Cluster, Credentials
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.security.tls import EmbeddedTls
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.talk import Talk
from tests.support.places import TLS

ROOT = "root"
PASSWORDS = {each: f"{each}-secret" for each in (ROOT, "alice", "bob")}
SUPER_USERS = ("User:root", "User:CN=holdfast dev")
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_REQUEST = re.compile(r'Request [^"]* needs')
"""Kafka shows a request that is forbidden as Java shows it."""
_LOGIN = "org.apache.kafka.common.security"
SESSION_MS = 4_000
"""Lifetime of a session on the listener without TLS."""


class Guarded(NamedTuple):
    """Addresses of such a broker: for users by SASL over TLS, without TLS (there sessions end), and for
    certificates of clients. *pass_time* has a number of milliseconds go by there.
    """

    sasl_ssl: str
    sasl_plaintext: str
    ssl: str
    authority: Path
    pass_time: Callable[[int], None]


class GuardedKafka:
    """Apache Kafka with three listeners, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._ports = [*ports.free_ports(4)]
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        client, control, bare, mutual = self._ports
        properties = {
            "authorizer.class.name": _AUTHORIZER,
            "super.users": ";".join(SUPER_USERS),
            "allow.everyone.if.no.acl.found": "false",
            "listeners": f"CLIENT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{control},BARE://127.0.0.1:{bare},"
            f"MUTUAL://127.0.0.1:{mutual}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{client},BARE://127.0.0.1:{bare},MUTUAL://127.0.0.1:{mutual}",
            "controller.quorum.voters": f"1@127.0.0.1:{control}",
            "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:SSL,BARE:SASL_PLAINTEXT,MUTUAL:SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.bare.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.location": str(TLS / "ca.pem"),
        }
        for listener in ("client", "bare"):
            for mechanism in ("256", "512"):
                name = f"listener.name.{listener}.scram-sha-{mechanism}.sasl.jaas.config"
                properties[name] = f"{_LOGIN}.scram.ScramLoginModule required;"
            plain = f"{_LOGIN}.plain.PlainLoginModule required {users};"
            properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        password = PASSWORDS[ROOT]
        properties["listener.name.client.scram-sha-512.sasl.jaas.config"] = (
            f'{_LOGIN}.scram.ScramLoginModule required username="{ROOT}" password="{password}";'
        )
        self._cluster = Cluster(
            folder,
            port=client,
            sasl=Credentials(username=ROOT, password=password),
            properties=properties,
            short_lived=True,
        )

    def __enter__(self) -> Guarded:
        self._cluster.start()
        client, _, bare, mutual = (f"127.0.0.1:{each}" for each in self._ports)
        authority = Path(self._cluster.client_config()["ssl.ca.location"])
        return Guarded(client, bare, mutual, authority, lambda by_ms: time.sleep(by_ms / 1000))

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()


def trust(authority: Path, name: str | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts *authority*, with the certificate *name* of the
    tests'.
    """
    context = ssl.create_default_context(cafile=authority)
    if name is not None:
        context.load_cert_chain(TLS / f"{name}.pem", TLS / f"{name}-key.pem")
    return context


class GuardedTalk(Talk):
    """A conversation in which each client is the user whose name comes before a stroke: ``alice/2``."""

    def __init__(self, guarded: Guarded) -> None:
        super().__init__(guarded.sasl_ssl)
        self.guarded = guarded

    def client(self, name: str = ROOT) -> RawClient:
        name = ROOT if name == "raw" else name
        if name not in self._clients:
            client = self._clients[name] = self.stranger()
            log_in(client, name.split("/")[0])
        return self._clients[name]

    def tell(self, what: str, answer: Any) -> None:
        super().tell(what, answer)
        self.lines[-1] = _REQUEST.sub("Request <request> needs", self.lines[-1])

    def stranger(self) -> RawClient:
        """Return a connection that has not shown who it is."""
        return RawClient(self.guarded.sasl_ssl, tls=trust(self.guarded.authority))

    def in_sessions(self) -> RawClient:
        """Return a connection, to where sessions end, that has not shown who it is."""
        return RawClient(self.guarded.sasl_plaintext)

    def with_certificate(self, name: str) -> RawClient:
        """Return a connection that has shown the certificate *name*."""
        return RawClient(self.guarded.ssl, tls=trust(self.guarded.authority, name))


def log_in(client: RawClient, user: str) -> None:
    """Log in by SASL/PLAIN."""
    assert client.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == 0
    told = client.ask("SaslAuthenticate", 2, auth_bytes=f"\0{user}\0{PASSWORDS[user]}".encode())
    assert told["error_code"] == 0, told


@contextmanager
def guarded_embedded() -> Iterator[Guarded]:
    """Run the embedded Kafka as `GuardedKafka` is set up: one for each listener, for it has but one."""
    tls = EmbeddedTls(certificate=TLS / "server.pem", key=TLS / "server-key.pem", authority=TLS / "ca.pem")
    mutual = msgspec.structs.replace(tls, clients=TLS / "ca.pem")
    more: dict[str, Any] = {"acls": (), "super_users": SUPER_USERS, "seed": 1}
    clock = ManualClock(now_ms=1_700_000_000_000)
    clock.advance_ms(60_000)  # since it began, as for a broker that has started
    with (
        EmbeddedKafka(users=PASSWORDS, tls=tls, **more) as one,
        EmbeddedKafka(users=PASSWORDS, reauth_ms=SESSION_MS, **more) as bare,
        EmbeddedKafka(tls=mutual, **more) as third,
    ):
        bare.cluster.clock = clock
        yield Guarded(one.bootstrap, bare.bootstrap, third.bootstrap, tls.authority, clock.advance_ms)
