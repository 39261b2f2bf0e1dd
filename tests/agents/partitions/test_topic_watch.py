"""Topics that change below a running worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.agents.partitions.upkeep.topic_watch import grown_below, made_again
from holdfast.clients.topics.types import ClusterIds
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows


def keep(rows: Rows[int], event: Any, at_ms: int) -> None:
    rows["events"] = rows.get("events", 0) + 1


RATES: Global[int] = Global("rates", Source("rates", Text()), fold=keep, row=int)
BOTH: Processor[Any, int] = Processor(
    name="both",
    on={Source("orders", Text()): keep, Source("customers", Text()): keep},
    reads=(RATES,),
    row=int,
)
TOTALS: Processor[Any, int] = Processor(name="totals", source="orders", decode=bytes, fold=keep, row=int)
PROCESSORS = {"both": BOTH, "totals": TOTALS}
IDS = {name: f"id of {name}" for name in (*BOTH.logs("app"), BOTH.changelog("app"), TOTALS.changelog("app"))}
STARTED = ClusterIds("c", IDS, dict.fromkeys(IDS, 4))


def test_topics_that_are_as_they_were_end_nothing() -> None:
    gone = {name: found for name, found in IDS.items() if name != "customers"}
    for now in (STARTED, ClusterIds("c", gone, dict.fromkeys(gone, 4))):
        assert [*made_again(STARTED, now, PROCESSORS, "app")] == []
        assert [*grown_below(STARTED, now, PROCESSORS)] == []


def test_every_log_that_a_table_depends_on_is_known_by_its_id() -> None:
    assert {"rates", "app-both-choices", "app-both.v1-changelog"} < IDS.keys()
    for topic in IDS:
        now = replace(STARTED, topics={**IDS, topic: "another"})
        (text,) = made_again(STARTED, now, PROCESSORS, "app")
        assert text.startswith(f"topic {topic} was deleted and made again while this worker ran")
        assert ("totals" in text) == (topic in ("orders", "app-totals.v1-changelog"))
    copied = replace(STARTED, cluster_id="other", topics=dict.fromkeys(IDS, "another"))
    assert [*made_again(STARTED, copied, PROCESSORS, "app")] == [], "a copied cluster has ids of its own"


def test_the_error_of_sources_with_more_partitions_has_the_cure() -> None:
    grown = replace(STARTED, partitions={**STARTED.partitions, "customers": 6, "rates": 9})
    (text,) = grown_below(STARTED, grown, PROCESSORS)
    assert text.startswith("topic customers had 4 partitions when this worker started, and has 6 now")
    assert "a new topic of 6 partitions" in text
    assert "version=2" in text
