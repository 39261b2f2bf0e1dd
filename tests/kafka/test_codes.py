"""An error code has one meaning, for librdkafka's errors and for the answers to our own requests."""

from __future__ import annotations

import pytest
from aiokafka.errors import UnknownError, for_code
from confluent_kafka import KafkaError

from holdfast.kafka import codes
from holdfast.kafka.codes import NO_LEADER, fences, refuses_record, retriable

EVERY = range(-250, 200)


def test_what_may_be_asked_again_is_what_another_client_asks_again() -> None:
    """aiokafka takes its answers from the table of Kafka's protocol."""
    theirs = {code: for_code(code) for code in range(1, 200)}
    others = {
        code
        for code, kind in theirs.items()
        if kind is not UnknownError and kind.retriable != retriable(code)
    }
    assert others == {
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # the caller knows whether it waits for a topic
        KafkaError.INVALID_MSG,  # Kafka's protocol says so, aiokafka does not
        KafkaError.REPLICA_NOT_AVAILABLE,  # likewise
        KafkaError.NETWORK_EXCEPTION,  # aiokafka gives this number to another error
        KafkaError.CONCURRENT_TRANSACTIONS,  # aiokafka asks again by a rule of its own
    }


def test_a_fenced_request_is_never_repeated_and_blames_no_record() -> None:
    assert not [code for code in EVERY if fences(code) and (retriable(code) or refuses_record(code))]
    assert not [code for code in codes.ABORTABLE if fences(code) or retriable(code) or refuses_record(code)]


def test_a_damaged_batch_alone_is_both_sent_again_and_to_blame() -> None:
    assert [code for code in EVERY if retriable(code) and refuses_record(code)] == [KafkaError.INVALID_MSG]


@pytest.mark.parametrize("code", [None, 0, -1, 5_000])
def test_an_unknown_error_means_nothing(code: int | None) -> None:
    assert [retriable(code), fences(code), refuses_record(code)] == [False, False, False]


def test_a_record_is_refused_by_its_topic_and_not_by_a_broken_request() -> None:
    assert [code for code in EVERY if refuses_record(code) and code > 0] == [
        2,
        3,
        4,
        10,
        17,
        18,
        29,
        32,
        44,
        87,
    ]
    assert not refuses_record(KafkaError.INVALID_REQUEST)
    assert not refuses_record(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_what_stays_as_it_is_waits_for_no_leader() -> None:
    assert {code for code in NO_LEADER if code > 0} == {3, 5, 6, 9, 56, 74, 75, 78, 100, 103}
    for code in (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.INVALID_MSG,  # it lies so on the broker's disk
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,  # an old Fetch cannot carry it
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ):
        assert code not in NO_LEADER
