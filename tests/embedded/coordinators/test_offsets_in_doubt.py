"""Offsets of transactions without an outcome: those valid before a start are valid after it."""

from __future__ import annotations

from pathlib import Path

from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.talk import Talk
from tests.embedded.transcripts.transaction_scenarios import BareCommits, BareProducer


def offset(kafka: EmbeddedKafka, commits: BareCommits) -> int:
    asked = [{"group_id": commits.group, "topics": [{"name": commits.topic, "partition_indexes": [0]}]}]
    with RawClient(kafka.bootstrap) as client:
        answer = client.ask("OffsetFetch", 9, groups=asked, require_stable=True)
    found: int = answer["groups"][0]["topics"][0]["partitions"][0]["committed_offset"]
    return found


def test_the_offset_counts_that_was_written_last_after_a_start_too(tmp_path: Path) -> None:
    with EmbeddedKafka(folder=tmp_path) as kafka:
        talk = Talk(kafka.bootstrap)
        commits, other = BareCommits(talk, "orders"), BareCommits(talk, "payments")
        one, two = BareProducer(talk, "one"), BareProducer(talk, "two")
        commits.by(one, 5)
        commits.plain(9)
        other.by(one, 20)
        other.by(two, 30)
        two.end(True)
        one.end(True)
        talk.close()
        assert (offset(kafka, commits), offset(kafka, other)) == (9, 30)
    with EmbeddedKafka(folder=tmp_path) as kafka:
        assert (offset(kafka, commits), offset(kafka, other)) == (9, 30)


def test_a_group_that_was_deleted_does_not_come_back_with_the_outcome_of_a_transaction(
    tmp_path: Path,
) -> None:
    with EmbeddedKafka(folder=tmp_path) as kafka:
        talk = Talk(kafka.bootstrap)
        commits, writer = BareCommits(talk, "orders"), BareProducer(talk, "writer")
        commits.by(writer, 5)
        talk.ask("DeleteGroups", 2, groups_names=[commits.group])
        writer.end(True)
        talk.close()
        assert kafka.cluster.groups.get(commits.group) is None
    with EmbeddedKafka(folder=tmp_path) as kafka:
        assert offset(kafka, commits) == -1
        assert kafka.cluster.groups.get(commits.group) is None
