"""The files a node is started with, and the settings its clients need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from holdfast.dev.broker.state import ClusterState, Credentials, NodeState

HOST = "127.0.0.1"
MECHANISM = "SCRAM-SHA-512"
CA_FILE = "ca.pem"
STORE_FILE = "broker.p12"
CLIENT_FILE = "client.properties"

# For a laptop or a CI machine, and for tests that wait for these things to happen: few internal partitions,
# no rebalance delay, a log cleaner that looks every second, transactions that time out on time, failover in
# seconds. Everything else is Kafka's default.
_SMALL = {
    "num.partitions": "4",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "6000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "2097152",
    # A controller with nothing to say writes that down twice a second by default, for every node to read.
    "metadata.max.idle.interval.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A heartbeat costs a broker that has just started some 30 ms of a processor; four fit into its session.
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "4000",
    # A topic with a misspelt name is an error here, as on most clusters in production.
    "auto.create.topics.enable": "false",
}


def server_properties(state: ClusterState, node: NodeState, folder: Path) -> dict[str, str]:
    """Return the server properties of *node*; those given by the user win over ours."""
    copies = min(3, len(state.nodes))
    in_sync = max(1, copies - 1)
    voters = ",".join(f"{each.node_id}@{HOST}:{each.controller_port}" for each in state.nodes)
    client = "CLIENT"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{client}://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"{client}://{HOST}:{node.port}",
        "inter.broker.listener.name": client,
        "log.dirs": str(folder / f"node-{node.node_id}" / "data"),
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        **_SMALL,
        **_security(state, folder),
        **state.properties,
    }


def _security(state: ClusterState, folder: Path) -> dict[str, str]:
    if state.credentials is None:
        return {"listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT"}
    assert state.store_password is not None
    return {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:SSL",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config": _jaas(state.credentials),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(folder / STORE_FILE),
        "ssl.keystore.password": state.store_password,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / CA_FILE),
        # SCRAM cannot guard the quorum itself (its users are stored there), so nodes show each other the
        # certificate.
        "listener.name.controller.ssl.client.auth": "required",
    }


def _jaas(credentials: Credentials) -> str:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return (
        f"{module} required username={quoted(credentials.username)} password={quoted(credentials.password)};"
    )


def client_properties(
    state: ClusterState, folder: Path, *, nodes: list[NodeState] | None = None
) -> dict[str, str]:
    """Return the properties with which a client reaches the cluster, under Kafka's property names as
    librdkafka reads them.
    """
    settings = {"bootstrap.servers": ",".join(f"{HOST}:{node.port}" for node in nodes or state.nodes)}
    if state.credentials is not None:
        settings |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": state.credentials.username,
            "sasl.password": state.credentials.password,
            "ssl.ca.location": str(folder / CA_FILE),
        }
    return settings


def render(properties: Mapping[str, str]) -> bytes:
    """Return *properties* as a Java properties file.

    >>> render({"a": "b", "log.dirs": "/x y/\\u00e9", "p": "\\\\d"}).decode()
    'a=b\\nlog.dirs=/x y/\\\\u00e9\\np=\\\\\\\\d\\n'
    """
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items()).encode(
        "ascii"
    )


def _escaped(text: str) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    units = text.encode("utf-16-be")
    characters = [chr(int.from_bytes(units[i : i + 2], "big")) for i in range(0, len(units), 2)]
    return "".join(special.get(c, c if " " <= c <= "~" else f"\\u{ord(c):04x}") for c in characters)


def log_settings(node_folder: Path) -> bytes:
    """Return a log4j2 configuration: warnings and worse into ``server.log``, 3 files of 10 MB at most.

    So that a loss of leaders explains itself, the controller's line about a node that it fences is there too.
    """
    log = str(node_folder / "server.log")
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <RollingFile name="file" fileName={_attribute(log)} filePattern={_attribute(log + ".%i")}>
      <PatternLayout pattern="%d %p %m (%c)%n"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="2"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.kafka.controller.ReplicationControlManager" level="INFO"><Filters>
      <ThresholdFilter level="WARN" onMatch="ACCEPT" onMismatch="NEUTRAL"/>
      <RegexFilter regex=".*Fencing broker .*" onMatch="ACCEPT" onMismatch="DENY"/>
    </Filters></Logger>
    <Root level="WARN"><AppenderRef ref="file"/></Root>
  </Loggers>
</Configuration>
""".encode()


def _attribute(text: str) -> str:
    # Otherwise log4j2 looks up ${…} in a folder's name.
    return quoteattr(text.replace("$", "$$"))
