"""Every setting of holdfast in one typed, frozen object, and where each value came from.

A flag wins over the environment, the environment over the file, the file over the default:

    holdfast --set web_port=7000 ...                 # flag
    HOLDFAST_WEB_PORT=7000                           # environment; HOLDFAST_WEB_TOKEN_FILE=/run/token reads the value from a file
    HOLDFAST_KAFKA__SASL_PASSWORD_FILE=/run/password # a Kafka property: upper case, dots to underscores
    [holdfast]                                       # holdfast.toml
    web_port = 7000
    [web]                                            # a section: token is web_token; so with outbox, stores, spark
    token = "..."
    [kafka]
    "security.protocol" = "SASL_SSL"                 # Kafka's own names, word for word
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints
from urllib.parse import urlsplit

from holdfast.config_sources import KAFKA, convert, find_file, read_layers
from holdfast.errors import ConfigError
from holdfast.kafka_properties import (
    ALIASES,
    CONSUMER,
    MASK,
    PRODUCER,
    SHARED,
    KafkaProperties,
    check_name,
    check_value,
    is_secret,
)
from holdfast.security import Oidc, Sasl, check_security, sasl_of, ssl_context_of, trust

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = [
    "ClientConfig",
    "Oidc",
    "Sasl",
    "SettingRow",
    "Settings",
    "find_file",
    "load_settings",
    "settings_from_environment",
]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
ClientConfig = dict[str, str | int | bool]

_APP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _doc(
    doc: str, *, low: float | None = None, high: float = math.inf, secret: bool = False
) -> dict[str, object]:
    """Return a setting's meaning and, for numbers, its inclusive range."""
    return {"doc": doc, "low": low, "high": high, "secret": secret}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One line of `describe`: secrets are masked, None is a value that is not set."""

    name: str
    value: str | int | float | bool | None
    origin: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of all parts. Construct it in code, or call `load_settings` to read flags, environment and file.

    Times are in seconds unless the name says otherwise, sizes in bytes. A Settings that exists is valid: contradictions are
    ConfigErrors on construction.
    """

    app: str = field(
        default="holdfast",
        metadata=_doc("application id: consumer group, prefix of changelogs and transactional ids"),
    )
    kafka: Mapping[str, str] = field(
        default_factory=dict, metadata={"doc": "Kafka properties for every client"}
    )
    data_dir: Path = field(
        default=Path(".holdfast/data"), metadata=_doc("folder of the RocksDB stores; one per worker")
    )
    instance_id: str | None = field(
        default=None,
        metadata=_doc(
            "static membership: a worker that returns with this id within the session keeps its partitions"
        ),
    )
    standbys: int = field(
        default=1, metadata=_doc("standby replicas of each table partition", low=0, high=100)
    )
    replication_factor: int = field(
        default=1, metadata=_doc("replicas of each topic that holdfast creates", low=1, high=100)
    )
    coordination_topic: str = field(default="__marshal", metadata=_doc("topic of claims and heartbeats"))
    claim_interval_s: float = field(
        default=60.0,
        metadata=_doc(
            "heartbeat interval of claims: a claim is free after twice this; equal in the whole fleet",
            low=1,
            high=3_600,
        ),
    )
    compat_view: bool = field(
        default=False, metadata=_doc("also fold claims as the Go library would, to compare")
    )
    groups: bool = field(default=False, metadata=_doc("also fold the balanced groups"))
    groups_topic: str = field(
        default="holdfast.groups", metadata=_doc("topic where members of balanced groups announce themselves")
    )
    ranges: bool = field(default=False, metadata=_doc("also create the topic of range consumers"))
    ranges_topic: str = field(
        default="holdfast.ranges", metadata=_doc("topic where range consumers share out blocks of offsets")
    )
    registry: bool = field(default=False, metadata=_doc("workers keep the registry of producers' names"))
    producers_topic: str = field(
        default="holdfast.producers", metadata=_doc("topic of the registry's commands")
    )
    books: str = field(default="", metadata=_doc("stamped topics to keep ledgers of: orders,payments"))
    dedupe: str = field(
        default="", metadata=_doc("stamped topics to clean, and the clean ones: orders:orders-clean,...")
    )
    progress: str = field(default="", metadata=_doc("outbox progress topics to keep ledgers of"))

    outbox_database: str | None = field(
        default=None, repr=False, metadata=_doc("URL of the database with the outbox", secret=True)
    )
    outbox_harvest: bool = field(default=False, metadata=_doc("workers harvest the outbox too"))
    outbox_name: str = field(
        default="", metadata=_doc("name of the outbox, never to change: its topics, default <app>-outbox")
    )
    outbox_table: str = field(
        default="outbox", metadata=_doc("the outbox table, schema.table to name its schema")
    )
    outbox_layout: str = field(
        default="holdfast", metadata=_doc("layout of the table's columns: holdfast, goharvest or debezium")
    )
    outbox_strategy: str = field(
        default="fenced",
        metadata=_doc("fenced (exactly once) or mark (as goharvest, which may share the table)"),
    )
    outbox_shards: int = field(
        default=1, metadata=_doc("leaders of the outbox; equal in all harvesters", low=1, high=256)
    )
    outbox_poison: str = field(
        default="pass", metadata=_doc("pass or wait: after a row's quarantine its key continues, or waits")
    )
    outbox_attempts: int = field(
        default=5, metadata=_doc("attempts before a refused row goes to the quarantine", low=1, high=1_000)
    )
    outbox_heartbeat_timeout_s: float = field(
        default=5.0, metadata=_doc("a leader silent for three times this is replaced", low=2, high=600)
    )
    outbox_batch_rows: int = field(
        default=5_000, metadata=_doc("most rows in one transaction", low=1, high=100_000)
    )

    web_bind: str = field(default="127.0.0.1", metadata=_doc("address the web port listens on"))
    web_port: int = field(
        default=6066, metadata=_doc("port of queries, health and metrics", low=1, high=65_535)
    )
    web_url: str | None = field(
        default=None,
        metadata=_doc("URL at which other workers reach this one; default from bind address and port"),
    )
    web_token: str | None = field(
        default=None, repr=False, metadata=_doc("shared secret that every query must carry", secret=True)
    )
    web_token_networks: str = field(
        default="127.0.0.0/8,::1/128,localhost",
        metadata=_doc(
            "hosts and networks that get the token over plain http too; all others get it only over verified https"
        ),
    )
    web_connections: int = field(
        default=1_000, metadata=_doc("most connections of the web port", low=1, high=60_000)
    )
    web_connections_per_peer: int = field(
        default=500,
        metadata=_doc("most connections of the web port from one address, loopback too", low=1, high=60_000),
    )
    web_tls_cert: Path | None = field(default=None, metadata=_doc("PEM certificate of the web port"))
    web_tls_key: Path | None = field(default=None, metadata=_doc("PEM key of the web port"))
    web_tls_ca: Path | None = field(
        default=None, metadata=_doc("PEM authorities of client certificates; turns mutual TLS on")
    )

    session_timeout_s: float = field(
        default=10.0, metadata=_doc("a worker silent for this long loses its partitions", low=1, high=1_800)
    )
    heartbeat_interval_s: float = field(
        default=0.0,
        metadata=_doc("group heartbeat; at most a third of the session, default 0.3 of it", low=0, high=600),
    )
    rebalance_timeout_s: float = field(
        default=60.0, metadata=_doc("longest a member may take to rejoin", low=1, high=3_600)
    )
    request_timeout_s: float = field(
        default=30.0, metadata=_doc("longest wait for one reply of a broker", low=1, high=300)
    )
    transaction_timeout_s: float = field(
        default=15.0,
        metadata=_doc("the broker aborts a transaction left open for this long", low=1, high=900),
    )
    commit_timeout_s: float = field(
        default=30.0, metadata=_doc("longest wait for a commit, retries included", low=1, high=900)
    )
    stall_timeout_s: float = field(
        default=60.0, metadata=_doc("a worker without progress for this long exits", low=1, high=86_400)
    )
    quarantine_limit: int = field(
        default=10_000,
        metadata=_doc(
            "a partition stands still after this many quarantined records in a row; 0: never",
            low=0,
            high=1_000_000_000,
        ),
    )

    linger_ms: int = field(
        default=40,
        metadata=_doc("upper bound of the adaptive wait that fills a batch when live", low=0, high=10_000),
    )
    source_wait_ms: int = field(
        default=5_000,
        metadata=_doc(
            "for tables of several sources: how long records wait for a source whose end no broker reports",
            low=0,
            high=600_000,
        ),
    )
    trim_internal: bool = field(
        default=False,
        metadata=_doc("delete records of internal topics once every reader has folded them"),
    )
    fetch_records: int = field(
        default=200_000, metadata=_doc("largest fetch, in records", low=1, high=1_000_000)
    )
    fetch_bytes: int = field(
        default=8 * MIB, metadata=_doc("largest fetch, in bytes; 8MiB is understood", low=64 * KIB, high=GIB)
    )
    inflight_bytes: int = field(
        default=64 * MIB,
        metadata=_doc(
            "fetched and not yet applied, per worker; no transaction is larger", low=64 * KIB, high=16 * GIB
        ),
    )
    unpacked_batch_bytes: int = field(
        default=64 * MIB,
        metadata=_doc(
            "largest batch of a source once unpacked; a partition stops before a larger one",
            low=MIB,
            high=GIB,
        ),
    )
    unreadable: str = field(
        default="halt",
        metadata=_doc(
            "a batch of a source that cannot be read stops its partition (halt), or is skipped and noted (quarantine)"
        ),
    )
    store_cache_bytes: int = field(
        default=64 * MIB, metadata=_doc("RocksDB block cache, shared by all stores", low=MIB, high=1024 * GIB)
    )
    store_write_buffer_bytes: int = field(
        default=64 * MIB,
        metadata=_doc("RocksDB write buffers, shared by all stores", low=MIB, high=1024 * GIB),
    )
    store_check_interval_s: float = field(
        default=0,
        metadata=_doc(
            "interval at which each store is compared with its changelog, slowly; 0 for never",
            low=0,
            high=31_536_000,
        ),
    )
    cache_rows: int = field(
        default=200_000,
        metadata=_doc("decoded rows kept for each partition of a table", low=0, high=1_000_000_000),
    )

    log_format: str = field(
        default="text",
        metadata=_doc("text for people, or json: each log line is one object with named fields"),
    )

    spark_master: str = field(
        default="local[*]",
        metadata=_doc("Spark master of replays, checks and landings; local[*] takes every core"),
    )
    spark_memory: str = field(default="1g", metadata=_doc("heap of Spark's driver"))

    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where values came from, by setting name or "kafka.<property>"; filled by `load_settings`."""

    def __post_init__(self) -> None:
        names = ((name, check_name(name, self._place(f"kafka.{name}"))) for name in self.kafka)
        given = {
            name: check_value(name, self.kafka[spelled], self._place(f"kafka.{name}"))
            for spelled, name in names
        }
        given.setdefault("bootstrap.servers", DEFAULT_BOOTSTRAP_SERVERS)
        object.__setattr__(self, "kafka", KafkaProperties(given))
        object.__setattr__(self, "data_dir", Path(self.data_dir))
        if self.heartbeat_interval_s == 0:
            object.__setattr__(self, "heartbeat_interval_s", round(self.session_timeout_s * 0.3, 3))
        if self.web_url is not None:
            object.__setattr__(self, "web_url", self.web_url.rstrip("/"))
        for check in _CHECKS:
            check(self)

    # What other parts ask for

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers to begin with, as host:port,host:port."""
        return self.kafka["bootstrap.servers"]

    @property
    def claim_stale_after_s(self) -> int:
        """Return the age from which on a claim is free, in whole seconds as all times of the protocol."""
        return int(2 * self.claim_interval_s)

    @property
    def quarantine_topic(self) -> str:
        """Return the topic of records that could not be decoded or folded."""
        return f"{self.app}-quarantine"

    @property
    def skips_topic(self) -> str:
        """Return the topic in which is written what of the sources is skipped."""
        return f"{self.app}-skips"

    @property
    def workers_topic(self) -> str:
        """Return the topic in which workers announce what they serve."""
        return f"{self.app}-workers"

    @property
    def book_topics(self) -> tuple[str, ...]:
        """Return the topics named in `books`."""
        return _names(self.books)

    @property
    def progress_topics(self) -> tuple[str, ...]:
        """Return the topics named in `progress`."""
        return _names(self.progress)

    @property
    def dedupe_topics(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of source and clean topic named in `dedupe`."""
        pairs = (pair.partition(":") for pair in _names(self.dedupe))
        return tuple((source.strip(), clean.strip()) for source, _, clean in pairs)

    @property
    def advertised_url(self) -> str:
        """Return the URL other workers use for this one: `web_url`, else made from bind address and port."""
        if self.web_url is not None:
            return self.web_url
        host = socket.gethostname() if _is_wildcard(self.web_bind) else self.web_bind
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.web_tls_cert else 'http'}://{host}:{self.web_port}"

    def client(self, **overrides: str | int | bool) -> ClientConfig:
        """Return the configuration of a confluent-kafka client: the Kafka properties, a client.id, then *overrides*.

        Properties that only producers (or only consumers) know are included when an override shows that this is one: say
        `client(**{"transactional.id": ...})` or `client(**{"group.id": ...})`, or call `producer` and `consumer`.
        """
        settled = {ALIASES.get(name, name): value for name, value in overrides.items()}
        wanted = (
            SHARED
            | (PRODUCER if settled.keys() & _PRODUCER_ONLY else set())
            | (CONSUMER if settled.keys() & _CONSUMER_ONLY else set())
        )
        return (
            {"client.id": self.app}
            | {name: value for name, value in self.kafka.items() if name in wanted}
            | settled
        )

    def producer(self, **overrides: str | int | bool) -> ClientConfig:
        """Return `client` with the properties that only producers know."""
        return (
            self.client()
            | {name: value for name, value in self.kafka.items() if name in PRODUCER}
            | overrides
        )

    def consumer(self, **overrides: str | int | bool) -> ClientConfig:
        """Return `client` with the properties that only consumers know."""
        return (
            self.client()
            | {name: value for name, value in self.kafka.items() if name in CONSUMER}
            | overrides
        )

    def sasl(self) -> Sasl | None:
        """Return how to authenticate to Kafka, None when it does not ask."""
        return sasl_of(self.kafka)

    def ssl_context(self) -> SSLContext | None:
        """Return a TLS context equal to what librdkafka makes of the `ssl.*` properties, None without TLS; reads the PEM files."""
        return ssl_context_of(self.kafka)

    def token_ssl_context(self) -> SSLContext:
        """Return the TLS context for the OAUTHBEARER token endpoint (`https.ca.location` or `https.ca.pem`, else the system's trust)."""
        return trust(self.kafka, location="https.ca.location", pem="https.ca.pem")

    # What a person asks for

    def origin(self, name: str) -> str:
        """Return where a setting or "kafka.<property>" got its value: a flag, a variable, a file, or "default".

        >>> Settings(web_port=7000).origin("web_port"), Settings().origin("web_port")
        ('code', 'default')
        """
        if name in self.origins:
            return self.origins[name]
        if name.startswith(KAFKA):
            default = DEFAULT_BOOTSTRAP_SERVERS if name == "kafka.bootstrap.servers" else None
            return "default" if self.kafka.get(name.removeprefix(KAFKA)) == default else "code"
        return "default" if getattr(self, name) == getattr(_DEFAULTS, name) else "code"

    def describe(self) -> list[SettingRow]:
        """Return every setting and every Kafka property that is set, secrets masked, in the order of declaration."""
        rows = []
        for declared in fields(self):
            if declared.name in ("kafka", "origins"):
                continue
            value = getattr(self, declared.name)
            if declared.metadata["secret"] and value is not None:
                value = MASK
            shown = str(value) if isinstance(value, Path) else value
            rows.append(
                SettingRow(
                    name=declared.name,
                    value=shown,
                    origin=self.origin(declared.name),
                    doc=declared.metadata["doc"],
                )
            )
        for name, text in self.kafka.items():
            shown = MASK if is_secret(name) else text
            rows.append(
                SettingRow(
                    name=f"kafka.{name}",
                    value=shown,
                    origin=self.origin(f"kafka.{name}"),
                    doc="Kafka property",
                )
            )
        return rows

    def _place(self, *names: str) -> str:
        """Name settings with where they came from, to begin an error."""
        return " and ".join(
            f"{name} ({origin})" if (origin := self.origins.get(name)) else name for name in names
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_PRODUCER_ONLY = PRODUCER | {
    "transactional.id",
    "transaction.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "acks",
}
_CONSUMER_ONLY = CONSUMER | {
    "group.id",
    "enable.auto.commit",
    "isolation.level",
    "auto.offset.reset",
    "enable.partition.eof",
}


def _check_ranges(settings: Settings) -> None:
    for declared in fields(settings):
        low = declared.metadata.get("low")
        if low is None:
            continue
        high, value = declared.metadata["high"], getattr(settings, declared.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{settings._place(declared.name)} must be a number, not {value!r}")
        if not low <= value <= high:
            raise ConfigError(
                f"{settings._place(declared.name)} is {value:g}; the range is {low:g} to {high:g}"
            )


def _check_names(settings: Settings) -> None:
    if not _APP.fullmatch(settings.app):
        raise ConfigError(
            f"{settings._place('app')} is {settings.app!r}; use 1 to 100 letters, digits, '.', '_' or '-': it becomes part of topic names"
        )
    if not _TOPIC.fullmatch(settings.coordination_topic) or settings.coordination_topic in (".", ".."):
        raise ConfigError(
            f"{settings._place('coordination_topic')} is {settings.coordination_topic!r}, which is not a valid Kafka topic name"
        )
    topics = {
        "producers_topic": (settings.producers_topic,),
        "groups_topic": (settings.groups_topic,),
        "ranges_topic": (settings.ranges_topic,),
        "books": settings.book_topics,
        "progress": settings.progress_topics,
        "dedupe": tuple(name for pair in settings.dedupe_topics for name in pair),
    }
    for setting, names in topics.items():
        for name in names:
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                form = "write source:clean pairs" if setting == "dedupe" else "write topics"
                raise ConfigError(
                    f"{settings._place(setting)}: {name!r} is not a valid Kafka topic name; {form}, separated by commas"
                )
    if settings.instance_id is not None and not _TOPIC.fullmatch(settings.instance_id):
        raise ConfigError(
            f"{settings._place('instance_id')} is {settings.instance_id!r}; use 1 to 249 letters, digits, '.', '_' or '-'"
        )
    if not all(part.strip() for part in settings.bootstrap_servers.split(",")):
        raise ConfigError(
            f"{settings._place('kafka.bootstrap.servers')} is {settings.bootstrap_servers!r}; write host:port,host:port"
        )


def _check_times(settings: Settings) -> None:
    if 2 * settings.claim_interval_s % 1:
        raise ConfigError(
            f"{settings._place('claim_interval_s')} is {settings.claim_interval_s:g}: use steps of 0.5, since a claim is free after twice "
            "that, in whole seconds"
        )
    for smaller, larger, why, factor in (
        ("heartbeat_interval_s", "session_timeout_s", "a worker must be able to miss two heartbeats", 3),
        ("session_timeout_s", "request_timeout_s", "a request may wait as long as a session", 1),
        ("commit_timeout_s", "rebalance_timeout_s", "a rebalance waits for the commit in flight", 1),
        ("commit_timeout_s", "stall_timeout_s", "one slow commit must not end a worker", 1),
        ("fetch_bytes", "inflight_bytes", "one fetch must fit", 1),
    ):
        small, large = getattr(settings, smaller), getattr(settings, larger)
        if small * factor > large:
            share = "a third of " if factor == 3 else ""
            raise ConfigError(
                f"{settings._place(smaller, larger)} are {small:g} and {large:g}: {smaller} may be at most {share}{larger}, since {why}"
            )


def _check_web(settings: Settings) -> None:
    if (settings.web_tls_cert is None) != (settings.web_tls_key is None):
        raise ConfigError("web_tls_cert and web_tls_key belong together: set both or none")
    if settings.web_tls_ca is not None and settings.web_tls_cert is None:
        raise ConfigError(
            "web_tls_ca asks clients for certificates, which needs TLS: set web_tls_cert and web_tls_key too"
        )
    token = settings.web_token
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(
            f"{settings._place('web_token')} must be visible ASCII without spaces: it travels in a header"
        )
    if not _is_loopback(settings.web_bind) and token is None and settings.web_tls_ca is None:
        raise ConfigError(
            f"{settings._place('web_bind')} is {settings.web_bind}, which others can reach: set web_token (best by HOLDFAST_WEB_TOKEN_FILE) "
            "or mutual TLS (web_tls_cert, web_tls_key, web_tls_ca), or bind to 127.0.0.1"
        )
    try:
        hosts_and_networks(settings.web_token_networks)
    except ValueError as error:
        raise ConfigError(
            f"{settings._place('web_token_networks')}: {error}; write hosts and networks separated by commas, like tables.internal,10.0.0.0/8"
        ) from None
    if settings.web_url is not None:
        parts = urlsplit(settings.web_url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path
            or parts.query
            or parts.fragment
        ):
            raise ConfigError(
                f"{settings._place('web_url')} is {settings.web_url!r}; write http://host:port or https://host:port"
            )


def _check_choices(settings: Settings) -> None:
    for name, choices in (("unreadable", ("halt", "quarantine")), ("log_format", ("text", "json"))):
        if getattr(settings, name) not in choices:
            raise ConfigError(
                f"{settings._place(name)} is {getattr(settings, name)!r}; write {' or '.join(choices)}"
            )


def _check_kafka(settings: Settings) -> None:
    check_security(settings.kafka)


_CHECKS: tuple[Callable[[Settings], None], ...] = (
    _check_ranges,
    _check_names,
    _check_times,
    _check_web,
    _check_choices,
    _check_kafka,
)


def hosts_and_networks(
    text: str,
) -> tuple[frozenset[str], tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]]:
    """Read a list of host names and networks; raises ValueError for what is neither.

    >>> hosts_and_networks("Localhost, 10.0.0.0/8, ::1")
    (frozenset({'localhost'}), (IPv4Network('10.0.0.0/8'), IPv6Network('::1/128')))
    """
    hosts, networks = set(), []
    for name in _names(text):
        if _HOST.fullmatch(name):
            hosts.add(name.lower())
        else:
            networks.append(ipaddress.ip_network(name))
    return frozenset(hosts), tuple(networks)


_HOST = re.compile(r"(?=.*[A-Za-z_])[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


def _is_wildcard(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def _is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach *host*; a name other than localhost could be anything.

    >>> [_is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "example.org")]
    [True, True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_DEFAULTS = Settings()
_DECLARED = {
    declared.name: declared for declared in fields(Settings) if declared.name not in ("kafka", "origins")
}


def load_settings(*, flags: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> Settings:
    """Return the settings these inputs amount to; nothing else is looked at.

    Names in *flags* are settings ("web_port") or Kafka properties ("kafka.security.protocol"); None means the flag was not given.

    >>> settings = load_settings(flags={"app": "shop"}, env={"HOLDFAST_APP": "other", "HOLDFAST_WEB_PORT": "7000"}, file=None)
    >>> settings.app, settings.web_port, settings.origin("web_port")
    ('shop', 7000, 'environment HOLDFAST_WEB_PORT')
    """
    layer = read_layers(_DECLARED, flags=flags, env=env, file=file)
    types = get_type_hints(Settings)
    values = {
        name: convert(name, given, types[name], secret=_DECLARED[name].metadata["secret"])
        for name, given in layer.items()
        if not name.startswith(KAFKA)
    }
    kafka = {
        name.removeprefix(KAFKA): str(given.value) for name, given in layer.items() if name.startswith(KAFKA)
    }
    return Settings(**values, kafka=kafka, origins={name: given.origin for name, given in layer.items()})


def settings_from_environment(**flags: object) -> Settings:
    """Return the settings of this process: *flags*, its environment, and the file that HOLDFAST_CONFIG or the current folder offers."""
    return load_settings(flags=flags, env=os.environ, file=find_file(None, os.environ, Path.cwd()))
