"""The suites of clients in Go pass on the embedded broker, except for features that it does not offer
(docs/embedded.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.clients.go_suites import FRANZ_GO, KAFKA_GO, Outcome, built, outcome, ran

NOT_OFFERED = {
    "TestShareGroupETL": "share groups",
    "TestShareGroupAckOnClose": "share groups",
    "TestShareGroupOffsetsAdmin": "share groups",
    "TestShareGroup": "share groups",
    "TestConsumeRegexShareSkipsInternal": "share groups",
    "TestSCRAMAuth": "a second listener, with SASL",
    "TestSCRAMAuthBadCredentials": "a second listener, with SASL",
    "TestOAuthAuth": "a second listener, with OAuth",
    "TestIssueProduceBrokerTooOldFailsRecords": "a broker that is too old",
}
"""Tests that franz-go's suite skips, and the setup that each of them would need."""
PARTS_OF_KAFKA_GO = "TestConn$|TestReader|TestConsumerGroup|TestWriter|TestGeneration|TestClient"
LEFT_OUT = (
    ".*PartitionReassignments",  # not offered
    ".*Quotas",
    ".*S[Aa][Ss][Ll]",  # another listener
    "TestWriter/.*SASL",
    ".*NoTopic",  # the address localhost:9092
    "TestClientFindCoordinator",  # likewise
    "TestReaderReadCompactedMessage",  # segments of 200 bytes, which Kafka 4.3 refuses too
    "TestClientTxnOffsetCommit",  # it names itself a static member, and is none: as on Kafka 4.3
    "TestConn/.*(controller|advertises|list_brokers)",
    "TestConn/nettest",  # which kafka-go leaves out for newer brokers itself
    "TestReaderConsumerGroup/.*(commits_on_close|offset_committed|periodic)",  # as on Kafka 4.3
    "TestReaderConsumerGroup/consumer_group_rebalance$",
)


def test_an_outcome_names_the_tests_that_passed_failed_and_were_left_out() -> None:
    said = "=== RUN TestA\n--- PASS: TestA (0.1s)\n    --- FAIL: TestB/of_two (0s)\n--- SKIP: TestC (0s)\n"
    assert outcome(said) == Outcome(frozenset({"TestA"}), frozenset({"TestB/of_two"}), frozenset({"TestC"}))


@pytest.mark.variant
@pytest.mark.process
def test_franz_gos_suite_passes(tmp_path: Path) -> None:
    """Groups of all strategies, classic and KIP-848's, static and not, and transactions with them."""
    with EmbeddedKafka(auto_create_topics=True) as kafka:
        program = built(FRANZ_GO, tmp_path, kafka.bootstrap)
        told = {"KGO_SEEDS": kafka.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "20000"}
        found, said = ran(program, tmp_path / "module/pkg/kgo", "^Test", KGO_LOG_LEVEL="none", **told)
    assert found.failed == set(), said
    assert found.skipped <= NOT_OFFERED.keys(), said
    assert {"TestGroupETL", "TestTxnEtl", "Test848RegexBrokerResolves", "TestConsumeRegex"} <= found.passed


@pytest.mark.variant
@pytest.mark.process
def test_kafka_gos_suite_passes(tmp_path: Path) -> None:
    """Its tests of rebalances expect Kafka's own wait for the first members of a group, of three seconds."""
    with EmbeddedKafka(
        auto_create_topics=True,
        num_partitions=1,
        message_max_bytes=200_000_000,
        group_initial_delay_ms=3_000,
        acls=(),
        allow_if_no_acl=True,
    ) as kafka:
        program = built(KAFKA_GO, tmp_path, kafka.bootstrap)
        found, said = ran(program, tmp_path, PARTS_OF_KAFKA_GO, "|".join(LEFT_OUT), KAFKA_VERSION="2.4.1")
    assert found.failed == set(), said
    assert "TestReaderConsumerGroup/consumer_group_rebalance_across_topics" in found.passed
