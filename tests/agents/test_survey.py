"""A worker's errors at its start, on a cluster that does not answer."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.agents import cluster
from holdfast.config import Settings
from holdfast.errors import BrokerError


def identity(monkeypatch: pytest.MonkeyPatch, answer: Future[Any]) -> cluster._Identity:
    """Return a client that asks a broker that gives *answer* for its topics' ids."""
    admin = SimpleNamespace(
        list_topics=lambda timeout: SimpleNamespace(cluster_id="c", topics={}),
        describe_topics=lambda topics, request_timeout: {"totals": answer},
    )
    monkeypatch.setattr(cluster, "make_admin", lambda *config, **options: admin)
    monkeypatch.setattr(cluster, "SLACK_S", -29.99)  # of 30 s
    return cluster._Identity(Settings(kafka={"bootstrap.servers": "kafka:9092"}))


def test_an_answer_that_does_not_come_in_time_is_an_operating_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BrokerError, match=r"kafka:9092 did not describe the changelogs: no answer within 30 s"
    ):
        identity(monkeypatch, Future()).ids(["totals"])


def test_a_refusal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Future[Any] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(BrokerError, match=r"did not describe the changelogs: .*authorization"):
        identity(monkeypatch, refused).ids(["totals"])
