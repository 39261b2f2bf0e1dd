"""A bootstrap from a lake goes on in the topic that was landed, and in no other of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.errors import LakeError
from holdfast.pipeline.bootstrap import bootstrap
from tests.pipeline.accounts import Record, accounts
from tests.pipeline.lakes import write_bronze
from tests.pipeline.topics_in_memory import TopicInMemory


def test_a_lake_of_a_topic_that_was_made_again_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bronze(tmp_path, "t", {0: [Record(0, 5, None, b"add a 1")]})
    topic = TopicInMemory()
    monkeypatch.setattr(bootstrap, "TopicLog", lambda settings, name: topic)
    bootstrap.require_same_topics(accounts("t"), Settings(), str(tmp_path))
    topic._identity = "another"
    with pytest.raises(LakeError, match="was deleted and made again"):
        bootstrap.require_same_topics(accounts("t"), Settings(), str(tmp_path))
