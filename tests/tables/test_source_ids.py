"""A table knows from which logs it was folded: a topic that was made again under its name is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.engine.state.codec import row_key
from holdfast.core.engine.state.source_ids import (
    SOURCE_IDS,
    SourceIds,
    decode_source_ids,
    encode_source_ids,
)
from holdfast.errors import ChangelogError, TopicError
from holdfast.tables.partition import Partition
from tests.tables.test_lost_heads import opened
from tests.tables.test_row_types import One, counting, fold


def activated(folder: Path, topic_id: str, cluster_id: str = "cluster") -> Partition:
    part = opened(folder, counting(One))
    part.owner.sources = SourceIds(1, cluster_id, {"in": topic_id})
    try:
        part.activate()
    except TopicError:
        part.close()
        raise
    return part


def test_the_ids_are_noted_once_and_another_log_is_refused(tmp_path: Path) -> None:
    part = activated(tmp_path, "first")
    assert SOURCE_IDS in fold(part, 0, b"a")
    assert fold(part, 1, b"a") == [row_key("a")]
    part.close()
    part = activated(tmp_path, "first")
    assert fold(part, 2, b"a") == [row_key("a")], "nothing has changed"
    part.close()
    with pytest.raises(TopicError, match=r"its id was first, is second.*up to offset 2: write version=2"):
        activated(tmp_path, "second")
    part = activated(tmp_path, "first")
    assert fold(part, 3, b"a") == [row_key("a")], "the refusal has changed nothing"
    part.close()


def test_a_log_of_which_nothing_is_folded_may_be_another(tmp_path: Path) -> None:
    activated(tmp_path, "first").close()
    part = activated(tmp_path, "second")
    assert SOURCE_IDS in fold(part, 0, b"a")
    part.close()


def test_a_copy_of_the_cluster_continues_and_notes_its_own_ids(tmp_path: Path) -> None:
    part = activated(tmp_path, "first")
    fold(part, 0, b"a")
    part.close()
    part = activated(tmp_path, "other", cluster_id="copy")
    assert SOURCE_IDS in fold(part, 1, b"a")
    part.close()
    with pytest.raises(TopicError, match="its id was other, is first"):
        activated(tmp_path, "first", cluster_id="copy")


def test_a_table_of_an_earlier_holdfast_takes_its_sources_for_those_that_it_folded(tmp_path: Path) -> None:
    part = opened(tmp_path, counting(One))
    part.activate()
    assert SOURCE_IDS not in fold(part, 0, b"a")
    part.close()
    part = activated(tmp_path, "first")
    assert SOURCE_IDS in fold(part, 1, b"a")
    part.close()


@pytest.mark.parametrize(
    ("value", "why"), [(b"\xc1", "malformed"), (encode_source_ids(SourceIds(9, "c", {})), "has format 9")]
)
def test_an_unreadable_note_is_an_error(value: bytes, why: str) -> None:
    with pytest.raises(ChangelogError, match=why):
        decode_source_ids(value)


def test_its_offsets_are_of_the_ids_that_its_owner_asked_for_or_noted(tmp_path: Path) -> None:
    part = activated(tmp_path, "first", cluster_id="c")
    assert part.topic_ids == {"in": "first"}, "before anything is folded"
    fold(part, 0, b"a")
    part.stand_by()
    assert part.topic_ids == {"in": "first"}, "by the note"
    part.close()
    part = activated(tmp_path, "other", cluster_id="copy")
    assert part.topic_ids == {}, "ids of another cluster prove nothing"
    part.close()
    part = opened(tmp_path, counting(One))
    assert part.topic_ids == {"in": "first"}
    part.close()
