"""The topics that a reset deletes, and those that it leaves."""

from __future__ import annotations

from typing import Any

from holdfast.clients.topics.resetting import reset_topics
from holdfast.clients.topics.types import TopicRole
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal, Stream
from tests.clients.topics.world import SETTINGS

WORDS = Internal("words", Text(), version=2)


def fold(rows: Any, event: Any, at_ms: int) -> None:
    rows["all"] = at_ms


RATES: Global[int] = Global("rates", Source("rates", Text()), fold=fold, row=int)
SPLIT: Processor[Any, int] = Processor(
    name="split",
    version=2,
    on={Source("lines", Text()): fold},
    row=int,
    emits=(WORDS, Stream("told", Text())),
)
COUNTS: Processor[Any, int] = Processor(
    name="counts",
    version=2,
    on={Source(WORDS, WORDS.serde): fold, Source("told", Text()): fold},
    row=int,
    reads=(RATES,),
    emits=("big",),
)
OURS = {
    "shop-split.v1-changelog": TopicRole.CHANGELOG,
    "shop-split.v2-changelog": TopicRole.CHANGELOG,
    "shop-counts.v12-changelog": TopicRole.CHANGELOG,
    "shop-counts.v2-base": TopicRole.BASE,
    "shop-counts-choices": TopicRole.CHOICES,
    "shop-counts-choices.v2": TopicRole.CHOICES,
    "words.v1": TopicRole.BETWEEN,
    "words.v2": TopicRole.BETWEEN,
    "shop-workers": TopicRole.WORKERS,
}
NOT_OURS = (
    "words",
    "words.v2.old",
    "my-words.v2",
    "shop-other.v1-changelog",
    "shop-counts.v1-changelogs",
    "eshop-counts.v1-changelog",
    "shop-eu-counts.v1-changelog",
    "shop-workers-2",
    "words.vX",
)


def test_state_positions_and_internal_topics_of_every_version_go_and_nothing_else() -> None:
    others = ("lines", "told", "big", "rates", "shop-quarantine", "shop-skips")
    found = reset_topics(SETTINGS, [SPLIT, COUNTS], [*OURS, *NOT_OURS, *others])
    assert dict(found.deleted) == OURS
    assert found.bases == ("shop-counts.v2-base",)
    assert (found.outputs, found.folded_outputs, found.global_outputs) == (("big", "told"), ("told",), ())
    assert dict(found.left) == {
        "lines": TopicRole.SOURCE,
        "rates": TopicRole.GLOBAL,
        "shop-quarantine": TopicRole.QUARANTINE,
        "shop-skips": TopicRole.SKIPS,
    }


def test_topics_that_do_not_exist_are_no_part_of_it() -> None:
    found = reset_topics(SETTINGS, [SPLIT, COUNTS], ["lines"])
    assert (found.deleted, found.outputs) == ((), ())
    assert found.left == (("lines", TopicRole.SOURCE),)
