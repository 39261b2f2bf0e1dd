"""Emits compared as they are read from a store, in memory or in a file, against a comparison that has them
all in memory.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.pipeline.folds import spilling
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.verify import stored_emits
from holdfast.pipeline.verify.emit_groups import compared, compared_compacted
from holdfast.pipeline.verify.stored_emits import (
    ANYWHERE,
    EmitContent,
    EmitPlace,
    EmitRun,
    StoredEmit,
    StoredEmits,
    body_of,
)
from tests.pipeline.verify.emits_in_memory import ListedGroup, compared_in_memory

Placed = list[tuple[EmitPlace, StoredEmit]]
KEYS = (None, b"", b"a", b"aa", b"b")


def place_of(key: bytes | None, partition: int) -> EmitPlace:
    return EmitPlace(ANYWHERE if key is None else partition, key)


def some_emits(chance: random.Random) -> tuple[Placed, Placed]:
    """Return found and expected emits: those emitted, and then with a few faults."""
    expected, emitted = Placed(), list[tuple[EmitPlace, bytes]]()
    for source in range(chance.choice((1, 1, 2))):
        count = chance.randrange(12)
        due = count - chance.choice((0, 0, 1, 3))
        for number in range(count):
            place = place_of(chance.choice(KEYS), chance.randrange(2))
            body = body_of(b"%d" % chance.randrange(3), ())
            expected.append((place, StoredEmit(source, number, number < due, body)))
            if number < due or chance.random() < 0.5:
                emitted.append((place, body))
    found = [
        (chance.choice(expected)[0], body_of(b"older", ())) for _ in range(chance.randrange(3)) if expected
    ]
    found += [each for each in emitted if chance.random() > 0.05]
    if chance.random() < 0.3:
        found.insert(
            chance.randrange(len(found) + 1),
            (place_of(chance.choice(KEYS), 0), body_of(b"%d" % chance.randrange(4), ())),
        )
    if chance.random() < 0.2:
        chance.shuffle(found)
    found_at = [
        (place, StoredEmit(max(place.partition, 0), offset, False, body))
        for offset, (place, body) in enumerate(found)
    ]
    return found_at, expected


def listed(found: Placed, expected: Placed) -> dict[EmitPlace, ListedGroup]:
    places = {place for place, _ in (*found, *expected)}

    def at(place: EmitPlace, side: Placed) -> list[StoredEmit]:
        return sorted(each for of, each in side if of == place)

    return {each: ListedGroup(at(each, found), at(each, expected), each.key is not None) for each in places}


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
@pytest.mark.parametrize("held_bytes", [0, 500, 1 << 20])
def test_it_is_the_result_of_a_look_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch, held_bytes: int, limit_bytes: int
) -> None:
    monkeypatch.setattr(stored_emits, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(stored_emits, "INDEX_ROWS", 3)
    monkeypatch.setattr(spilling, "PAGE_ROWS", 4)
    differing = 0
    for seed in range(60):
        chance = random.Random(seed)
        found, expected = some_emits(chance)
        wanted = listed(found, expected)
        with closing(SpillingStore(limit_bytes)) as store:
            emits, other = StoredEmits(store, 1), StoredEmits(store, 2)
            other.find([(EmitPlace(0, b"a"), StoredEmit(0, 0, False, body_of(b"nobody looks here", ())))])
            for side, take in ((found, emits.find), (expected, emits.expect)):
                for start in range(0, len(side), 5):
                    take(side[start : start + 5])
            assert (emits.found, emits.expected) == (len(found), len(expected))
            assert store.has_spilled is not bool(limit_bytes)
            for exact, is_cut in ((True, False), (True, True), (False, False), (False, True)):
                said = {each.place: compared(each, exact=exact, is_cut=is_cut) for each in emits.groups()}
                assert said == {
                    place: compared_in_memory(each, exact=exact, is_cut=is_cut)
                    for place, each in wanted.items()
                }, (seed, exact, is_cut)
                differing += any(apart for apart, _ in said.values())
    assert 40 < differing < 200, "some differ, and some do not"


SAME, OTHER, GONE = body_of(b"same", ()), body_of(b"other", ()), body_of(None, ())


@pytest.mark.parametrize("held_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    ("found", "expected", "due", "exact", "apart"),
    [
        ([OTHER], [SAME, OTHER], 2, True, None),
        ([SAME, OTHER], [SAME, SAME, OTHER], 3, True, None),
        ([], [SAME, GONE], 2, True, None),
        ([], [SAME, SAME], 1, True, (None, 0)),
        ([], [GONE, SAME], 2, True, (None, 1)),
        ([], [SAME, OTHER], 0, True, None),
        ([], [], 0, True, None),
        ([SAME], [SAME, OTHER], 1, True, None),
        ([OTHER], [SAME, OTHER], 1, True, None),
        ([SAME], [SAME, OTHER], 2, True, (0, 1)),
        ([OTHER, SAME], [SAME, OTHER], 1, True, (1, 0)),
        ([OTHER, SAME, OTHER], [SAME, OTHER], 2, True, (1, None)),
        ([GONE], [SAME], 1, True, (0, 0)),
        ([OTHER, SAME], [SAME], 1, False, None),
        ([SAME, OTHER], [SAME], 1, False, (1, 0)),
        ([SAME, OTHER], [], 0, False, None),
        ([], [SAME], 1, False, (None, 0)),
    ],
)
def test_of_a_compacted_topic_the_rest_is_in_order_and_the_last_exists(
    monkeypatch: pytest.MonkeyPatch,
    found: list[bytes],
    expected: list[bytes],
    due: int,
    exact: bool,
    apart: tuple[int | None, int | None] | None,
    held_bytes: int,
) -> None:
    monkeypatch.setattr(stored_emits, "HELD_BYTES", held_bytes)
    place = place_of(b"k", 0)
    with closing(SpillingStore()) as store:
        emits = StoredEmits(store, 0)
        emits.find((place, StoredEmit(0, at, False, body)) for at, body in enumerate(found))
        emits.expect((place, StoredEmit(0, at, at < due, body)) for at, body in enumerate(expected))
        told = [
            tuple(None if each is None else each.number for each in one)
            for group in emits.groups()
            for one in compared_compacted(group, exact=exact)[0]
        ]
    assert told == ([] if apart is None else [apart])


COUNT, VALUE = 12_000, b"v" * 200


def one_key(key: bytes | None) -> Iterator[Placed]:
    """Yield many emits of one key, in parts."""
    for start in range(0, COUNT, 500):
        yield [
            (place_of(key, 0), StoredEmit(0, at, True, body_of(VALUE + b"%d" % at, ())))
            for at in range(start, start + 500)
        ]


@pytest.mark.long
@pytest.mark.parametrize("key", [None, b"hot"])
@pytest.mark.parametrize("exact", [True, False])
def test_of_many_emits_of_one_key_few_are_in_memory(
    monkeypatch: pytest.MonkeyPatch, key: bytes | None, exact: bool
) -> None:
    monkeypatch.setattr(stored_emits, "HELD_BYTES", 100_000)
    monkeypatch.setattr(stored_emits, "INDEX_ROWS", 500)
    monkeypatch.setattr(spilling, "PAGE_ROWS", 100)
    with closing(SpillingStore(100_000)) as store:
        emits = StoredEmits(store, 0)
        tracemalloc.start()
        try:
            for part in one_key(key):
                emits.find(part)
                emits.expect(part)
            (told,) = [compared(each, exact=exact, is_cut=False) for each in emits.groups()]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert store.has_spilled
    assert told == ([], 0)
    assert peak < COUNT * len(VALUE) / 2, "each side alone is larger"


@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
def test_many_equal_emits_are_read_a_few_times_however_far_they_go_before_they_differ(
    monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """Every long suffix of the found emits equals the expected ones up to the middle, where one record
    differs.
    """
    count, read = 2_000, 0
    scan = EmitRun.scan

    def counted(run: EmitRun, part: int, number: int) -> Iterator[StoredEmit]:
        nonlocal read
        for each in scan(run, part, number):
            read += 1
            yield each

    monkeypatch.setattr(stored_emits, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(EmitRun, "scan", counted)
    same, place = body_of(b"same", ()), place_of(b"k", 0)
    with closing(SpillingStore(0)) as store:
        emits = StoredEmits(store, 0)
        emits.find((place, StoredEmit(0, at, False, same)) for at in range(count))
        bodies = [same] * count
        bodies[count // 2] = body_of(b"other", ())
        emits.expect((place, StoredEmit(0, at, False, body)) for at, body in enumerate(bodies))
        (told,) = [compared(each, exact=False, is_cut=False) for each in emits.groups()]
    assert told == ([], count // 2), "the others may be of an earlier version, and none is due"
    assert read <= 6 * count


def test_a_stored_emit_is_read_as_it_was() -> None:
    headers = (("at", b"1"), ("none", None))
    for value, of in ((None, ()), (b"", headers), (b"v", ())):
        told = StoredEmit(0, 0, True, body_of(value, of)).content(b"k")
        assert told == EmitContent(b"k", value, of)
    assert body_of(b"v", None) == body_of(b"v", [])
    assert body_of(b"", ()) != body_of(None, ())
