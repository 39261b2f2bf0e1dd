"""Timers of the event clock downstream of steps fire once all origins have come past them: the result of a
fold for each hour follows from the sources' logs, at any pace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import Any

import pytest

from holdfast import Json, Processor, Source, Stream
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.origins import ALONE, Mark, mark_headers, record_header
from holdfast.core.engine.positions import Position, decode_position, encode_position
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ChangelogError, ConfigError
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.positions import position_of
from holdfast.pipeline.folds.results import gather
from holdfast.streams import Map, dedupe
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of, at_pace, by_driver, source_logs
from tests.support.scale import scaled

PARTITIONS, HOUR = 3, 100
Told = tuple[str, int, int]
HOURS: Stream[Told] = Stream("hours", Json(Told))


def count(rows: Rows[int], fare: Fare, at_ms: int) -> None:
    hour = fare.at_ms // HOUR
    key = f"{fare.driver}/{hour}"
    rows[key] = (rows.get(key) or 0) + 1
    rows.wake_at(key, (hour + 1) * HOUR, clock="event")


def tell(rows: Rows[int], key: str, at_ms: int) -> Iterator[Emit]:
    driver, _, hour = key.partition("/")
    yield HOURS.emit(driver, (driver, int(hour), rows[key]))
    del rows[key]


def of_one(step: Any) -> Processor[Any, int]:
    return Processor(
        name="counted",
        source=step.to,
        decode=Json(Fare).decode,
        time=at_of,
        fold=count,
        row=int,
        on_event=tell,
        emits=(HOURS,),
    )


def of_several(*steps: Any) -> Processor[Any, int]:
    sources = [Source(each.to, Json(Fare), time=at_of) for each in steps]
    return Processor(name="counted", on=dict.fromkeys(sources, count), row=int, on_event=tell, emits=(HOURS,))


def oracle(logs: list[list[Fare]]) -> Counter[Told]:
    found = Counter((fare.driver, fare.at_ms // HOUR) for log in logs for fare in log)
    return Counter((driver, hour, number) for (driver, hour), number in found.items())


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.variant)])
@pytest.mark.parametrize("several", [False, True])
def test_each_hour_is_sent_once_and_whole(several: bool, steps: int) -> None:
    for seed in range(scaled(6)):
        logs = source_logs(Random(seed), PARTITIONS, 40, 1)
        for pace in range(2):
            steps_of = by_driver("by-driver", FARES, steps)
            folded = of_one(steps_of[-1])
            if several:
                more = by_driver("by-driver-too", Source("more", Json(Fare), time=at_of), 1)
                folded = of_several(steps_of[-1], more[-1])
                steps_of = [*steps_of, *more]
            with Topology([*steps_of, folded], partitions=PARTITIONS, paces=False) as topology:
                for at, fare in at_pace(logs, Random(100 * seed + pace)):
                    topology.pipe(FARES, fare, key=fare.driver, partition=at)
                found = Counter(tuple(value) for _, value in topology.values(HOURS))
                left = chain.from_iterable((key.split("/"),) * 1 for key in topology.table(folded))
                found.update(
                    (driver, int(hour), topology.table(folded)[f"{driver}/{hour}"]) for driver, hour in left
                )
            assert found == oracle(logs), f"seed {seed}, pace {pace}"


# -- the position


IN: Internal[Fare] = Map(name="same", source=FARES, each=lambda fare: fare, serde=Json(Fare)).to  # type: ignore[assignment]


def at(at_ms: int, origin: int | None, before_ms: int = 0) -> tuple[bytes | None, tuple[Any, ...]]:
    headers = () if origin is None else (record_header(origin, before_ms, at_ms),)
    return Json(Fare).encode(Fare("ada", at_ms, 0)), headers


def batch(*records: tuple[bytes | None, tuple[Any, ...]], first: int = 0) -> Batch:
    values, headers = zip(*records, strict=True)
    offsets = range(first, first + len(records))
    return Batch(offsets, [1_700_000_000_000 + each for each in offsets], (values, headers))


def folder_at(store: DictStore, marker: Any = None) -> Folder[int]:
    processor: Processor[Any, int] = Processor(
        name="counted",
        source=IN,
        decode=Json(Fare).decode,
        time=at_of,
        fold=count,
        row=int,
        on_event=tell,
        emits=(HOURS,),
    )
    assert processor.columns == ("value", "headers")
    return Folder(processor, store, marker=marker)


def transact(folder: Folder[int], store: DictStore, given: Batch) -> tuple[list[Told], Position]:
    changes = folder.fold([given])
    assert changes is not None
    store.apply(changes.puts)
    folder.commit()
    marker = decode_position(encode_position(changes.marker))
    assert marker.event_ms is not None
    assert marker == changes.marker
    return [Json(Told).decode(each.value) for each in changes.emits], marker


def test_a_new_owner_continues_with_the_watermarks_of_the_marker() -> None:
    store = DictStore()
    two = (None, mark_headers(Mark(1, 50, False, 2)))
    told, marker = transact(folder_at(store), store, batch(at(40, 0), at(300, 0), two))
    assert (told, marker.event_ms, marker.origins is not None) == ([], 50, True)
    told, marker = transact(folder_at(store, marker), store, batch(at(99, 1, 50), first=3))
    assert (told, marker.event_ms) == ([], 99)
    both = batch(at(250, 1, 99), first=4)
    again = folder_at(store, marker)
    assert again.fold([both]) is not None
    again.rollback()  # the transaction is aborted: nothing of it was applied
    told, marker = transact(again, store, both)
    assert (told, marker.event_ms) == ([("ada", 0, 2)], 250)
    ended = (None, mark_headers(Mark(1, 250, True, 2)))
    told, marker = transact(folder_at(store, marker), store, batch(ended, first=5))
    assert (told, marker.event_ms) == ([("ada", 2, 1)], 300)


def test_an_origin_that_is_alone_passes_as_a_source_does() -> None:
    store = DictStore()
    only = (None, mark_headers(Mark(0, 10, False, ALONE)))
    told, marker = transact(folder_at(store), store, batch(only, at(40, 0), at(120, 0)))
    assert (told, marker.event_ms) == ([("ada", 0, 1)], 120)


def test_without_headers_the_highest_time_counts_and_the_marker_is_as_it_was() -> None:
    """Records that steps of earlier releases wrote are folded as they were, and to the same bytes."""
    store = DictStore()
    told, marker = transact(folder_at(store), store, batch(at(40, None), at(250, None), at(90, None)))
    assert (told, marker.origins) == ([("ada", 0, 1)], None)
    expected = Position((2,), 1_700_000_000_002, 1, sources=marker.sources, event_ms=250)
    assert encode_position(marker) == encode_position(expected)
    told, marker = transact(folder_at(store, marker), store, batch(at(20, 1), first=3))
    assert (told, marker.event_ms) == ([], 250), "it does not go back"
    assert marker.event_ms is not None


def test_watermarks_that_no_worker_wrote_are_refused() -> None:
    sources = folder_at(DictStore()).marker.sources
    marker = Position((2,), 3, 1, sources=sources, event_ms=250, origins=b"\xc1")
    with pytest.raises(ChangelogError, match="watermarks in a position marker are malformed"):
        folder_at(DictStore(), marker)


# -- ids


def firsts(log: list[Fare], ttl_ms: int) -> list[int]:
    """Return the numbers of the records that pass, of one log: the first of each driver in each *ttl_ms*."""
    passed, found = dict[str, int](), list[int]()
    for fare in log:
        if fare.driver not in passed or fare.at_ms - passed[fare.driver] >= ttl_ms:
            passed[fare.driver] = fare.at_ms
            found.append(fare.number)
    return found


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.variant)])
def test_the_first_of_each_id_in_its_time_passes_at_any_pace(steps: int) -> None:
    """Each id is of one origin: the oracle sees its log alone."""
    dropped = 0
    for seed in range(scaled(6)):
        logs = [
            [Fare(f"{each.driver}{number}", each.at_ms, each.number) for each in log]
            for number, log in enumerate(source_logs(Random(seed), PARTITIONS, 40, 1))
        ]
        wanted = sorted(chain.from_iterable(firsts(log, HOUR) for log in logs))
        dropped += sum(map(len, logs)) - len(wanted)
        for pace in range(2):
            steps_of = by_driver("by-driver", FARES, steps)
            once: Stream[Fare] = Stream("once", Json(Fare))
            ids = dedupe(
                name="ids",
                source=Source(steps_of[-1].to, Json(Fare), time=at_of),
                to=once,
                key=lambda fare: fare.driver,
                ttl="100ms",
                clock="event",
            )
            with Topology([*steps_of, ids], partitions=PARTITIONS, paces=False) as topology:
                for at, fare in at_pace(logs, Random(100 * seed + pace)):
                    topology.pipe(FARES, fare, key=fare.driver, partition=at)
                assert sorted(fare.number for _, fare in topology.values(once)) == wanted, f"seed {seed}"
                assert len(topology.table(ids)) <= len({fare.driver for log in logs for fare in log})
    assert dropped, "some come twice"


def test_ids_are_forgotten_by_event_time_only_where_the_source_reads_it() -> None:
    told = {"to": "once", "key": str, "ttl": "1h"}
    with pytest.raises(ConfigError, match=r'clock="event" needs source=Source\(..., time=...\)'):
        dedupe(name="ids", source="fares", decode=bytes, clock="event", **told)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='clock \'wall\'; write "append" or "event"'):
        dedupe(name="ids", source=FARES, clock="wall", **told)  # type: ignore[arg-type]


def test_a_repeat_is_judged_by_its_own_time_and_one_without_a_value_is_refused() -> None:
    fares = Source("fares", Json(Fare | None), time=at_of)
    ids = dedupe(name="ids", source=fares, to="once", key=lambda _: "ada", ttl="100ms", clock="event")
    with Topology([ids], partitions=1) as topology:
        for number, at_ms in enumerate((1_000, 1_099, 1_100, 1_050, 900, 1_200)):
            topology.pipe(fares, Fare("ada", at_ms, number), key="ada")
        found = [Json(Fare).decode(each.value).number for each in topology.read("once")]
        assert found == [0, 2, 4, 5]
        topology.pipe(fares, None, key="ada")
        assert [each.stage for each in topology.refused] == ["decode"]


def test_a_replay_comes_to_the_marker_with_its_watermarks() -> None:
    """A worker that begins from a replay, as a bootstrap or the next fold of a history does, uses them."""
    store = DictStore()
    given = batch((None, mark_headers(Mark(1, 50, False, 2))), at(40, 0), at(300, 0))
    live = folder_at(store)
    _, marker = transact(live, store, given)
    found = fold_partition(FoldPlan(processor=live.processor), 0, [[(given, 1_000)]])
    (summary,), _ = gather(found, [0])
    assert position_of(live.processor, summary) == marker
    assert summary.event_ms == 50
