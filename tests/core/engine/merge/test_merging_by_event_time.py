"""Of several sources the next record is the one of the least event time, where they declare one; and records
merged by append time, before event times counted, are read as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import decode_choice, encode_choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.merging import LOWEST, Merger, last_key, replayed
from holdfast.core.engine.positions import decode_position, encode_position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import Later, UnknownSchemaError

Event = tuple[str, int | None]
OUT: Stream[Any] = Stream("asked", Json(tuple[str, int | None, str]))
FIRST_MS = 1_700_000_000_000
GOLDEN = json.loads(
    (Path(__file__).parents[3] / "testdata" / "merged_by_append_time.json").read_text("utf-8")
)


def at_of(event: Event) -> int:
    assert event[1] is not None, "it has no time"
    return event[1]


def price(rows: Rows[str], event: Event, at_ms: int) -> None:
    rows["price"] = event[0]


def ask(rows: Rows[str], event: Event, at_ms: int) -> Emits:
    return (OUT.emit("price", (event[0], event[1], rows.get("price", ""))),)


def asking(
    *, prices: Source[Any] | None = None, questions: Source[Any] | None = None, version: int = 1
) -> Processor[Any, str]:
    one = prices or Source("prices", Json(Event), time=at_of)
    two = questions or Source("questions", Json(Event), time=at_of)
    return Processor(name="asking", version=version, on={one: price, two: ask}, row=str, emits=(OUT,))


def batch(events: Iterable[Event | bytes | None], first: int = 0, at_ms: int = FIRST_MS) -> Batch:
    values = [
        each if each is None or isinstance(each, bytes) else msgspec.json.encode(each) for each in events
    ]
    times = [at_ms + number for number in range(len(values))]
    return Batch(range(first, first + len(values)), times, (values,))


def asked(folder: Folder[str], stretches: Iterable[Stretch]) -> list[tuple[str, str]]:
    """Fold *stretches* in one transaction; return what each question was answered."""
    changes = folder.fold(stretches)
    if changes is None:
        return []
    folder.commit()
    found = (msgspec.json.decode(each.value or b"") for each in changes.emits)
    return [(name, answer) for name, _, answer in found]


def whole(processor: Processor[Any, str], *logs: Batch) -> list[tuple[str, str]]:
    folder = Folder(processor, DictStore())
    return asked(folder, replayed(folder.marker, [[log] for log in logs], order=folder.order))


def taken(merger: Merger, ends: Sequence[int | None] | None = None) -> Iterator[Stretch]:
    return iter(partial(merger.take, ends), None)


# -- a backlog


def test_a_backlog_is_joined_as_of_event_time_whichever_topic_was_written_first() -> None:
    prices = [("p1", 10), ("p2", 20), ("p3", 30)]
    questions = [("q1", 5), ("q2", 15), ("q3", 30), ("q4", 99)]
    wanted = [("q1", ""), ("q2", "p1"), ("q3", "p3"), ("q4", "p3")]
    assert whole(asking(), batch(prices, at_ms=FIRST_MS), batch(questions, at_ms=FIRST_MS + 50)) == wanted
    assert whole(asking(), batch(prices, at_ms=FIRST_MS + 50), batch(questions, at_ms=FIRST_MS)) == wanted


def by_least_first(logs: Sequence[Sequence[Event]]) -> list[tuple[int, int]]:
    """Return source and number of each record in turn: always the first of the log whose first has the least
    time, as Kafka Streams takes them.
    """
    at, order = [0] * len(logs), []
    while left := [source for source, log in enumerate(logs) if at[source] < len(log)]:
        source = min(left, key=lambda each: (at_of(logs[each][at[each]]), each))
        order.append((source, at[source]))
        at[source] += 1
    return order


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_all_sources_with_the_least_time_is_next_however_it_is_fetched(seed: int) -> None:
    """Also where events of one source are out of order, and at whatever pace the sources are fetched."""
    rng = Random(seed)
    logs: list[list[Event]] = []
    for source in range(2):
        at_ms, log = 0, list[Event]()
        for number in range(rng.randrange(60)):
            at_ms += rng.randrange(4)
            log.append((f"{source}/{number}", max(0, at_ms - rng.choice((0, 0, 0, 9)))))
        logs.append(log)
    folder = Folder(asking(), DictStore())
    merger, fetched = Merger(folder.marker, (), folder.order), [0, 0]
    found: list[tuple[int, int]] = []
    for turn in count():
        for source, log in enumerate(logs):
            stop = min(len(log), fetched[source] + rng.choice((0, 1, 7)))
            events = log[fetched[source] : stop]
            merger.offer(source, batch(events, fetched[source], FIRST_MS + turn * 100))
            fetched[source] = stop
        stretches = [*taken(merger, [len(log) for log in logs])]
        for stretch in stretches:
            assert stretch.choice is None, "nothing came too late"
            offsets = [iter(each.batch.offsets if each else ()) for each in stretch.portions]
            found += [(source, next(offsets[source])) for source in stretch.order]
        changes = folder.fold(stretches)
        if changes is not None and rng.random() < 0.2:  # the transaction is aborted: all of it comes again
            folder.rollback()
            found = found[: sum(each + 1 for each in folder.marker.applied)]
        elif changes is not None:
            folder.commit()
        merger.settle(folder.marker)
        if sum(each + 1 for each in folder.marker.applied) == sum(map(len, logs)):
            break
    assert found == by_least_first(logs)


def test_of_sources_without_time_the_append_time_counts() -> None:
    """One declares event time, the other has none: each is ordered by its own."""
    plain = Source("questions", Json(Event))
    prices = [("p1", FIRST_MS + 5), ("p2", FIRST_MS + 6)]
    found = whole(asking(questions=plain), batch(prices, at_ms=FIRST_MS + 900), batch([("q1", 0), ("q2", 0)]))
    assert found == [("q1", ""), ("q2", "")]
    found = whole(
        asking(questions=plain),
        batch(prices, at_ms=FIRST_MS + 900),
        batch([("q1", 0), ("q2", 0)], at_ms=FIRST_MS + 5),
    )
    assert found == [("q1", "p1"), ("q2", "p2")]


def test_where_no_source_reads_time_the_written_bytes_are_as_before() -> None:
    folder = Folder(
        asking(prices=Source("prices", Json(Event)), questions=Source("questions", Json(Event))), DictStore()
    )
    assert folder.order.by_event == 0
    merger = Merger(folder.marker, (), folder.order)
    merger.offer(1, batch([("q1", 1)], at_ms=FIRST_MS + 9))
    asked(folder, taken(merger, (0, 0)))
    merger.settle(folder.marker)
    merger.offer(0, batch([("p1", 1)]))
    changes = folder.fold(taken(merger, (0, 0)))
    assert changes is not None
    assert [encode_choice(each)[1:2] for each in changes.choices] == [b"\x01"]
    assert changes.marker.by_event == 0


def test_a_processor_of_one_source_has_no_order_to_choose() -> None:
    one: Processor[Any, str] = Processor(
        name="one", on={Source("prices", Json(Event), time=at_of): price}, row=str
    )
    assert Folder(one, DictStore()).order.by_event == 0


# -- records without a time


@pytest.mark.parametrize(
    "without",
    [
        None,
        b"{",
        ("p2", None),
        ("p2", -5),
        ("p2", 10**16),
        ("p2", FIRST_MS + 2 * 86_400_000),
    ],
    ids=["no value", "unreadable", "its time fails", "below 0", "no time", "too far ahead"],
)
def test_a_record_without_a_time_follows_the_one_before_it(without: Any) -> None:
    seen: list[str] = []

    def keep(rows: Rows[str], event: Any, at_ms: int) -> None:
        seen.append("p" if event is None else event[0])

    prices = Source("prices", Json(Event | None), time=at_of)
    processor: Processor[Any, str] = Processor(
        name="asking", on={prices: keep, Source("questions", Json(Event), time=at_of): keep}, row=str
    )
    folder = Folder(processor, DictStore())
    logs = [
        [batch([("p1", 10), without, ("p3", 30)])],
        [batch([("q1", 9), ("q2", 11), ("q3", 40)])],
    ]
    stretches = [*replayed(folder.marker, logs, order=folder.order)]
    assert [*b"".join(each.order for each in stretches)] == [1, 0, 0, 1, 0, 1]
    assert folder.fold(stretches) is not None


def test_a_time_that_is_held_moves_no_order() -> None:
    held = Source("prices", Json(Event), time=at_of, ahead_policy="hold")
    far = FIRST_MS + 2 * 86_400_000
    found = whole(
        asking(prices=held),
        batch([("p1", FIRST_MS), ("p2", far), ("p3", FIRST_MS + 9)]),
        batch([("q1", FIRST_MS + 5), ("q2", FIRST_MS + 9)]),
    )
    assert found == [("q1", "p2"), ("q2", "p3")]


# -- what cannot be read yet


class Registry:
    """The registry in which the schemas of prices are looked up."""

    def __init__(self) -> None:
        self.fails: Callable[[], Exception] | None = None


class Looked:
    """A serde that needs a registry for records that begin with x."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._of = registry, Json(Event)

    def decode(self, value: bytes | None) -> Event:
        if self._registry.fails is not None and value is not None and b"x" in value:
            raise self._registry.fails()
        event: Event = self._of.decode(value)
        return event

    def encode(self, value: Event) -> bytes:
        return self._of.encode(value) or b""


def test_a_record_that_has_to_wait_ends_the_batch_and_is_asked_again() -> None:
    registry = Registry()
    registry.fails = lambda: Later("it is away", needs="the registry")
    folder = Folder(
        asking(prices=Source("prices", Looked(registry), time=at_of)),
        DictStore(),
    )
    merger = Merger(folder.marker, (), folder.order)
    merger.offer(0, batch([("p1", 10), ("x2", 20), ("p3", 30)]))
    merger.offer(1, batch([("q1", 9), ("q2", 25)]))
    assert asked(folder, taken(merger, (0, 0))) == [("q1", "")]
    merger.settle(folder.marker)
    for _ in range(2):
        with pytest.raises(Later) as raised:
            folder.fold(taken(merger, (0, 0)))
        assert raised.value.at == ("prices", 1)
        merger.settle(folder.marker)
    registry.fails = None
    assert asked(folder, taken(merger, (0, 0))) == [("q2", "x2")]


def test_a_record_unknown_when_it_was_ordered_is_refused_though_it_is_known_when_it_is_folded() -> None:
    """Else a replay, which can read it, would order what follows by another time."""
    registry, store = Registry(), DictStore()
    registry.fails = lambda: UnknownSchemaError("nobody knows it")
    processor = asking(prices=Source("prices", Looked(registry), time=at_of))
    folder = Folder(processor, store)
    logs = [batch([("p1", 10), ("x2", 50), ("p3", 30)]), batch([("q1", 40)])]
    stretches = [*replayed(folder.marker, [[each] for each in logs], order=folder.order)]
    registry.fails = None
    changes = folder.fold(stretches)
    assert changes is not None
    assert [(each.topic, each.offset, each.passing) for each in changes.refused] == [("prices", 1, True)]
    assert [msgspec.json.decode(each.value or b"")[2] for each in changes.emits] == ["p3"]
    folder.commit()
    assert folder.order.unread == {}
    again = Folder(processor, DictStore())
    again.refused_before = {("prices", 1)}
    found = asked(again, replayed(again.marker, [[each] for each in logs], order=again.order))
    assert found == [("q1", "p3")]


# -- records written before


def golden(topic: str, start: int, stop: int) -> Batch:
    part = GOLDEN["logs"][topic][start:stop]
    values = [msgspec.json.encode(event) for _, event in part]
    return Batch(range(start, stop), [at_ms for at_ms, _ in part], (values,))


TOPICS = ("prices", "questions")
OLD_CHOICES = [bytes.fromhex(each) for turn in GOLDEN["written"] for each in turn["choices"]]
OLD_STORED = {
    bytes.fromhex(key): bytes.fromhex(value) for turn in GOLDEN["written"] for key, value in turn["stored"]
}


def test_what_an_earlier_release_merged_is_folded_again_to_its_bytes() -> None:
    upto = decode_position(OLD_STORED[APPLIED])
    assert (len(OLD_CHOICES), upto.choices, upto.by_event) == (1, 1, 0)
    store, folder = DictStore(), Folder(asking(), DictStore())
    logs = [[golden(topic, 0, last + 1)] for topic, last in zip(TOPICS, upto.applied, strict=True)]
    recorded = [*map(decode_choice, OLD_CHOICES)]
    changes = folder.fold(replayed(folder.marker, logs, recorded, order=folder.order.as_at(upto)))
    assert changes is not None
    store.apply(changes.puts)
    assert {**dict(store.everything()), APPLIED: encode_position(changes.marker)} == OLD_STORED
    emits = [(each.value or b"").decode() for each in changes.emits]
    assert emits == [emit for turn in GOLDEN["written"] for emit in turn["emits"]]


def resumed() -> tuple[Folder[str], Merger, DictStore]:
    store = DictStore()
    store.apply([(key, value) for key, value in OLD_STORED.items() if key != APPLIED])
    folder = Folder(asking(), store, marker=decode_position(OLD_STORED[APPLIED]))
    return folder, Merger(folder.marker, map(decode_choice, OLD_CHOICES), folder.order), store


def test_a_worker_that_takes_over_an_older_table_parts_the_two_orders_by_a_barrier() -> None:
    folder, merger, _ = resumed()
    for source, topic in enumerate(TOPICS):
        merger.offer(source, golden(topic, 3, 4))
    changes = folder.fold(taken(merger, (0, 0)))
    assert changes is not None
    barrier = decode_choice(encode_choice(changes.choices[0]))
    assert (barrier.number, barrier.applied, barrier.tick_ms) == (1, (2, 2), None)
    assert not barrier.by_event, "what lies before it was merged by append time"
    assert changes.marker.by_event
    assert (changes.marker.by_event, changes.marker.ordered_ms) == (3, (40, 45))
    assert [msgspec.json.decode(each.value or b"")[2] for each in changes.emits] == ["p4"]
    folder.commit()
    merger.settle(folder.marker)
    merger.offer(0, batch([("p5", 41)], first=4))
    late = folder.fold(taken(merger, (0, 0)))
    assert late is not None
    (second,) = late.choices
    assert decode_choice(encode_choice(second)).by_event
    # All of it again, from the beginning.
    recorded = [*map(decode_choice, OLD_CHOICES), barrier, second]
    again = Folder(asking(), DictStore())
    logs = [
        [golden("prices", 0, 4), batch([("p5", 41)], first=4)],
        [golden("questions", 0, 4)],
    ]
    whole = again.fold(replayed(again.marker, logs, recorded, order=again.order.as_at(late.marker)))
    assert whole is not None
    assert whole.marker == late.marker
    wanted = [emit for turn in GOLDEN["written"] for emit in turn["emits"]]
    found = [(each.value or b"").decode() for each in whole.emits]
    assert found == [*wanted, *((each.value or b"").decode() for each in changes.emits)]


def test_where_a_choice_lies_right_before_no_barrier_is_needed() -> None:
    old = decode_position(OLD_STORED[APPLIED])
    store = DictStore()
    behind = msgspec.structs.replace(old, last=-1, choices=2)
    folder = Folder(asking(), store, marker=behind)
    merger = Merger(folder.marker, (), folder.order)
    merger.offer(0, golden("prices", 3, 4))
    assert merger.take((0, 0)) is not None
    assert (last_key(old) > LOWEST, last_key(behind)) == (True, LOWEST)


# -- what it costs


class Counted:
    """Lists of a name and a time, which counts what it decodes."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, value: bytes | None) -> Any:
        self.decoded += 1
        return msgspec.json.decode(value or b"")

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)


def test_values_are_decoded_once_and_again_where_a_fold_may_have_changed_them() -> None:
    def grow(rows: Rows[str], event: Any, at_ms: int) -> None:
        event[0] += "!"  # a fold that changes its event
        rows["all"] = rows.get("all", "") + event[0]

    serdes = Counted(), Counted()
    sources = [
        Source(name, serde, time=lambda event: event[1])
        for name, serde in zip(("a", "b"), serdes, strict=True)
    ]
    processor = Processor(name="grown", on=dict.fromkeys(sources, grow), row=str)
    folder: Any = Folder(processor, DictStore())
    merger = Merger(folder.marker, (), folder.order)
    merger.offer(0, batch([(f"a{at}", 10 * at) for at in range(5)]))
    merger.offer(1, batch([(f"b{at}", 10 * at + 5) for at in range(5)]))
    for last in (False, True):
        decoded = [each.decoded for each in serdes]
        assert folder.fold(taken(merger, (5, 5))) is not None
        assert [each.decoded for each in serdes] == ([5, 5] if not last else [10, 10]), decoded
        assert folder.rows["all"] == "a0!b0!a1!b1!a2!b2!a3!b3!a4!b4!"
        folder.commit() if last else folder.rollback()
        merger.settle(folder.marker)
    for first in range(5, 500, 5):  # in small transactions of a backlog
        merger.offer(0, batch([(f"a{at}", 10 * at) for at in range(first, first + 5)], first))
        merger.offer(1, batch([(f"b{at}", 10 * at + 5) for at in range(first, first + 5)], first))
        folder.fold(taken(merger))
        folder.commit()
        merger.settle(folder.marker)
    assert [each.decoded for each in serdes] == [505, 505]
