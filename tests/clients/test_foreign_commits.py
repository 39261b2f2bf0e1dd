"""Offsets that other programs committed, with whatever text, are read as they are."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.clients.claims.claiming.offsets import OffsetFetcher
from holdfast.clients.ranges.broker import RangeBroker
from holdfast.clients.ranges.messages import RangeMessages
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.clients.topics.identities import metadata_of
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.kafka.committed_text import committed_text
from holdfast.pipeline.bronze.landed_notes import LandedNotes, group_of
from tests.embedded.clients.raw_client import RawClient
from tests.support.patience import DEADLINE_S

FOREIGN = {
    "none": None,
    "empty": "",
    "a word": "by another program",
    "4 KB": "x" * 4_096,
    "4 KB of two bytes each": "é" * 2_048,
    "an emoji": "\U0001f600",
    "NUL": "\0",
    "NUL within": "a\0b",
    "like ours": "holdfast topic ",
}
MARK = 2_047_279_616


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=1) as running:
        running.create_topic("orders", partitions=1)
        running.create_topic("dead", partitions=1)
        yield running


@pytest.fixture
def settings(kafka: EmbeddedKafka) -> Settings:
    return Settings(kafka={name: str(value) for name, value in kafka.client_config().items()})


def commit(kafka: EmbeddedKafka, group: str, offset: int, text: str | None) -> None:
    """Commit as another program does, whatever its text."""
    with RawClient(kafka.bootstrap) as client:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": text}
        told = client.ask(
            "OffsetCommit",
            2,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time_ms=-1,
            topics=[{"name": "orders", "partitions": [partition]}],
        )
        assert told["topics"][0]["partitions"][0]["error_code"] == 0


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_reset_reads_what_others_committed(
    kafka: EmbeddedKafka, settings: Settings, text: str | None
) -> None:
    commit(kafka, "book", 5, text)
    book = CommittedOffsets(settings, "book", timeout_s=DEADLINE_S)
    assert book.committed([("orders", 0)], {"orders": MARK}) == {("orders", 0): 5}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_claims_and_ranges_begin_at_what_others_committed(
    kafka: EmbeddedKafka, settings: Settings, text: str | None
) -> None:
    commit(kafka, "workers", 0, text)
    fetcher = OffsetFetcher(settings, "workers", timeout_s=DEADLINE_S)
    try:
        fetcher.ask("orders", 0, committed=True)
        until_s = time.monotonic() + DEADLINE_S
        while not (found := fetcher.answers()):
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        fetcher.close()
    assert found[0].committed == 0
    broker = RangeBroker(settings, timeout_s=DEADLINE_S, clock=system_clock)
    messages = RangeMessages(broker, topic="orders", group="workers", dead_letters="dead")
    messages._consumer = Consumer({**kafka.client_config(), "group.id": "workers"})
    try:
        assert messages.begin(0, MARK) == 0
    finally:
        messages._consumer.close()


def test_our_own_mark_is_known_whatever_follows_it(kafka: EmbeddedKafka, settings: Settings) -> None:
    book = CommittedOffsets(settings, "own", timeout_s=DEADLINE_S)
    for _ in range(50):
        book.commit({("orders", 0): 7}, {"orders": MARK})
        assert book.committed([("orders", 0)], {"orders": MARK}) == {("orders", 0): 7}
        assert book.committed([("orders", 0)], {"orders": MARK + 1}) == {}
    commit(kafka, "own", 7, metadata_of(MARK) + "5")
    assert book.committed([("orders", 0)], {"orders": MARK}) == {("orders", 0): 7}


def test_bytes_after_a_text_that_are_no_text_are_left_out() -> None:
    class Torn:
        @property
        def metadata(self) -> str:
            return b"holdfast topic 7;\xff\xfe".decode()

    assert committed_text(Torn()).startswith("holdfast topic 7;")  # type: ignore[arg-type]
    assert committed_text(TopicPartition("orders", 0)) == ""


def test_landings_know_their_own_note_whatever_follows_it(kafka: EmbeddedKafka, settings: Settings) -> None:
    topic_id = "V9kQ3v5nR0y1fZ7t2m4w6A"
    for more in ("", "\U0001f600", "7"):
        commit(kafka, group_of("/lake/orders", "t"), 9, topic_id + more)
        found = LandedNotes(settings).read("/lake/orders", "t", "orders")
        assert found[0] == (9, topic_id)
