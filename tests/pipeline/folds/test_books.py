"""The bookkeeper's folds over history: both engines give the same rows, headers and partitions included, as
workers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agents.services.bookkeeper import books, dedupe
from holdfast.config import Settings
from holdfast.core.producers.ledger import Judgement, book_key
from holdfast.core.producers.stamps import Stamp, stamp_headers
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.pipeline.accounts import Log, Record
from tests.pipeline.conftest import MakeTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = (0, 1, 1, 4, 3, 5, 5, 2, 6)
LOG: Log = {
    partition: [
        Record(
            at,
            1_000 + at,
            b"k",
            b"v%d" % at,
            stamp_headers(Stamp(f"p{at % 2}", 1 + at // 6 - (at == 7), number + partition)),
        )
        for at, number in enumerate(NUMBERS)
    ]
    for partition in range(3)
}


def test_both_engines_keep_the_same_books_with_and_without_a_clean_topic(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic
) -> None:
    topic = make_topic(LOG)
    plain, clean = books(topic), dedupe(topic, f"{topic}-clean")
    told = [
        replay(processor, settings, ReplayOptions(engine=engine))
        for processor in (plain, clean)
        for engine in ("local", "spark")
    ]
    digests = [[each.digest for each in one.partitions] for one in told]
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert [each.refused for each in told[0].partitions] == [0, 0, 0]
    rows = [row for row in told[0].table("rows", plain).to_pylist() if row["key"] == book_key("p1")]
    assert len(rows) == 3
    assert Judgement.LATE.value in str(rows[0])
