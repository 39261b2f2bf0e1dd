"""Sessions that end: connections log in again, as the same, or are closed (KIP-368)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from holdfast.clock import ManualClock
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import DevBrokerError
from tests.embedded.clients.raw_client import RawClient
from tests.support.limits import AwakeClock
from tests.support.patience import DEADLINE_S

USERS = {"root": "root-secret", "alice": "alice-secret"}
LIFETIME_MS = 60_000


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(users=USERS, reauth_ms=LIFETIME_MS) as running:
        running.cluster.clock = ManualClock(now_ms=1_700_000_000_000)
        pass_time(running, 5_000)
        yield running


def pass_time(kafka: EmbeddedKafka, by_ms: int) -> None:
    assert isinstance(kafka.cluster.clock, ManualClock)
    kafka.cluster.clock.advance_ms(by_ms)


def log_in(client: RawClient, user: str = "root", mechanism: str = "PLAIN") -> tuple[int, str, int]:
    """Return code, text, and for how long the session lives."""
    assert client.ask("SaslHandshake", 1, mechanism=mechanism)["error_code"] == 0
    token = f"\0{user}\0{USERS[user]}".encode()
    told = client.ask("SaslAuthenticate", 2, auth_bytes=token)
    return told["error_code"], told["error_message"], told["session_lifetime_ms"]


def test_a_session_that_is_renewed_continues(kafka: EmbeddedKafka) -> None:
    with RawClient(kafka.bootstrap) as client:
        for _ in range(3):
            assert log_in(client) == (0, "", LIFETIME_MS)
            pass_time(kafka, LIFETIME_MS - 1)
            assert client.ask("Metadata", 12, topics=[])["cluster_id"] == kafka.cluster.cluster_id


def test_a_session_that_has_ended_ends_its_connection_with_the_next_request(kafka: EmbeddedKafka) -> None:
    with RawClient(kafka.bootstrap) as client:
        log_in(client)
        pass_time(kafka, LIFETIME_MS)
        with pytest.raises(ConnectionError):
            client.ask("Metadata", 12, topics=[])


def test_a_client_whose_session_has_ended_may_still_log_in_again(kafka: EmbeddedKafka) -> None:
    with RawClient(kafka.bootstrap) as client:
        log_in(client)
        pass_time(kafka, 2 * LIFETIME_MS)
        assert log_in(client) == (0, "", LIFETIME_MS)
        client.ask("Metadata", 12, topics=[])


def test_another_user_or_mechanism_is_refused(kafka: EmbeddedKafka) -> None:
    other_user = "Cannot change principals during re-authentication from User.root: User.alice"
    with RawClient(kafka.bootstrap) as client:
        log_in(client)
        assert log_in(client, "alice") == (58, other_user, 0)
        with pytest.raises(ConnectionError):
            client.receive_frame()
    with RawClient(kafka.bootstrap) as client:
        log_in(client)
        with pytest.raises(ConnectionError):
            log_in(client, mechanism="SCRAM-SHA-256")
    with RawClient(kafka.bootstrap) as client:
        log_in(client)
        assert client.ask("SaslHandshake", 0, mechanism="SCRAM-SHA-256")["error_code"] == 0
        client.send_frame(b"n,,n=root,r=nonce")
        with pytest.raises(ConnectionError):
            client.receive_frame()


def test_it_may_be_renewed_once_a_second_and_by_no_other_request(kafka: EmbeddedKafka) -> None:
    with RawClient(kafka.bootstrap) as client:
        log_in(client)
        log_in(client)
        assert client.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == 34
        pass_time(kafka, 1_000)
        assert client.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == 0
        client.send("Metadata", 12, topics=[])
        with pytest.raises(ConnectionError):
            client.receive("Metadata", 12)


@pytest.mark.long
def test_librdkafka_logs_in_again_and_loses_nothing() -> None:
    # A session that ends during a stall of the machine, the client included, rightly ends its connection,
    # which librdkafka reports.
    with AwakeClock() as awake, EmbeddedKafka(users=USERS, reauth_ms=1_500) as kafka:
        kafka.cluster.clock = awake
        topic = kafka.create_topic("orders")
        lost: list[str] = []
        told = {"linger.ms": 0, "error_cb": lambda error: lost.append(str(error)), "log_level": 0}
        producer = Producer(kafka.client_config(**told))
        ends, until_s = dict[int, set[int]](), time.monotonic() + DEADLINE_S
        while all(len(each) < 2 for each in ends.values()):
            assert time.monotonic() < until_s, "it does not log in again"
            producer.produce(topic, b"a")
            assert producer.flush(DEADLINE_S) == 0
            for each in tuple(kafka._server._connections[1]):
                ends.setdefault(id(each), set()).update({each._session_ends_ms} - {0})
        assert len(kafka._server._connections[1]) <= 2
        assert lost == []


def test_sessions_cannot_end_without_users() -> None:
    with pytest.raises(DevBrokerError, match="for a broker with users"):
        EmbeddedKafka(reauth_ms=1_000)
