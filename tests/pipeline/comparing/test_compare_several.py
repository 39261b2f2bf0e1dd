"""Two versions over the history of several sources: the keys and the first records are those of a model, on
both engines and with states in files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import FoldWith, Source
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.ordering import MergeOrder
from holdfast.core.engine.merge.merging import replayed
from holdfast.core.engine.positions import start_of
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError
from holdfast.pipeline.comparing.compare import Comparison, compare
from holdfast.pipeline.folds import folding, version_diff
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.choices.world import Event, Seen, fold, processor_of, recorded_of
from tests.pipeline.folds.test_merged import WIDTH, batches
from tests.pipeline.folds.test_merged_bronze import worlds, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings()
FIRST = processor_of(WIDTH)


def fold_some(
    rows: Rows[Seen], event: Event, at_ms: int, timestamp: int, key: str | None, topic: str, offset: int
) -> Iterator[Emit]:
    """Fold as the first version, except for a few records."""
    if event.n % 7 == 3:
        rows[f"left/{event.key}"] = Seen(event.n)
        return
    yield from fold(rows, event, at_ms, topic, offset, timestamp)


def second() -> Processor[Any, Seen]:
    """Return a version that takes other columns, in another order."""
    told = FoldWith(fold_some, ("timestamp", "key", "topic", "offset"))
    return replace(FIRST, version=2, on=dict.fromkeys(FIRST.on or {}, told))


def order(partition: int) -> dict[tuple[str, int], int]:
    """Return the number of each record, and of each choice, in the order in which a partition is folded."""
    live, logs = worlds()[partition]
    stretches = replayed(
        start_of(FIRST),
        [(batch for batch, _ in batches(log)) for log in logs],
        recorded_of(live),
        order=MergeOrder(FIRST),
    )
    places: list[tuple[str, int]] = []
    for stretch in stretches:
        if stretch.choice is not None:
            places.append(("", stretch.choice.number))
            continue
        offsets = [iter(() if each is None else each.batch.offsets) for each in stretch.portions]
        places += [(FIRST.topics[source], next(offsets[source])) for source in stretch.order]
    return {place: number for number, place in enumerate(places)}


def model(lake: Path) -> tuple[Any, Any]:
    """Return the keys that differ at the end with both rows, and the record at which each first did: from
    whole states after each record.
    """
    told = [
        replay(each, NO_KAFKA, bronze(lake, transitions=True)).table("transitions", each).to_pylist()
        for each in (FIRST, second())
    ]
    apart: dict[tuple[int, str], Any] = {}
    first: dict[tuple[int, str], tuple[str | None, int]] = {}
    for partition in range(len(worlds())):
        numbers, states = order(partition), ({}, {})  # type: tuple[Any, tuple[dict[str, str], dict[str, str]]]
        by_number: dict[int, list[tuple[int, Any]]] = {}
        for side, changes in enumerate(told):
            for each in changes:
                if each["partition"] == partition:
                    number = numbers[each["topic"] or "", each["offset"]]
                    by_number.setdefault(number, []).append((side, each))
        for number in sorted(by_number):
            for side, each in by_number[number]:
                states[side][each["key"]] = each["after"]
            for key in {*states[0], *states[1]}:
                if states[0].get(key) != states[1].get(key):
                    place = by_number[number][0][1]
                    first.setdefault((partition, key), (place["topic"], place["offset"]))
        for key in {*states[0], *states[1]}:
            if states[0].get(key) != states[1].get(key):
                apart[partition, key] = states[0].get(key), states[1].get(key)
    return apart, first


def bronze(lake: Path, engine: str = "local", **more: Any) -> ReplayOptions:
    return ReplayOptions(engine=engine, source="bronze", lake=str(lake), **more)  # type: ignore[arg-type]


def shown(found: Comparison) -> tuple[Any, Any]:
    return (
        {(each.partition, each.key): (each.mine, each.theirs) for each in found.keys if each.apart},
        {(each.partition, each.key): (each.topic, each.offset) for each in found.keys},
    )


@pytest.mark.long
@pytest.mark.parametrize(("memory_bytes", "settle"), [(256 << 20, 10_000), (256 << 20, 1), (1_000, 2)])
def test_the_differences_are_those_of_a_model(
    lake: Path, memory_bytes: int, settle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_diff, "SETTLE_KEYS", settle)
    monkeypatch.setattr(folding, "TRANSACTION_RECORDS", 7)
    write(lake)
    found = compare(FIRST, second(), NO_KAFKA, bronze(lake), memory_bytes=memory_bytes)
    assert shown(found) == model(lake)
    assert found.apart > 4
    alone = [replay(each, NO_KAFKA, bronze(lake)) for each in (FIRST, second())]
    assert [(each.rows, each.other_rows) for each in found.partitions] == [
        (one.rows, two.rows) for one, two in zip(alone[0].partitions, alone[1].partitions, strict=True)
    ]
    assert [each.equal for each in found.partitions] == [
        one.digest == two.digest for one, two in zip(alone[0].partitions, alone[1].partitions, strict=True)
    ]


@pytest.mark.variant
def test_spark_finds_the_same(spark: SparkSession, lake: Path) -> None:
    write(lake)
    found = compare(FIRST, second(), NO_KAFKA, bronze(lake, "spark"))
    assert found == replace(compare(FIRST, second(), NO_KAFKA, bronze(lake)), engine="spark")


@pytest.mark.long
def test_a_version_is_equal_to_itself(lake: Path) -> None:
    write(lake)
    found = compare(FIRST, replace(FIRST, version=2), NO_KAFKA, bronze(lake))
    assert (found.equal, found.keys) == (True, ())


@pytest.mark.long
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_of_many_keys_the_earliest_are_listed_and_all_are_counted(lake: Path, limit: int) -> None:
    write(lake)
    every = compare(FIRST, second(), NO_KAFKA, bronze(lake))
    found = compare(FIRST, second(), NO_KAFKA, bronze(lake), limit_keys=limit)
    assert (found.partitions, found.fields) == (every.partitions, every.fields)
    assert (found.left_out, every.left_out) == (len(every.keys) - len(found.keys), 0)
    assert found.left_out
    for each in found.partitions:
        numbers = order(each.partition)
        keys = [key for key in every.keys if key.partition == each.partition]
        keys.sort(key=lambda key: (not key.apart, numbers[key.topic or "", key.offset], key.key))
        told = [key for key in found.keys if key.partition == each.partition]
        assert sorted(told, key=keys.index) == keys[:limit]


def test_other_sources_are_refused(lake: Path) -> None:
    sources = [*(FIRST.on or {}).items()]
    turned = replace(FIRST, on=dict(reversed(sources)))
    with pytest.raises(ConfigError, match=r"folds north, east \(on=\), and seen folds east, north"):
        compare(FIRST, turned, NO_KAFKA, bronze(lake))
    assert isinstance(sources[0][0], Source)
