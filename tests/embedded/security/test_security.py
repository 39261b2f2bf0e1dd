"""Users, certificates and rules of the embedded broker, with clients as users have them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from holdfast.core.kafka.grants import Operation as Granted
from holdfast.core.kafka.grants import kafka_acls, topic_grants
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.security import acl_rules as rules
from holdfast.embedded.security.acl_lines import rules_of_lines
from holdfast.embedded.security.acl_rules import AclPermission, AclResource, AclRule
from holdfast.embedded.security.authorizer import LIMIT_REMEMBERED, EmbeddedAuthorizer
from holdfast.embedded.security.tls import EmbeddedTls
from holdfast.embedded.serving.sasl_gate import LIMIT_FRAME_BYTES
from holdfast.errors import DevBrokerError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.guarded import trust
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS
from tests.support.secured import acl_filter

USERS = {"root": "root-secret", "alice": "alice-secret"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(users=USERS, tls=True, acls=(), super_users=["User:root"]) as kafka:
        yield kafka


def first_refusal(config: dict[str, Any]) -> KafkaError:
    """Return the first error that a client with these settings reports."""
    errors: list[KafkaError] = []
    told: dict[str, Any] = {**config, "log_level": 0, "error_cb": errors.append}
    client = AdminClient(told)
    until_s = time.monotonic() + DEADLINE_S
    while not errors:
        assert time.monotonic() < until_s
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.2)
        client.poll(0.05)
    return errors[0]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_logs_in_by_each_mechanism(guarded: EmbeddedKafka, mechanism: str) -> None:
    told = guarded.client_config(**{"sasl.mechanism": mechanism})
    assert AdminClient(told).list_topics(timeout=DEADLINE_S).brokers
    wrong = {**told, "sasl.password": "wrong"}
    assert first_refusal(wrong).code() == KafkaError._AUTHENTICATION


def test_a_client_of_another_kind_is_refused(guarded: EmbeddedKafka) -> None:
    told = guarded.client_config()
    bare = {"bootstrap.servers": told["bootstrap.servers"]}
    assert first_refusal(bare).code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    stranger = {**told, "ssl.ca.location": str(TLS / "ca.pem")}
    assert "certificate verify failed" in first_refusal(stranger).str()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_aiokafka_logs_in_by_each_mechanism(guarded: EmbeddedKafka, mechanism: str) -> None:
    topic = guarded.create_topic(f"aio-{mechanism}")
    told = guarded.client_config()
    login = {
        "bootstrap_servers": guarded.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_context": create_ssl_context(cafile=told["ssl.ca.location"]),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "root",
    }

    async def run() -> bytes:
        async with AIOKafkaProducer(**login, sasl_plain_password="root-secret") as producer:
            await producer.send_and_wait(topic, b"one")
        wrong = AIOKafkaProducer(**login, sasl_plain_password="wrong")
        with pytest.raises(AioKafkaError):
            await wrong.start()
        await wrong.stop()
        consumer = AIOKafkaConsumer(
            topic, **login, sasl_plain_password="root-secret", auto_offset_reset="earliest"
        )
        async with consumer:
            value: bytes = (await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value
            return value

    assert asyncio.run(run()) == b"one"


# -- rules


def binding(name: str, operation: Any, kind: Any = None, **more: Any) -> AclBinding:
    told = {"pattern": ResourcePatternType.LITERAL, "permission": AclPermissionType.ALLOW, **more}
    kind = ResourceType.TOPIC if kind is None else kind
    return AclBinding(kind, name, told["pattern"], "User:alice", "*", operation, told["permission"])


def produced(config: dict[str, Any], topic: str) -> KafkaError | None:
    """Return the error of one record, None where it was taken."""
    errors: list[KafkaError | None] = []
    producer = Producer({**config, "message.timeout.ms": 5_000})
    producer.produce(topic, b"one", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors[0]


def test_a_user_has_the_rights_that_rules_allow(guarded: EmbeddedKafka) -> None:
    admin = AdminClient(guarded.client_config())
    alice = guarded.client_config_of("alice", **{"allow.auto.create.topics": False})
    topic = guarded.create_topic("ruled")
    refused = produced(alice, topic)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    writes = binding(topic, AclOperation.WRITE)
    for made in admin.create_acls([writes]).values():
        made.result(DEADLINE_S)
    assert produced(alice, topic) is None
    about = acl_filter(ResourceType.TOPIC, topic, ResourcePatternType.MATCH)
    found = admin.describe_acls(about).result(DEADLINE_S)
    assert found == [writes]
    denied = binding(
        "ru", AclOperation.ALL, pattern=ResourcePatternType.PREFIXED, permission=AclPermissionType.DENY
    )
    for made in admin.create_acls([denied]).values():
        made.result(DEADLINE_S)
    refused = produced(alice, topic)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    whose = acl_filter(principal="User:alice")
    assert set(admin.delete_acls([whose])[whose].result(DEADLINE_S)) == {writes, denied}
    assert produced(alice, topic) is not None


def test_groups_and_transactional_ids_are_guarded(guarded: EmbeddedKafka) -> None:
    topic = guarded.create_topic("shared")
    authorizer = guarded.cluster.authorizer
    assert authorizer is not None
    authorizer.add(AclRule(AclResource.TOPIC, topic, "User:alice", rules.AclOperation.ALL))
    told = guarded.client_config_of("alice")
    consumer = Consumer({**told, "group.id": "hers"})
    consumer.subscribe([topic])
    until_s = time.monotonic() + DEADLINE_S
    while (message := consumer.poll(0.1)) is None:
        assert time.monotonic() < until_s
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()
    producer = Producer({**told, "transactional.id": "hers"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_user_that_was_made_later_logs_in(guarded: EmbeddedKafka) -> None:
    admin = AdminClient(guarded.client_config())
    made = UserScramCredentialUpsertion(
        "carol", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"carol-secret"
    )
    for done in admin.alter_user_scram_credentials([made]).values():
        done.result(DEADLINE_S)
    described: Any = admin.describe_user_scram_credentials(["carol"])
    told = described["carol"].result(DEADLINE_S)
    assert [each.iterations for each in told.scram_credential_infos] == [4096]
    carol = guarded.client_config(**{"sasl.username": "carol", "sasl.password": "carol-secret"})
    assert AdminClient(carol).list_topics(timeout=DEADLINE_S).brokers
    by_another = {**carol, "sasl.mechanism": "SCRAM-SHA-256"}
    assert first_refusal(by_another).code() == KafkaError._AUTHENTICATION


# -- certificates


def test_a_clients_certificate_is_its_principal() -> None:
    tls = EmbeddedTls(
        certificate=TLS / "server.pem",
        key=TLS / "server-key.pem",
        authority=TLS / "ca.pem",
        clients=TLS / "ca.pem",
        clients_may_be_unknown=True,
    )
    may = AclRule(AclResource.TOPIC, "*", "User:CN=holdfast-client", rules.AclOperation.ALL)
    with EmbeddedKafka(tls=tls, acls=[may]) as kafka:
        topic = kafka.create_topic("certified")
        told = kafka.client_config()
        assert told["security.protocol"] == "SSL"
        unknown = produced(told, topic)
        assert unknown is not None
        assert unknown.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        pair = {
            "ssl.certificate.location": str(TLS / "client.pem"),
            "ssl.key.location": str(TLS / "client-key.pem"),
        }
        assert produced({**told, **pair}, topic) is None


def test_a_client_without_a_certificate_is_refused_where_it_must_have_one() -> None:
    tls = EmbeddedTls(
        certificate=TLS / "server.pem",
        key=TLS / "server-key.pem",
        authority=TLS / "ca.pem",
        clients=TLS / "ca.pem",
    )
    with (
        EmbeddedKafka(tls=tls) as kafka,
        pytest.raises((ConnectionError, ssl.SSLError)),
        RawClient(kafka.bootstrap, tls=trust(TLS / "ca.pem")) as client,
    ):
        client.ask("ApiVersions", 0)


def test_a_certificate_is_made_once_for_a_folder(tmp_path: Path) -> None:
    one = EmbeddedTls.made_in(tmp_path)
    before = one.key.read_bytes()
    assert one.key.stat().st_mode & 0o777 == 0o600
    assert EmbeddedTls.made_in(tmp_path).key.read_bytes() == before


# -- wrong settings


@pytest.mark.parametrize(
    ("told", "trouble"),
    [
        ({"users": {"alice": ""}}, "needs a name and a password"),
        ({"users": {"": "x"}}, "needs a name and a password"),
        ({"users": USERS, "mechanisms": ["GSSAPI"]}, "mechanisms GSSAPI: .*PLAIN"),
        ({"users": USERS, "mechanisms": []}, "mechanisms none"),
        ({"acls": (), "super_users": ["root"]}, "root is no principal: write User:root"),
        ({"super_users": ["User:root"]}, "super_users without acls"),
    ],
)
def test_settings_that_cannot_be(told: dict[str, Any], trouble: str) -> None:
    with pytest.raises(DevBrokerError, match=trouble):
        EmbeddedKafka(**told)


def test_no_certificate_is_left_of_a_broker_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run(port: int) -> None:
        async with EmbeddedKafka(tls=True, port=port):
            pass

    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(DevBrokerError, match="cannot listen"):
            asyncio.run(run(taken.getsockname()[1]))
        assert not list(tmp_path.iterdir())
    with pytest.raises(DevBrokerError, match="needs a name and a password"):
        EmbeddedKafka(tls=True, users={"alice": ""})
    assert not list(tmp_path.iterdir())


def test_an_invalid_certificate_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "nonsense.pem").write_text("nonsense")
    wrong = EmbeddedTls(
        certificate=tmp_path / "nonsense.pem", key=tmp_path / "nowhere.pem", authority=tmp_path
    )
    with pytest.raises(DevBrokerError, match=r"nonsense\.pem.* cannot be used"), EmbeddedKafka(tls=wrong):
        pass


def test_a_user_that_is_not_known_has_no_settings(guarded: EmbeddedKafka) -> None:
    with pytest.raises(DevBrokerError, match="knows no user mallory; it knows root, alice"):
        guarded.client_config_of("mallory")


# -- who has not shown who it is


def test_no_large_request_is_taken_from_an_unauthenticated_client(guarded: EmbeddedKafka) -> None:
    authority = Path(guarded.client_config()["ssl.ca.location"])
    with RawClient(guarded.bootstrap, tls=trust(authority)) as client:
        client._socket.sendall((LIMIT_FRAME_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            client.receive_frame()


def test_each_connection_authenticates_by_itself(guarded: EmbeddedKafka) -> None:
    authority = Path(guarded.client_config()["ssl.ca.location"])
    with (
        RawClient(guarded.bootstrap, tls=trust(authority)) as known,
        RawClient(guarded.bootstrap, tls=trust(authority)) as unknown,
    ):
        assert known.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == 0
        assert known.ask("SaslAuthenticate", 2, auth_bytes=b"\0root\0root-secret")["error_code"] == 0
        assert known.ask("DescribeCluster", 2)["error_code"] == 0
        with pytest.raises(ConnectionError):
            unknown.ask("DescribeCluster", 2)


# -- rules as lines, and without a broker


def test_lines_of_kafka_acls_are_rules() -> None:
    grants = topic_grants("or ders", "", Granted.READ, Granted.DESCRIBE_CONFIGS)
    found = rules_of_lines(["# of the shop", "", *kafka_acls(grants, "User:shop")])
    assert found == [
        AclRule(AclResource.TOPIC, "or ders", "User:shop", rules.AclOperation.READ),
        AclRule(AclResource.TOPIC, "or ders", "User:shop", rules.AclOperation.DESCRIBE_CONFIGS),
    ]
    line = "--deny-principal User:* --deny-host 10.0.0.1 --group g --resource-pattern-type prefixed"
    assert rules_of_lines([line]) == [
        AclRule(
            AclResource.GROUP,
            "g",
            "User:*",
            rules.AclOperation.ALL,
            rules.AclPattern.PREFIXED,
            AclPermission.DENY,
            "10.0.0.1",
        )
    ]


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("--add --topic t", "line 2 .* it names no principal"),
        ("--add --allow-principal User:a", "it names no resource"),
        ("--add --allow-principal --topic t", "--allow-principal without a value"),
        ("--remove --allow-principal User:a --topic t", "--remove is not known here"),
        ("--allow-principal User:a --topic t --operation Eat", "Eat is no operation; there are all, read"),
        ("--allow-principal User:a --topic 't", "No closing quotation"),
    ],
)
def test_a_line_that_is_no_rule_is_reported_with_its_number(line: str, trouble: str) -> None:
    with pytest.raises(DevBrokerError, match=trouble):
        rules_of_lines(["# rules", line])


def test_decisions_are_forgotten_with_the_rules_they_follow_from() -> None:
    authorizer = EmbeddedAuthorizer()
    asked = ("User:alice", "127.0.0.1", rules.AclOperation.READ, AclResource.TOPIC, "orders")
    assert not authorizer.may(*asked)
    rule = AclRule(AclResource.TOPIC, "orders", "User:alice", rules.AclOperation.READ)
    authorizer.add(rule)
    assert authorizer.may(*asked)
    authorizer.remove(rule)
    assert not authorizer.may(*asked)
    for number in range(LIMIT_REMEMBERED + 1):
        authorizer.may(*asked[:4], str(number))
    assert len(authorizer._decided) <= LIMIT_REMEMBERED


ANY_RULE = rules.AclFilter(
    AclResource.ANY, None, rules.AclPattern.ANY, None, None, rules.AclOperation.ANY, AclPermission.ANY
)


def _rules_at_random(chance: Random, count: int) -> list[AclRule]:
    return [
        AclRule(
            chance.choice((AclResource.TOPIC, AclResource.GROUP)),
            chance.choice(("*", "a", "ab", "abc", "b")),
            chance.choice(("User:*", "User:a", "User:b")),
            chance.choice((rules.AclOperation.READ, rules.AclOperation.ALL)),
            chance.choice((rules.AclPattern.LITERAL, rules.AclPattern.PREFIXED)),
            chance.choice((AclPermission.DENY, AclPermission.ALLOW)),
            chance.choice(("*", "127.0.0.1")),
        )
        for _ in range(count)
    ]


def _filters_at_random(chance: Random, count: int) -> list[rules.AclFilter]:
    return [
        rules.AclFilter(
            chance.choice((AclResource.ANY, AclResource.TOPIC)),
            chance.choice((None, "a", "abcd", "*")),
            chance.choice([each for each in rules.AclPattern if each]),
            chance.choice((None, "User:a")),
            chance.choice((None, "*")),
            chance.choice((rules.AclOperation.ANY, rules.AclOperation.READ)),
            chance.choice((AclPermission.ANY, AclPermission.DENY)),
        )
        for _ in range(count)
    ]


def test_each_filter_takes_rules_that_those_before_it_have_left() -> None:
    chance = Random(1)
    for _ in range(100):
        kept = EmbeddedAuthorizer(_rules_at_random(chance, 30))
        left = dict.fromkeys(kept.found(ANY_RULE))
        wanted = _filters_at_random(chance, 6)
        for each, found in zip(wanted, kept.taken(wanted), strict=True):
            expected = {rule for rule in left if each.finds(rule)}
            assert set(found) == expected
            assert len(found) == len(expected)
            for rule in expected:
                del left[rule]
        assert set(kept.found(ANY_RULE)) == set(left)


def test_many_filters_do_not_look_at_all_rules_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand filters held up a broker with 50,000 rules for 40 seconds."""
    looks = 0

    def counted(wanted: rules.AclFilter, rule: AclRule) -> bool:
        nonlocal looks
        looks += 1
        return found(wanted, rule)

    found = rules.AclFilter.finds
    monkeypatch.setattr(rules.AclFilter, "finds", counted)
    kept = EmbeddedAuthorizer(
        AclRule(AclResource.TOPIC, f"topic-{number}", f"User:{number % 7}", rules.AclOperation.READ)
        for number in range(2_000)
    )
    several = [ANY_RULE._replace(principal="User:1", host=f"10.0.0.{each}") for each in range(100)]
    several += [ANY_RULE._replace(principal="User:1", permission=AclPermission.DENY)] * 100
    assert [each for each in kept.taken(several) if each] == []
    assert looks <= 200


def test_clients_make_no_more_rules_than_may_be() -> None:
    first = [
        AclRule(AclResource.TOPIC, str(each), "User:a", rules.AclOperation.READ) for each in range(9_999)
    ]
    creations = [
        {
            "resource_type": AclResource.TOPIC,
            "resource_name": name,
            "resource_pattern_type": rules.AclPattern.LITERAL,
            "principal": "User:a",
            "host": "*",
            "operation": rules.AclOperation.READ,
            "permission_type": AclPermission.ALLOW,
        }
        for name in ("0", "one", "two", "one")
    ]
    with EmbeddedKafka(acls=first, allow_if_no_acl=True) as kafka, RawClient(kafka.bootstrap) as client:
        told = client.ask("CreateAcls", 3, creations=creations)["results"]
    assert [each["error_code"] for each in told] == [0, 0, 44, 0]
