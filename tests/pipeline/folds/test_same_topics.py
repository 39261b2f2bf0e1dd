"""Tables begun from a lake, or compared with it, are of the topic that was landed, and of no other topic of
its name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import LakeError
from holdfast.pipeline.folds import same_topics
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.emits import verify_emits
from holdfast.pipeline.verify.table import verify
from tests.pipeline.accounts import Record, accounts
from tests.pipeline.lakes import write_bronze
from tests.pipeline.topics_in_memory import TopicInMemory


def test_a_lake_of_a_topic_that_was_made_again_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bronze(tmp_path, "t", {0: [Record(0, 5, None, b"add a 1")]})
    topic = TopicInMemory()
    monkeypatch.setattr(same_topics, "TopicLog", lambda settings, name: topic)
    same_topics.require_same_topics(accounts("t"), Settings(), str(tmp_path))
    topic._identity = "another"
    with pytest.raises(LakeError, match="was deleted and made again"):
        same_topics.require_same_topics(accounts("t"), Settings(), str(tmp_path))


def test_a_replay_of_a_lake_alone_says_that_its_topic_was_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_bronze(tmp_path, "t", {0: [Record(0, 5, None, b"add a 1")]})
    topic = TopicInMemory()
    monkeypatch.setattr(same_topics, "TopicLog", lambda settings, name: topic)
    options = ReplayOptions(engine="local", source="bronze", lake=str(tmp_path))

    def told() -> str:
        caplog.clear()
        assert replay(accounts("t"), Settings(), options).records == 1
        return caplog.text

    monkeypatch.setattr(same_topics, "is_reached", lambda settings: True)
    assert told() == ""
    topic._identity = "another"
    assert "was deleted and made again since (its id was id, is another)" in told()
    monkeypatch.setattr(same_topics, "is_reached", lambda settings: False)
    assert told() == "", "a lake is folded where there is no Kafka"


def test_a_table_is_not_verified_by_a_lake_of_a_topic_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the embedded Kafka: the landed topic is made again with the same records and more."""
    with EmbeddedKafka() as kafka:
        settings = Settings(app="again", kafka={"bootstrap.servers": kafka.bootstrap})
        processor = accounts("t")
        for topic in ("t", processor.changelog("again"), *map(str, processor.emits)):
            kafka.create_topic(topic)
        write_bronze(tmp_path, "t", {0: [Record(0, 5, None, b"add a 1")]})
        options = ReplayOptions(engine="local", source="bronze", lake=str(tmp_path))
        for verified in (verify, verify_emits):
            with pytest.raises(LakeError, match="was deleted and made again"):
                verified(processor, settings, options)
