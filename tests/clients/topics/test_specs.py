"""The topics that an application needs, and the configuration of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.clients.topics.checks import check
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.specs import specs_for, topic_names
from holdfast.clients.topics.types import AlterConfig, TopicRole
from holdfast.core.engine.declared.serdes import Json, Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.ranges import RANGES_TOPIC
from holdfast.streams import Filter, JoinForeign, Merge, Rekey
from tests.clients.topics.world import (
    SETTINGS,
    TOTALS,
    cluster,
    processor,
    specs,
    topic,
)


def test_an_application_needs_sources_changelogs_emits_quarantine_workers_and_skips() -> None:
    found = {spec.name: (spec.role, spec.partitions) for spec in specs(cluster(topic("orders", 6)))}
    assert found == {
        "orders": (TopicRole.SOURCE, 6),
        "shop-totals.v1-changelog": (TopicRole.CHANGELOG, 6),
        "big-customers": (TopicRole.EMIT, 6),
        "shop-quarantine": (TopicRole.QUARANTINE, 6),
        "shop-workers": (TopicRole.WORKERS, 1),
        "shop-skips": (TopicRole.SKIPS, 1),
    }
    assert sorted(found) == topic_names(SETTINGS, (TOTALS,))


def test_created_changelogs_are_compacted_in_append_time_and_sources_are_logs() -> None:
    configs = {spec.role: spec.config for spec in specs(cluster(topic("orders", 6)))}
    assert configs[TopicRole.CHANGELOG] == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.1",
        "segment.ms": "3600000",
        "delete.retention.ms": "86400000",
        "max.message.bytes": "1048588",
    }
    assert configs[TopicRole.SOURCE] == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    assert configs[TopicRole.QUARANTINE]["max.message.bytes"] == "4194352"


def test_with_three_replicas_two_copies_are_asked_for_and_with_two_only_one() -> None:
    for factor, wanted in ((1, None), (2, None), (3, "2")):
        settings = replace(SETTINGS, replication_factor=factor)
        assert {
            spec.config.get("min.insync.replicas")
            for spec in specs(cluster(), settings=settings, partitions=1)
        } == {wanted}


def test_the_partition_option_is_for_what_does_not_exist_yet() -> None:
    state = cluster(topic("orders", 6))
    counts = {
        spec.name: spec.partitions
        for spec in specs(state, TOTALS, processor("returns", "returned"), partitions=3)
    }
    assert counts["orders"] == 6
    assert counts["returned"] == counts["shop-returns.v1-changelog"] == 3
    assert counts["big-customers"] == 3
    assert counts["shop-quarantine"] == 6, "as wide as the widest source"


def test_what_one_processor_emits_and_another_reads_is_a_source_and_listed_once() -> None:
    chained = processor("ranks", "big-customers")
    found = {spec.name: spec.role for spec in specs(cluster(), TOTALS, chained, partitions=2)}
    assert found["big-customers"] is TopicRole.SOURCE
    assert len(found) == 7


def test_kafkas_own_topics_are_known() -> None:
    assert topic("__consumer_offsets", 1).internal
    assert not topic("__marshal", 1).internal


def test_the_topic_of_ranges_is_made_when_asked_for_and_kept_for_ever() -> None:
    assert RANGES_TOPIC not in topic_names(SETTINGS, [TOTALS])
    settings = replace(SETTINGS, ranges=True)
    assert settings.ranges_topic == RANGES_TOPIC
    assert RANGES_TOPIC in topic_names(settings, [TOTALS])
    found = {spec.name: spec for spec in specs_for(settings, [TOTALS], cluster(), partitions=4)}[RANGES_TOPIC]
    assert found.partitions == 4
    assert found.config["message.timestamp.type"] == "LogAppendTime"
    assert (found.config["retention.ms"], found.config["cleanup.policy"]) == ("-1", "delete")


def test_a_topic_that_takes_records_in_place_is_made_as_wide_as_their_source() -> None:
    cleaner = processor(emits=("clean",), in_place=True)
    specs = {
        spec.name: spec for spec in specs_for(SETTINGS, [cleaner], cluster(topic("orders", 6)), partitions=3)
    }
    assert specs["clean"].partitions == 6


def test_internal_topics_are_as_wide_as_what_they_are_folded_with_and_kept() -> None:
    lines, orders = Source("lines", Text()), Source("orders", Text())
    by_word: Rekey[Any, Any] = Rekey(name="by-word", source=lines, by=len)
    alone: Rekey[Any, Any] = Rekey(name="alone", source=lines, by=len)
    kept = Filter(name="kept", source=Source(by_word.to, Text()), keep=bool)
    joined = Merge(name="joined", sources=[orders, Source(kept.to, Text())])
    copied = Filter(name="copied", source=lines, keep=bool)
    there = cluster(topic("lines", 6), topic("orders", 4))
    found = {spec.name: spec for spec in specs_for(SETTINGS, [by_word, alone, kept, joined, copied], there)}
    wide = {name: found[name].partitions for name in found if found[name].role is TopicRole.BETWEEN}
    assert wide == {"by-word.v1": 4, "kept.v1": 4, "joined.v1": 4, "alone.v1": 6, "copied.v1": 6}
    assert found["shop-kept.v1-changelog"].partitions == found["shop-joined-choices.v1"].partitions == 4
    assert {found[name].config["retention.ms"] for name in wide} == {"-1"}


def test_the_topics_of_a_foreign_key_join_are_as_wide_as_its_tables() -> None:
    orders, products = (Source(name, Json(str | None)) for name in ("orders", "products"))
    priced = JoinForeign(
        name="priced",
        left=orders,
        right=products,
        key=str,
        join=lambda order, product: product,
        to=Stream("prices", Json(str | None)),
        version=2,
    )
    there = cluster(topic("orders", 6), topic("products", 4))
    found = {spec.name: spec for spec in specs_for(SETTINGS, [*priced], there)}
    wide = {name: found[name].partitions for name in found if found[name].role is TopicRole.BETWEEN}
    assert wide == {"priced-subscriptions.v2": 4, "priced-answers.v2": 6}
    assert {found[name].config["retention.ms"] for name in wide} == {"-1"}


def test_an_internal_topic_that_exists_keeps_its_partitions_and_is_set_right() -> None:
    words: Rekey[Any, Any] = Rekey(name="words", source=Source("lines", Text()), by=len)
    short = topic("words.v1", 2, {"retention.ms": "1000", "cleanup.policy": "compact"})
    there = cluster(topic("lines", 6), short)
    found = {spec.name: spec for spec in specs_for(SETTINGS, [words], there)}
    assert found["words.v1"].partitions == 2
    told = [each.message for each in check([found["words.v1"]], there)]
    assert any("no table behind them could be folded again" in message for message in told)
    assert any("cleanup.policy is compact" in message for message in told)
    (change,) = plan([found["words.v1"]], there, alter=True)
    assert isinstance(change, AlterConfig)
    assert change.config == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": "-1",
    }
