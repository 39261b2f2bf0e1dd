"""The Kafka properties that users may set, under which names, and why the others are refused.

The names are librdkafka's (CONFIGURATION.md of 2.16), which are the Java client's wherever both have one; a
test compares this page with the library that is installed. Nothing is passed on unread: a property that only
some of the clients could honour would give a worker that connects by one rule and writes by another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from holdfast.config.argument_types import is_text
from holdfast.errors import ConfigError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHARED = _names("""
    bootstrap.servers client.id client.rack client.dns.lookup security.protocol
    sasl.mechanism sasl.username sasl.password sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.kinit.cmd
    sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin sasl.oauthbearer.method sasl.oauthbearer.client.id
    sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions sasl.oauthbearer.token.endpoint.url
    sasl.oauthbearer.sub.claim.name https.ca.location https.ca.pem
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem ssl.key.password
    ssl.crl.location ssl.cipher.suites ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    message.max.bytes message.copy.max.bytes receive.message.max.bytes
    metadata.max.age.ms metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms topic.blacklist
    topic.metadata.refresh.interval.ms topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.sparse
    topic.metadata.propagation.max.ms
    socket.timeout.ms socket.send.buffer.bytes socket.receive.buffer.bytes socket.keepalive.enable socket.nagle.disable
    socket.max.fails socket.connection.setup.timeout.ms connections.max.idle.ms
    broker.address.ttl broker.address.family api.version.request.timeout.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    statistics.interval.ms debug log_level log.thread.name log.connection.close enable.metrics.push plugin.library.paths
    """)  # noqa: E501
"""Properties every client takes."""

PRODUCER = _names("""
    compression.type compression.level batch.size batch.num.messages sticky.partitioning.linger.ms
    queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.backpressure.threshold
    """)
"""Properties only producers take; a consumer would warn about each."""

CONSUMER = _names("""
    fetch.min.bytes fetch.max.bytes fetch.wait.max.ms fetch.error.backoff.ms max.partition.fetch.bytes check.crcs
    coordinator.query.interval.ms consume.callback.max.messages
    """)  # noqa: E501
"""Properties only consumers take."""

ALLOWED = SHARED | PRODUCER | CONSUMER

ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""Second names of one property; kept under one, so that a flag overrides a file whichever name each of
them used.
"""

_POSITION = "holdfast keeps the position in its state and starts from there"
_EXACTLY_ONCE = "exactly-once depends on it, so holdfast sets it"
_GROUP = "the group runs on Faust's assignor, which knows about tables and standbys"

CONTROLLED = {
    "group.id": "the consumer group is the application's name; set `app`",
    "group.instance.id": "set `instance_id`",
    "group.protocol": _GROUP,
    "group.protocol.type": _GROUP,
    "group.remote.assignor": _GROUP,
    "partition.assignment.strategy": _GROUP,
    "session.timeout.ms": "set `session_timeout_s`",
    "heartbeat.interval.ms": "set `heartbeat_interval_s`",
    "max.poll.interval.ms": "set `stall_timeout_s`",
    "max.poll.records": "set `fetch_records`",
    "queued.min.messages": "set `fetch_records`",
    "queued.max.messages.kbytes": "set `fetch_bytes`",
    "fetch.queue.backoff.ms": "holdfast sets it to match `fetch_bytes`",
    "enable.auto.commit": _POSITION,
    "auto.commit.enable": _POSITION,
    "auto.commit.interval.ms": _POSITION,
    "enable.auto.offset.store": _POSITION,
    "offset.store.method": _POSITION,
    "offset.store.path": _POSITION,
    "offset.store.sync.interval.ms": _POSITION,
    "auto.offset.reset": _POSITION,
    "enable.partition.eof": "a restore needs it to find the end of a changelog, so holdfast sets it",
    "isolation.level": _EXACTLY_ONCE,
    "transactional.id": (
        "it fences old owners of a partition, so holdfast derives it from application, processor and"
        " partition"
    ),
    "transaction.timeout.ms": "set `transaction_timeout_s`",
    "enable.idempotence": _EXACTLY_ONCE,
    "enable.gapless.guarantee": _EXACTLY_ONCE,
    "acks": _EXACTLY_ONCE,
    "request.required.acks": _EXACTLY_ONCE,
    "max.in.flight": _EXACTLY_ONCE,
    "max.in.flight.requests.per.connection": _EXACTLY_ONCE,
    "retries": _EXACTLY_ONCE,
    "message.send.max.retries": _EXACTLY_ONCE,
    "queuing.strategy": _EXACTLY_ONCE,
    "linger.ms": "set `linger_ms`",
    "queue.buffering.max.ms": "set `linger_ms`",
    "delivery.timeout.ms": "set `commit_timeout_s`",
    "message.timeout.ms": "set `commit_timeout_s`",
    "request.timeout.ms": "set `request_timeout_s`",
    "partitioner": (
        "a key must reach the same partition live, in a replay and from Java clients: it is always murmur2"
    ),
    "allow.auto.create.topics": "topics get their layout from `holdfast topics create`",
    "delivery.report.only.error": "every delivery is awaited",
    "produce.offset.report": "every delivery is awaited",
}
"""Properties that holdfast sets itself, with the reason or the setting to use instead."""

_PEM = (
    "Faust's client reads PEM only: convert with `openssl pkcs12 -in STORE -out client.pem` and set"
    " ssl.certificate.location and ssl.key.location"
)
_OPENSSL = "Faust's client (Python's ssl) has no such setting"
_OIDC = "only sasl.oauthbearer.method=oidc with client credentials works in every client"
_C_API = "it belongs to librdkafka's C interface"
_OLD = "it is deprecated in librdkafka and without effect on brokers since 0.10"

UNSUPPORTED = {
    "ssl.keystore.location": _PEM,
    "ssl.keystore.password": _PEM,
    "ssl.engine.location": _OPENSSL,
    "ssl.engine.id": _OPENSSL,
    "ssl.providers": _OPENSSL,
    "ssl.curves.list": _OPENSSL,
    "ssl.sigalgs.list": _OPENSSL,
    "ssl.ca.certificate.stores": "name the authorities with ssl.ca.location",
    "sasl.oauthbearer.config": _OIDC,
    "enable.sasl.oauthbearer.unsecure.jwt": _OIDC,
    "sasl.oauthbearer.grant.type": _OIDC,
    "sasl.oauthbearer.metadata.authentication.type": _OIDC,
    "share.acknowledgement.mode": "holdfast does not use share groups",
    "builtin.features": "it can only be read",
    "enabled_events": _C_API,
    "log.queue": _C_API,
    "internal.termination.signal": _C_API,
    "enable.random.seed": _C_API,
    "api.version.request": _OLD,
    "api.version.fallback.ms": _OLD,
    "broker.version.fallback": _OLD,
    "socket.blocking.max.ms": _OLD,
    "reconnect.backoff.jitter.ms": _OLD,
    "topic.metadata.refresh.fast.cnt": _OLD,
    # Names of the Java client that pasted configurations bring along.
    "sasl.jaas.config": "set sasl.username and sasl.password",
    "sasl.client.callback.handler.class": "name the mechanism with sasl.mechanism",
    "sasl.login.callback.handler.class": _OIDC,
    "ssl.truststore.location": "export the authorities as PEM and set ssl.ca.location",
    "ssl.truststore.password": "export the authorities as PEM and set ssl.ca.location",
    "ssl.truststore.type": "export the authorities as PEM and set ssl.ca.location",
    "ssl.truststore.certificates": "set ssl.ca.pem",
    "ssl.keystore.type": _PEM,
    "ssl.keystore.certificate.chain": "set ssl.certificate.pem",
    "ssl.keystore.key": "set ssl.key.pem",
    "ssl.protocol": "the newest version both sides know is negotiated",
    "ssl.enabled.protocols": "the newest version both sides know is negotiated",
    "key.serializer": "records are bytes; a processor's `decode` reads them",
    "value.serializer": "records are bytes; a processor's `decode` reads them",
    "key.deserializer": "records are bytes; a processor's `decode` reads them",
    "value.deserializer": "records are bytes; a processor's `decode` reads them",
    "buffer.memory": "set queue.buffering.max.kbytes",
    "max.request.size": "set message.max.bytes",
    "fetch.max.wait.ms": "set fetch.wait.max.ms",
    "default.api.timeout.ms": "set socket.timeout.ms",
    "send.buffer.bytes": "set socket.send.buffer.bytes",
    "receive.buffer.bytes": "set socket.receive.buffer.bytes",
}
"""Properties that exist somewhere but not in all of our clients, with what to do instead."""

_UNSUPPORTED_PREFIXES = {"sasl.oauthbearer.assertion.": _OIDC}

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")

_CHOICES = {
    "security.protocol": PROTOCOLS,
    "sasl.mechanism": MECHANISMS,
    "sasl.oauthbearer.method": ("oidc",),
    "ssl.endpoint.identification.algorithm": ("none", "https"),
    "enable.ssl.certificate.verification": ("true", "false"),
}

_SECRETS = frozenset({"sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password", "ssl.key.pem"})
MASK = "********"


def is_secret(name: str) -> bool:
    """Return whether the value of this property must never be printed.

    >>> [is_secret(name) for name in ("sasl.password", "sasl.oauthbearer.client.credentials.client.secret", "sasl.username")]
    [True, True, False]
    """  # noqa: E501
    return ALIASES.get(name, name) in _SECRETS


def env_names() -> dict[str, str]:
    """Return each allowed property by its environment spelling: upper case, dots to underscores.

    >>> env_names()["SASL_MECHANISM"], env_names()["LOG_LEVEL"]
    ('sasl.mechanism', 'log_level')
    """
    return {name.upper().replace(".", "_"): name for name in (*ALLOWED, *ALIASES, *CONTROLLED, *UNSUPPORTED)}


def check_name(name: str, place: str) -> str:
    """Return the one name a property is kept under, or refuse it with the reason; *place* says where it
    was found.
    """
    name = ALIASES.get(name, name)
    if name in ALLOWED:
        return name
    reason = CONTROLLED.get(name)
    if reason is not None:
        raise ConfigError(f"{place}: Kafka property {name} is set by holdfast itself: {reason}")
    reason = UNSUPPORTED.get(name) or next(
        (why for prefix, why in _UNSUPPORTED_PREFIXES.items() if name.startswith(prefix)), None
    )
    if reason is not None:
        raise ConfigError(f"{place}: Kafka property {name} is not supported: {reason}")
    raise ConfigError(f"{place}: unknown Kafka property {name}{suggest(name, [*ALLOWED, *ALIASES])}")


def require_property(name: object, value: object, place: str) -> None:
    """Refuse a property whose name is no text, or whose value a client could not be given; the value may be
    secret.
    """
    if not is_text(name):
        raise ConfigError(f"{place}: {name!r:.200} is not the name of a property: write text")
    if isinstance(value, str) and not is_text(value):
        raise ConfigError(f"{place}: the value of {name} holds NUL or a lone surrogate: leave it out")


def check_value(name: str, value: object, place: str) -> str:
    """Return the value as librdkafka spells it; a closed choice is checked, free text is not."""
    if isinstance(value, bool):
        value = "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ConfigError(
            f"{place}: Kafka property {name} must be text, a number or true/false, not {type(value).__name__}"
        )
    text = str.__str__(value) if isinstance(value, str) else str(value)  # of an Enum's member, its value
    choices = _CHOICES.get(name)
    if choices is None:
        return text
    chosen = next((choice for choice in choices if choice.lower() == text.lower()), None)
    if chosen is None:
        raise ConfigError(f"{place}: Kafka property {name} is {text!r}; choose one of {', '.join(choices)}")
    return chosen


def suggest(name: str, known: Iterator[str] | list[str]) -> str:
    """Return "; did you mean ...?" with the nearest known names, or nothing.

    >>> suggest("bootstrap.server", ["bootstrap.servers", "debug"])
    '; did you mean bootstrap.servers?'
    >>> suggest("zzz", ["bootstrap.servers"])
    ''
    """
    near = get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class KafkaProperties(Mapping[str, str]):
    """Kafka properties that cannot change and never print a secret.

    >>> KafkaProperties({"sasl.username": "ada", "sasl.password": "x"})
    {'sasl.password': '********', 'sasl.username': 'ada'}
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr({name: MASK if self.is_secret(name) else value for name, value in self._values.items()})

    @staticmethod
    def is_secret(name: str) -> bool:
        return is_secret(name)
