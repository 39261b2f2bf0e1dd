"""The rest of a take after a refusal: no row overtakes another of its key, and every part stays possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer

from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.outbox.harvest.publishing.destinations import Destinations
from holdfast.outbox.harvest.publishing.plan import Part, Plan, plan_for
from holdfast.outbox.harvest.publishing.publisher import RowsRefused
from holdfast.outbox.harvest.publishing.refusals import Refusals
from holdfast.outbox.harvest.shard.shard import ShardStats
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.settings import HarvestSettings, Poison
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import PARTITIONS, Alone, Rig, flaws
from tests.support.patience import DEADLINE_S


@pytest.fixture
def rig(broker: SessionBroker, fresh_topic: FreshTopic, run_outbox: FreshOutbox) -> Rig:
    """Give an outbox on the run's database."""
    return Rig(broker, run_outbox, fresh_topic("events", partitions=PARTITIONS))


# -- the value


class Topics:
    """A client that knows topics by their number of partitions."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = counts

    def list_topics(self, topic: str, timeout: float) -> Any:
        found = SimpleNamespace(partitions=dict.fromkeys(range(self.counts[topic])), error=None)
        return SimpleNamespace(topics={topic: found})


def destinations(**counts: int) -> Destinations:
    found = Destinations(Topics(counts), uses_buckets=False)
    assert not any(found.refusal(topic) for topic in counts)
    return found


def row(id_: int, *, attempts: int = 0, partition: int | None = None, flaw: str | None = None) -> OutboxRow:
    return OutboxRow(id_, "t", b"k", b"v", [], partition, None, 0, attempts, None, flaw)


def shape(plan: Plan) -> list[tuple[list[int], str | None]]:
    return [([row.id for row in part.rows], part.flaw) for part in plan.parts]


def test_a_row_that_failed_before_and_one_with_a_flaw_are_alone() -> None:
    rows = [row(1), row(2), row(3, attempts=1), row(4, flaw="no JSON"), row(5), row(6, partition=9), row(7)]
    plan = plan_for(rows, destinations(t=3))
    assert shape(plan) == [
        ([1, 2], None),
        ([3], None),
        ([4], "no JSON"),
        ([5], None),
        ([6], "topic t has no partition 9"),
        ([7], None),
    ]
    assert not plan.is_plain
    assert plan.rows == rows


def test_the_next_rows_may_be_taken_ahead_of_plain_ones_only() -> None:
    there = destinations(t=3)
    assert plan_for([row(1), row(2, partition=2)], there).is_plain
    for odd in (row(1, attempts=1), row(1, partition=3), row(1, flaw="no JSON")):
        assert not plan_for([odd], there).is_plain
    assert plan_for([], there).parts == ()


def test_a_part_whose_rows_all_leave_the_plan_leaves_it_too() -> None:
    plan = plan_for([row(1), row(2, attempts=1), row(3)], destinations(t=3))
    assert shape(plan.kept(lambda row: row.id != 2)) == [([1], None), ([3], None)]
    assert shape(plan.first([], [])) == [([2], None), ([3], None)]


# -- refusals


class Limits:
    """The limits of topics: rows of *large* are too large by themselves."""

    def __init__(self) -> None:
        self.large, self.cut = set[int](), list[list[int]]()

    def look(self, topics: set[str]) -> None:
        pass

    def too_large(self, row: OutboxRow) -> str | None:
        return "too large" if row.id in self.large else None

    def refused(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        self.cut.append([row.id for row in rows])
        return [row for row in rows if len(rows) == 1 or row.id in self.large]


class Database:
    """The table, of which only the failed and the quarantined rows are known."""

    def __init__(self) -> None:
        self.failed, self.aside = dict[int, str](), list[int]()

    @property
    def rows(self) -> Database:
        return self

    def attempt_failed(self, row: OutboxRow, reason: str, retry_at_ms: int, **held: Any) -> None:
        self.failed[row.id] = reason

    def set_aside(self, row: OutboxRow, reason: str, **held: Any) -> None:
        self.aside.append(row.id)

    def submit(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        found = call(*args, **more)
        return SimpleNamespace(result=lambda: found)

    def call(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return call(*args, **more)


class Bench:
    """Refusals without Kafka and without a database. Topic `t` has three partitions; a key is its digit."""

    def __init__(self, **settings: Any) -> None:
        self.limits, self.database, self.stats = Limits(), Database(), ShardStats(0)
        signals = SimpleNamespace(stopping=lambda: False)
        given = HarvestSettings(database="", kafka=Settings(), attempts=3, **settings)
        term = SimpleNamespace(
            settings=given, shard_rows=self.database, signals=signals, stats=self.stats, shard=0
        )
        self.refusals = Refusals(term, self.limits, ManualClock())  # type: ignore[arg-type]
        self.destinations = destinations(t=3)

    def plan(self, *rows: OutboxRow) -> Plan:
        return self.refusals.plan(rows, self.destinations)

    def refused(self, plan: Plan, *indexes: int, code: int = KafkaError.INVALID_RECORD) -> Plan:
        at = self.destinations.of(plan.parts[0].rows)
        error = RowsRefused(KafkaError(code), frozenset(at[index] for index in indexes), indexes)
        return self.refusals.transaction_refused(plan, error, self.destinations)


def keyed(id_: int, key: int, **more: Any) -> OutboxRow:
    return msgspec.structs.replace(row(id_, **more), key=b"%d" % key)


def test_rows_after_a_refused_row_on_its_key_leave_every_part_of_the_plan() -> None:
    bench = Bench()
    plan = bench.plan(
        keyed(1, 1), keyed(2, 2), keyed(3, 1), keyed(4, 2, attempts=1), keyed(5, 1), keyed(6, 2)
    )
    assert shape(plan) == [([1, 2, 3], None), ([4], None), ([5, 6], None)]
    assert shape(bench.refused(plan, 0)) == [([2], None), ([4], None), ([6], None)]
    assert set(bench.database.failed) == {1}, "the others were not tried"


def test_a_row_that_cannot_go_has_not_failed_while_it_waits_for_another_of_its_key() -> None:
    bench = Bench()
    plan = bench.plan(keyed(1, 1), keyed(2, 1, flaw="no JSON"), keyed(3, 2, flaw="no JSON"), keyed(4, 2))
    assert (plan.flaws, bench.database.failed) == ({}, {}), "a flaw counts when its turn comes"
    left = bench.refused(plan, 0)
    assert left.flaws == {3: "no JSON"}
    assert shape(bench.refusals.failed(left, left.flaws)) == [([4], None)]
    assert (set(bench.database.failed), bench.database.aside) == ({1, 3}, [3])


def test_a_row_without_a_key_holds_no_other() -> None:
    bench = Bench()
    rows = [msgspec.structs.replace(row(id_), key=None) for id_ in (1, 2, 3)]
    assert shape(bench.refused(bench.plan(*rows), 1)) == [([1, 3], None)]


def test_a_quarantined_row_holds_nothing_and_one_that_waits_for_ever_does() -> None:
    for poison, left in ((Poison.PASS, [([2], None)]), (Poison.WAIT, [])):
        bench = Bench(poison=poison)
        assert shape(bench.refused(bench.plan(keyed(1, 1, attempts=2), keyed(2, 1)), 0)) == left
        assert bench.database.aside == ([1] if poison is Poison.PASS else [])


def test_of_several_refused_rows_the_one_to_blame_is_looked_for_among_those_of_their_partitions() -> None:
    bench = Bench()
    plan = bench.plan(*[keyed(id_, id_) for id_ in range(8)])
    at = [partition for _, partition in bench.destinations.of(plan.rows)]
    apart = [id_ for id_ in range(8) if at[id_] == at[0]]
    others = [id_ for id_ in range(8) if at[id_] != at[0]]
    assert shape(bench.refused(plan, apart[0], apart[1])) == [(others, None), (apart, None)]
    same = Plan((Part([keyed(id_, 1) for id_ in range(5)]),))
    assert shape(bench.refused(same, 0, 3)) == [([0, 1], None), ([2, 3, 4], None)]
    assert not bench.database.failed


def test_a_batch_that_is_too_large_is_tried_again_and_a_row_that_is_fails() -> None:
    bench = Bench()
    plan = bench.plan(keyed(1, 1), keyed(2, 2), keyed(3, 3))
    assert shape(bench.refused(plan, 0, 1, code=KafkaError.MSG_SIZE_TOO_LARGE)) == [([1, 2, 3], None)]
    assert (bench.limits.cut, bench.database.failed) == ([[1, 2]], {})
    bench.limits.large = {2}
    assert shape(bench.refused(plan, 0, 1, code=KafkaError.MSG_SIZE_TOO_LARGE)) == [([1, 3], None)]
    assert set(bench.database.failed) == {2}


def test_a_row_that_is_known_to_be_too_large_is_held_before_it_is_tried() -> None:
    bench = Bench()
    bench.limits.large = {1}
    plan = bench.plan(keyed(1, 1), keyed(2, 1), keyed(3, 2))
    assert (shape(plan), plan.is_plain) == ([([3], None)], True)
    assert (bench.database.failed, bench.stats.refused) == ({1: "too large"}, 1)


def test_of_rows_that_were_not_delivered_those_before_the_first_refused_one_go_first() -> None:
    bench = Bench()
    plan = Plan((Part([keyed(id_, 1) for id_ in range(7)]), Part([keyed(9, 1)])))
    why = {2: KafkaError(KafkaError.INVALID_RECORD), 5: KafkaError(KafkaError.INVALID_RECORD)}
    left = bench.refusals.rows_refused(plan, why)
    assert shape(left) == [([0, 1], None), ([2, 3], None), ([4, 5, 6], None), ([9], None)]
    assert shape(bench.refusals.rows_refused(plan, {2: why[2]})) == [([0, 1], None)]
    assert set(bench.database.failed) == {2}


# -- on the real broker


class Refusing(Producer):
    """A producer whose broker refuses records when the test says so, and does not know topics that are
    *gone*.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        refuses: Callable[[str, bytes | None], KafkaError | None],
        gone: Collection[str] = (),
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        self._refuses, self._gone, self._on_refusal = refuses, gone, on_refusal
        self._delivered, self._refused = config["on_delivery"], list[Any]()
        super().__init__(config)

    def list_topics(self, topic: str, timeout: float) -> Any:  # type: ignore[override]
        if topic not in self._gone:
            return super().list_topics(topic, timeout=timeout)
        found = SimpleNamespace(partitions={}, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return SimpleNamespace(topics={topic: found})

    def produce(  # type: ignore[override]
        self, topic: str, value: Any = None, key: Any = None, partition: int = -1, **more: Any
    ) -> None:
        if (why := self._refuses(topic, value)) is None:
            super().produce(topic, value, key, partition, **more)
            return
        found = {"topic": topic, "partition": partition, "key": key, "value": value}
        self._refused.append((why, {name: lambda it=it: it for name, it in found.items()}))

    def flush(self, *args: Any) -> int:
        left = super().flush(*args)
        refused, self._refused = self._refused, []
        for why, message in refused:
            self._delivered(why, SimpleNamespace(**message))
        if refused:
            self._on_refusal()
        return left


def test_a_topic_that_goes_while_a_batch_is_under_way_holds_its_rows_of_every_part(
    rig: Rig, fresh_topic: FreshTopic
) -> None:
    """The refused row divides the batch: rows of the topic come before and after it."""
    other, gone = fresh_topic("other", partitions=PARTITIONS), set[str]()
    rig.write(
        [
            rig.record(0, topic=other),
            rig.record(1, partition=PARTITIONS),
            rig.record(2, topic=other),
            rig.record(3),
        ]
    )

    def refuses(topic: str, value: bytes | None) -> KafkaError | None:
        if topic != other:
            return None
        gone.add(other)
        return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    clients = {"make_producer": partial(Refusing, refuses=refuses, gone=gone)}
    with Alone(rig.settings(attempts=1), clients) as leader:
        rig.wait_empty()
    assert [record.number for record in rig.read()] == [3]
    assert not rig.read(topic=other)
    assert (leader.stats.quarantined, leader.stats.restarts) == (3, 0)
    with rig.outbox.rows() as rows:
        assert [each.reason.split(":")[0] for each in rows.quarantined(10)] == [
            "UNKNOWN_TOPIC_OR_PART",
            f"topic {rig.topic} has no partition {PARTITIONS}",
            "UNKNOWN_TOPIC_OR_PART",
        ]


def test_a_leader_that_stops_at_a_refusal_publishes_nothing_after_the_rows_it_leaves(
    rig: Rig,
) -> None:
    """Two rows of the first part are refused, so it is not known yet which is to blame; a row of the second
    part has the key of a row that was not refused.
    """
    rig.write(
        [
            rig.record(0, key=b"a"),
            rig.record(1, key=b"b"),
            rig.record(2, key=b"c"),
            rig.record(3, key=b"d", partition=PARTITIONS),
            rig.record(4, key=b"a"),
        ]
    )
    rig.filled = 5

    def refuses(topic: str, value: bytes | None) -> KafkaError | None:
        is_bad = value is not None and (b'"number": 1,' in value or b'"number": 2,' in value)
        return KafkaError(KafkaError.INVALID_RECORD) if is_bad else None

    def stop() -> None:
        leader.signals.stop()

    clients = {"make_producer": partial(Refusing, refuses=refuses, on_refusal=stop)}
    leader: Alone = Alone(rig.settings(attempts=1), clients)
    with leader:
        leader._thread.join(DEADLINE_S)
    assert (leader.published, rig.read(), rig.left()) == (0, [], 5)
    with Alone(rig.settings(attempts=1)):
        rig.wait_empty()
    assert not flaws(rig.read(), {0, 1, 2, 4})
