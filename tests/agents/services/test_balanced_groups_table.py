"""The table of balanced groups: declared like any processor, folded from bytes, and its topic made with
the right time.
"""

from __future__ import annotations

from holdfast.agents.services.rationalizer import GROUPS, processors
from holdfast.clients.topics.specs import specs_for
from holdfast.clients.topics.types import ClusterTopics
from holdfast.config import Settings
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.groups.announcements import encode
from holdfast.core.groups.membership import Group
from tests.core.engine.fold.test_folding import Store
from tests.core.groups.balancing import announce


def test_a_deployment_that_asks_for_groups_folds_what_their_members_say() -> None:
    assert GROUPS not in {each.name for each in processors(Settings())}
    table = {each.name: each for each in processors(Settings(groups=True))}[GROUPS]
    folder: Folder[object] = Folder(table, Store())

    said = [encode(announce("a")), b"not an announcement", encode(announce("b"))]
    changes = folder.fold([Batch(range(3), [1_000, 1_001, 1_002], (said, list(range(3))))])
    assert changes is not None
    assert [refused.offset for refused in changes.refused] == [1]
    folder.commit()

    group = folder.rows.get("g")
    assert isinstance(group, Group)
    assert [member.member_id for member in group.members] == ["a", "b"]


def test_the_topic_of_groups_is_made_with_the_brokers_time() -> None:
    settings = Settings(groups=True, groups_topic="talk")
    specs = {
        spec.name: spec
        for spec in specs_for(
            settings, processors(settings), ClusterTopics(brokers=(1,), topics={}), partitions=3
        )
    }
    assert specs["talk"].config["message.timestamp.type"] == "LogAppendTime"
