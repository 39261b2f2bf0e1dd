"""All settings in one object: where they are read, what they amount to, and how they are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from holdfast.config.hosts import broker_problems
from holdfast.config.kafka_properties import (
    ALIASES,
    CONSUMER,
    MASK,
    PRODUCER,
    SHARED,
    KafkaProperties,
    check_name,
    check_value,
    is_secret,
    require_property,
)
from holdfast.config.sections.application import ApplicationSettings
from holdfast.config.sections.console import ConsoleSettings
from holdfast.config.sections.fetching import FetchingSettings
from holdfast.config.sections.logs import LogSettings
from holdfast.config.sections.outbox import OutboxSettings
from holdfast.config.sections.schema_registry import SchemaRegistrySettings
from holdfast.config.sections.section import noted, range_problem, refuse, section_problems, type_problems
from holdfast.config.sections.spark import SparkProperties, SparkSettings, is_spark_secret
from holdfast.config.sections.stores import StoreSettings
from holdfast.config.sections.timeouts import TimeoutSettings
from holdfast.config.sections.web import WebSettings
from holdfast.config.security import Sasl, check_security, sasl_of, ssl_context_of, trust
from holdfast.config.sources import KAFKA, SPARK, convert, find_file, read_layers
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
ClientConfig = dict[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One line of `describe`: secrets are masked, None is a value that is not set."""

    name: str
    value: str | int | float | bool | None
    origin: str
    doc: str


@dataclass(frozen=True, kw_only=True)
class Settings(
    SparkSettings,
    LogSettings,
    StoreSettings,
    FetchingSettings,
    TimeoutSettings,
    ConsoleSettings,
    WebSettings,
    SchemaRegistrySettings,
    OutboxSettings,
    ApplicationSettings,
):
    """Settings of all parts. Construct it in code, or call `load_settings` to read flags, environment and
    file.

    Times are in seconds unless the name says otherwise, sizes in bytes. A Settings that exists is valid: all
    faults are reported in one ConfigError on construction, a line for each setting. Sections are shown from
    the last base to the first.
    """

    kafka: Mapping[str, str] = field(
        default_factory=dict, metadata={"doc": "Kafka properties for every client"}
    )
    spark_conf: Mapping[str, str] = field(
        default_factory=dict, metadata={"doc": "properties of Spark, by their full names"}
    )

    def __post_init__(self) -> None:
        refuse([*type_problems(self)])
        problems: list[str] = []
        given = {"bootstrap.servers": DEFAULT_BOOTSTRAP_SERVERS}
        for spelled, value in self.kafka.items():
            with noted(problems):
                require_property(spelled, value, self.place("kafka"))
                name = check_name(spelled, self.place(f"kafka.{spelled}"))
                given[name] = check_value(name, value, self.place(f"kafka.{name}"))
        object.__setattr__(self, "kafka", KafkaProperties(given))
        for spelled, value in self.spark_conf.items():
            with noted(problems):
                require_property(spelled, value, self.place("spark_conf"))
                if not isinstance(value, str | int | float):
                    raise ConfigError(
                        f"{self.place('spark_conf')}: {spelled} must be text, a number or true/false, not"
                        f" {type(value).__name__}"
                    )
        refuse(problems)
        object.__setattr__(self, "spark_conf", SparkProperties(self.spark_conf))
        problems += [
            f"{self.place(name)} is no property of Spark: its name begins with spark."
            for name in self.spark_conf
            if not name.startswith(SPARK)
        ]
        if self.web_url is not None:
            object.__setattr__(self, "web_url", self.web_url.rstrip("/"))
        for section in reversed(Settings.__bases__):
            problems += section_problems(section, self)
        problems += [
            f"{self.place('kafka.bootstrap.servers')}: {problem}; write host:port,host:port"
            for problem in broker_problems(self.bootstrap_servers)
        ]
        if self.console_on_workers and not self.console_asks_who and not self.web_is_open:
            problems.append(
                f"{self.place('console_on_workers')} shows every row to whoever reaches the web port, which"
                " is guarded or not on loopback: set console_token (best by HOLDFAST_CONSOLE_TOKEN_FILE) or"
                " console_oidc_issuer"
            )
        with noted(problems):
            check_security(self.kafka)
        refuse(problems)
        if self.heartbeat_interval_s == 0:
            object.__setattr__(self, "heartbeat_interval_s", round(self.session_timeout_s * 0.3, 3))

    # What other parts ask for

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers to begin with, as host:port,host:port."""
        return self.kafka["bootstrap.servers"]

    def client(self, **overrides: str | int | bool) -> ClientConfig:
        """Return the configuration of a confluent-kafka client: the Kafka properties, a client.id, then
        *overrides*.

        Properties that only producers (or only consumers) know are included when an override shows that this
        is one: say `client(**{"transactional.id": ...})` or `client(**{"group.id": ...})`, or call `producer`
        and `consumer`.
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
        """Return a TLS context equal to what librdkafka makes of the `ssl.*` properties, None without TLS;
        reads the PEM files.
        """
        return ssl_context_of(self.kafka)

    def token_ssl_context(self) -> SSLContext:
        """Return the TLS context for the OAUTHBEARER token endpoint (`https.ca.location` or `https.ca.pem`,
        else the system's trust).
        """
        return trust(self.kafka, location="https.ca.location", pem="https.ca.pem")

    # What a person asks for

    def origin(self, name: str) -> str:
        """Return where a setting or "kafka.<property>" got its value: a flag, a variable, a file, or
        "default".

        >>> Settings(web_port=7000).origin("web_port"), Settings().origin("web_port")
        ('code', 'default')
        """
        if name in self.origins:
            return self.origins[name]
        if name.startswith(KAFKA):
            default = DEFAULT_BOOTSTRAP_SERVERS if name == "kafka.bootstrap.servers" else None
            return "default" if self.kafka.get(name.removeprefix(KAFKA)) == default else "code"
        if name.startswith(SPARK):
            return "code"
        return "default" if getattr(self, name) == getattr(_DEFAULTS, name) else "code"

    def describe(self) -> list[SettingRow]:
        """Return every setting and every Kafka property that is set, secrets masked, in the order of
        declaration.
        """
        rows = []
        for declared in fields(self):
            if declared.name in ("kafka", "spark_conf", "origins"):
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
        rows += [
            SettingRow(
                name=name,
                value=MASK if is_spark_secret(name) else text,
                origin=self.origin(name),
                doc="property of Spark",
            )
            for name, text in self.spark_conf.items()
        ]
        return rows


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


_DEFAULTS = Settings()
_DECLARED = {
    declared.name: declared
    for declared in fields(Settings)
    if declared.name not in ("kafka", "spark_conf", "origins")
}


def load_settings(*, flags: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> Settings:
    """Return the settings these inputs amount to; nothing else is looked at.

    Names in *flags* are settings ("web_port") or Kafka properties ("kafka.security.protocol"); None means the
    flag was not given.

    >>> settings = load_settings(flags={"app": "shop"}, env={"HOLDFAST_APP": "other", "HOLDFAST_WEB_PORT": "7000"}, file=None)
    >>> settings.app, settings.web_port, settings.origin("web_port")
    ('shop', 7000, 'environment HOLDFAST_WEB_PORT')
    """  # noqa: E501
    problems: list[str] = []
    layer = read_layers(_DECLARED, problems, flags=flags, env=env, file=file)
    types = get_type_hints(Settings)
    values, origins = {}, {name: given.origin for name, given in layer.items()}
    for name, given in layer.items():
        if name.startswith((KAFKA, SPARK)):
            continue
        with noted(problems):
            declared = _DECLARED[name]
            values[name] = convert(name, given, types[name], secret=declared.metadata["secret"])
            problem = range_problem(declared, values[name], f"{name} ({given.origin})")
            problems += [problem] if problem else []
    refuse(problems)
    kafka = {
        name.removeprefix(KAFKA): str(given.value) for name, given in layer.items() if name.startswith(KAFKA)
    }
    spark = {name: str(given.value) for name, given in layer.items() if name.startswith(SPARK)}
    return Settings(**values, kafka=kafka, spark_conf=spark, origins=origins)


def settings_from_environment(**flags: object) -> Settings:
    """Return the settings of this process: *flags*, its environment, and the file that HOLDFAST_CONFIG or the
    current folder offers.
    """
    return load_settings(flags=flags, env=os.environ, file=find_file(None, os.environ, Path.cwd()))
