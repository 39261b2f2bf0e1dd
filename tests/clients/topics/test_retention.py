"""The time that topics keep their records: declared once, made so, and compared."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from holdfast.agents.cluster import tell
from holdfast.clients.topics.checks import check
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.specs import specs_for
from holdfast.clients.topics.types import AlterConfig, Severity
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.retention import LANDED_MS, declared_ms, landed_topics, retentions
from holdfast.core.engine.declared.serdes import Json, Text
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.declared.streams import Internal, Stream
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError
from holdfast.streams import Filter, Merge, Tumbling, Windowed, count, final
from holdfast.testing import Topology
from tests.clients.topics.world import GOOD, SETTINGS, cluster, created, specs, topic

DAY_MS = 86_400_000
WEEK = "604800000"


def fold(rows: Rows[int], event: str, at_ms: int) -> None:
    rows["all"] = at_ms


def totals(retention: str | int | None, *emits: Any, name: str = "totals") -> Processor[Any, int]:
    return Processor(
        name=name, on={Source("orders", Text(), retention=retention): fold}, row=int, emits=emits
    )


def found_in(processor: Processor[Any, Any], **config: Any) -> list[tuple[Severity, str, str]]:
    """Return the faults of "orders" with this configuration, all other topics being as wanted."""
    state = cluster(topic("orders", 4, GOOD, **config))
    wanted = specs(state, processor)
    return [(each.severity, each.message, each.remedy) for each in check(wanted, created(wanted, state))]


def test_a_topic_is_made_with_the_retention_of_its_declaration() -> None:
    out = Stream("totals-out", Text(), retention="1d")
    wanted = {each.name: each for each in specs_for(SETTINGS, [totals("7d", out)], cluster(), partitions=2)}
    made = {"retention.ms": WEEK, "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert made.items() <= wanted["orders"].config.items()
    assert wanted["totals-out"].config["retention.ms"] == str(DAY_MS)
    forever = specs_for(SETTINGS, [totals("forever")], cluster(), partitions=2)
    assert next(each for each in forever if each.name == "orders").config["retention.ms"] == "-1"


def test_a_source_without_a_declared_retention_is_made_to_keep_all_and_an_emit_topic_as_the_brokers_say() -> (
    None
):
    made = specs_for(SETTINGS, [totals(None, Stream("out", Text()))], cluster(), partitions=2)
    configs = {each.name: each.config for each in made}
    assert (configs["orders"]["retention.ms"], configs["orders"]["retention.bytes"]) == ("-1", "-1")
    assert "retention.ms" not in configs["out"]
    assert all(each.kept_ms is None for each in made)


def test_topics_that_are_emitted_and_folded_keep_all_too() -> None:
    ranks: Processor[Any, int] = Processor(name="ranks", on={Source("out", Text()): fold}, row=int)
    writer = Filter(name="words", source=Source("orders", Text()), keep=bool, to=Stream("out", Text()))
    chains: list[list[Processor[Any, Any]]] = [[totals(None, "out"), ranks], [writer, ranks]]
    for processors in chains:
        made = {each.name: each for each in specs_for(SETTINGS, processors, cluster(), partitions=2)}
        assert made["out"].config["retention.ms"] == "-1"


def test_a_foreign_source_with_a_limit_gets_a_warning() -> None:
    found = found_in(totals(None), retention_ms=WEEK, retention_bytes="1000")
    assert [severity for severity, _, _ in found] == [Severity.WARNING] * 2
    assert found[0][1].startswith("retention.ms is 604800000 (7d): tables live longer than its records")
    assert 'or declare retention="7d"' in found[0][2]
    assert found[1][1].startswith("retention.bytes is 1000: ")
    assert found_in(totals(None), retention_ms="-1") == []
    (compacted,) = found_in(totals(None), retention_ms=WEEK, cleanup_policy="compact")
    assert compacted[1].startswith("cleanup.policy is compact"), "its records go by key, not in time"
    both = found_in(totals(None), retention_ms=WEEK, cleanup_policy="compact,delete")
    assert len(both) == 2


def test_records_kept_until_they_are_landed_are_kept_by_kafka_for_ever() -> None:
    wanted = {each.name: each for each in specs_for(SETTINGS, [totals("landed")], cluster(), partitions=2)}
    assert wanted["orders"].config["retention.ms"] == wanted["orders"].config["retention.bytes"] == "-1"
    assert found_in(totals("landed"), retention_ms="-1") == []
    ((severity, message, remedy),) = found_in(totals("landed"), retention_ms=WEEK)
    assert (severity, message[:49]) == (
        Severity.ERROR,
        "retention.ms is 604800000 (7d), and declared is landed"[:49],
    )
    assert "retention.ms=-1" in remedy
    state = cluster(topic("orders", 4, GOOD, retention_ms=WEEK))
    (altered,) = [
        each
        for each in plan(specs(state, totals("landed")), state, alter=True)
        if isinstance(each, AlterConfig)
    ]
    assert altered.config["retention.ms"] == "-1"


def test_topics_that_are_kept_until_they_are_landed_are_known_by_any_of_their_declarations() -> None:
    out = Stream("out", Text(), retention="landed")
    assert landed_topics([totals("landed", out), totals(None, name="again")]) == {"orders", "out"}
    assert landed_topics([totals("forever")]) == frozenset()
    for each in (out, Source("orders", Text(), retention="landed").topic):
        assert declared_ms(pickle.loads(pickle.dumps(each))) == LANDED_MS
    with pytest.raises(ConfigError, match="with retention landed and 7d, by processors totals and others"):
        landed_topics([totals("landed"), totals("7d", name="others")])
    with pytest.raises(ConfigError, match="global rates: its topic rates is declared with retention landed"):
        Global("rates", Source("rates", Text(), retention="landed"), fold, row=int)
    with pytest.raises(ConfigError, match='"landed" those that no lake has yet'):
        totals("lander")


def test_alter_leaves_a_foreign_source_as_it_is() -> None:
    state = cluster(topic("orders", 4, GOOD, retention_ms="5"))
    wanted = specs(state, totals(None))
    assert plan(wanted, created(wanted, state), alter=True) == []


def test_a_source_that_keeps_less_than_declared_is_an_error_with_its_cure() -> None:
    ((severity, message, remedy),) = found_in(totals("7d"), retention_ms=str(DAY_MS))
    assert severity is Severity.ERROR
    assert message.startswith("retention.ms is 86400000 (1d), and declared is 7d: records are gone earlier")
    assert "holdfast topics create --alter" in remedy
    assert f"retention.ms={WEEK}" in remedy
    ((severity, message, _),) = found_in(totals("forever"), retention_ms=WEEK)
    assert (severity, message[:50]) == (
        Severity.ERROR,
        "retention.ms is 604800000 (7d), and declared is forever"[:50],
    )
    ((severity, message, _),) = found_in(totals("7d"), retention_ms=WEEK, retention_bytes="1000")
    assert (severity, message[:28]) == (Severity.ERROR, "retention.bytes is 1000, and")
    ((severity, message, _),) = found_in(totals("7d"), retention_ms=WEEK, cleanup_policy="compact")
    assert (severity, message[:25]) == (Severity.ERROR, "cleanup.policy is compact")


def test_a_source_that_keeps_more_than_declared_is_a_warning_that_is_not_mended_by_deleting() -> None:
    state = cluster(topic("orders", 4, GOOD, retention_ms="-1"))
    ((severity, message, remedy),) = found_in(totals("7d"), retention_ms="-1")
    assert (severity, message) == (
        Severity.WARNING,
        "retention.ms is -1 (forever), and declared is 7d: records are kept longer than that",
    )
    assert remedy.startswith('declare retention="forever", or run kafka-configs')
    assert not any(
        isinstance(each, AlterConfig) for each in plan(specs(state, totals("7d")), state, alter=True)
    )


def test_a_worker_logs_in_one_line_the_sources_that_are_kept_for_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = cluster(topic("orders", 4, GOOD, retention_ms=WEEK, retention_bytes="1000"))
    wanted = specs(state, totals(None))
    found = check(wanted, created(wanted, state))
    assert [each.limited for each in found] == [True, True]
    other = replace(found[0], topic="sales", message="is odd", limited=False)
    with caplog.at_level("INFO", "holdfast"):
        tell([*found, other])
    warning, line = caplog.records
    assert (warning.levelname, "topic sales is odd" in warning.getMessage()) == ("WARNING", True)
    assert line.getMessage().startswith("orders keep their records for a time only")


def test_alter_makes_a_retention_longer() -> None:
    state = cluster(topic("orders", 4, GOOD, retention_ms="5", retention_bytes="10"))
    altered = [
        each for each in plan(specs(state, totals("7d")), state, alter=True) if isinstance(each, AlterConfig)
    ]
    assert altered == [AlterConfig(topic="orders", config={"retention.ms": WEEK, "retention.bytes": "-1"})]
    undeclared = plan(specs(state, totals(None)), state, alter=True)
    assert not any(isinstance(each, AlterConfig) for each in undeclared)


def test_an_emitted_topic_kept_shorter_than_declared_is_a_warning() -> None:
    state = cluster(topic("orders", 4, GOOD), topic("out", 4, GOOD, retention_ms="5"))
    wanted = specs(state, totals(None, Stream("out", Text(), retention="7d")))
    (found,) = check(wanted, created(wanted, state))
    assert (found.severity, found.topic) == (Severity.WARNING, "out")
    assert found.message.startswith("retention.ms is 5 (5ms), and declared is 7d")


def test_unequal_declarations_of_one_topic_are_refused() -> None:
    one, other = totals("7d"), totals("8d", name="others")
    with pytest.raises(ConfigError, match="with retention 7d and 8d, by processors totals and others"):
        Topology([one, other])
    with pytest.raises(ConfigError, match="topic orders is declared with retention 7d and 8d"):
        specs_for(SETTINGS, [one, other], cluster(), partitions=1)
    with pytest.raises(ConfigError, match="with retention 7d and 1d, by processor totals:"):
        totals(None, Stream("out", Text(), retention="7d"), Stream("out", Text(), retention="1d"))
    assert retentions([one, totals(7 * DAY_MS, name="again"), totals(None, name="silent")]) == {
        "orders": 7 * DAY_MS
    }
    with pytest.raises(ConfigError, match="its stream is declared with retention 1d, and here with 7d"):
        Source(Stream("orders", Text(), retention="1d"), Text(), retention="7d")


def test_the_topic_of_a_global_is_kept_whole() -> None:
    def rates(retention: str | None) -> Global[int]:
        return Global("rates", Source("rates", Text(), retention=retention), fold, row=int)

    with pytest.raises(ConfigError, match="global rates: its topic rates is declared with retention 7d"):
        rates("7d")
    reads: Processor[Any, int] = Processor(
        name="reads", on={Source("orders", Text()): fold}, row=int, reads=(rates(None),)
    )
    writes = totals(None, Stream("rates", Text(), retention="7d"))
    with pytest.raises(
        ConfigError, match="declared with retention 7d by processor totals, but processor reads"
    ):
        retentions([writes, reads])
    assert retentions([reads]) == {}
    said = replace(reads, reads=(rates("forever"),))
    state = cluster(topic("orders", 4, GOOD), topic("rates", 2, GOOD, retention_ms=WEEK))
    for processor, severity in ((reads, Severity.WARNING), (said, Severity.ERROR)):
        wanted = specs(state, processor)
        (found,) = check(wanted, created(wanted, state))
        assert (found.topic, found.severity) == ("rates", severity)


def test_what_holdfast_keeps_has_no_retention_to_declare() -> None:
    with pytest.raises(ConfigError, match="an internal topic, which holdfast keeps until it is trimmed"):
        Source(Internal("words", Text()), Text(), retention="7d")
    producers: Processor[Any, int] = Processor(
        name="registry", on={Source(SETTINGS.producers_topic, Text(), retention="7d"): fold}, row=int
    )
    (found,) = [
        each
        for each in specs_for(SETTINGS, [producers], cluster(), partitions=1)
        if each.name == SETTINGS.producers_topic
    ]
    assert found.config["retention.ms"] == "-1"


@pytest.mark.parametrize("wrong", ["1 week", "", 0, -5, 1.5, True])
def test_a_wrong_retention_is_refused_where_it_is_declared(wrong: Any) -> None:
    for declare in (Source, Stream):
        with pytest.raises(ConfigError, match=r"'orders'.*\"forever\" keeps all records"):
            declare("orders", Text(), retention=wrong)


def test_every_form_of_declaration_carries_it() -> None:
    source = Source("orders", Json(int), retention="7d", time=int)
    forms: list[Processor[Any, Any]] = [
        Filter(name="large", source=source, keep=bool),
        Merge(name="both", sources=[source, Source("more", Json(int))]),
        count(name="counted", source=source, key=str),
        Windowed(
            name="hourly", source=source, by=str, window=Tumbling("1h"), fold=lambda so_far, each: each, row=int,  # noqa: E501
            emit=final("hours"), idle="1s",
        ),
    ]  # fmt: skip
    for each in forms:
        assert retentions([each]) == {"orders": 7 * DAY_MS}, each.name
    sent = pickle.loads(pickle.dumps((source.topic, Stream("out", Text(), retention="forever"))))
    assert [declared_ms(each) for each in sent] == [7 * DAY_MS, -1]


def test_a_fold_gets_the_plain_name_of_its_topic() -> None:
    told: list[Any] = []

    def keep(rows: Rows[str], event: str, at_ms: int, name: str) -> None:
        rows["topic"] = name
        told.append(type(name))

    source = Source("orders", Text(), retention="7d")
    with Topology([Processor(name="named", on={source: FoldWith(keep, ("topic",))}, row=str)]) as topology:
        topology.pipe(source, "x")
        assert topology.table("named") == {"topic": "orders"}
    assert set(told) == {str}
