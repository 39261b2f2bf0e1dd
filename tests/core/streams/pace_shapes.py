"""Applications for schedules: windows and joins downstream of steps of all kinds, each with an oracle that
sees each source's logs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Literal

import msgspec

from holdfast import Emit, Internal, Json, Rows, Source, Stream
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.streams import Branch, Filter, JoinWithin, Map, Merge, Rekey, Windowed, final, windows_of
from tests.core.streams.pace_world import World, by_kind
from tests.core.streams.paces import Fare, at_of, source_logs, timely
from tests.core.streams.windowing.test_windows_at_any_pace import KINDS, RESULTS, Found, Numbers, add

Logs = Mapping[str, Sequence[Sequence[Fare]]]
Comes = Callable[[Fare], bool]
How = Literal["inner", "left", "outer"]
Pair = tuple[int | None, int | None]
PAIRS: Stream[Pair] = Stream("pairs", Json(Pair))
BEFORE, AFTER, GRACE = 15, 30, 20
DONE = "windows-or-pairs"
"""The name of the processor that gives results."""
Steps = list[Processor[Any, Any]]


def _driver(fare: Fare) -> str:
    return fare.driver


def _parity(fare: Fare) -> str:
    return "even" if fare.number % 2 else "odd"


def _same(fare: Fare) -> Fare:
    return fare


def _is_even(fare: Fare) -> bool:
    return fare.number % 2 == 0


def _is_odd(fare: Fare) -> bool:
    return fare.number % 2 == 1


def _not_third(fare: Fare) -> bool:
    return fare.number % 3 != 0


def _all(fare: Fare) -> bool:
    return True


def source_of(topic: str) -> Source[Fare]:
    return Source(topic, Json(Fare), time=at_of)


# -- what lies before the results


@dataclass(frozen=True, slots=True)
class Side:
    """The input of windows, or of one side of a join: through *steps*, from *topics*, with the records of
    *comes*.
    """

    steps: Steps
    source: Source[Fare]
    topics: tuple[str, ...]
    comes: Comes = _all
    is_raw: bool = False


def raw(name: str, version: int) -> Side:
    return Side([], source_of(name), (name,), is_raw=True)


def rekeyed(name: str, version: int) -> Side:
    step = Rekey(name=f"{name}-by", source=source_of(name), by=_driver, version=version)
    return Side([step], _read(step), (name,))


def chained(name: str, version: int) -> Side:
    """Two re-keys, with steps between that keep partitions."""
    first = Rekey(name=f"{name}-by", source=source_of(name), by=_parity, version=version)
    same = Map(name=f"{name}-map", source=_read(first), each=_same, serde=Json(Fare), version=version)
    some = Filter(name=f"{name}-some", source=_read(same), keep=_not_third, version=version)
    again = Rekey(name=f"{name}-again", source=_read(some), by=_driver, version=version)
    return Side([first, same, some, again], _read(again), (name,), _not_third)


def merged(name: str, version: int) -> Side:
    """Two sources, merged as they are and then re-keyed."""
    topics = f"{name}-one", f"{name}-two"
    both = Merge(name=f"{name}-both", sources=[*map(source_of, topics)], version=version)
    by = Rekey(name=f"{name}-by", source=_read(both), by=_driver, version=version)
    return Side([both, by], _read(by), topics)


def branched(name: str, version: int) -> Side:
    """Branches of a re-keyed source, of which one is mapped, merged again."""
    by = Rekey(name=f"{name}-by", source=source_of(name), by=_driver, version=version)
    into: Branch[Fare] = Branch(
        name=f"{name}-into", source=_read(by), into={"even": _is_even, "odd": _is_odd}, version=version
    )
    even = Map(name=f"{name}-even", source=_of(into["even"]), each=_same, serde=Json(Fare), version=version)
    back = Merge(name=f"{name}-back", sources=[_read(even), _of(into["odd"])], version=version)
    return Side([by, into, even, back], _read(back), (name,))


def mixed(name: str, version: int) -> Side:
    """One source after a re-key and one that no step writes, merged and re-keyed."""
    topics = f"{name}-one", f"{name}-two"
    by = Rekey(name=f"{name}-by", source=source_of(topics[0]), by=_parity, version=version)
    both = Merge(name=f"{name}-both", sources=[_read(by), source_of(topics[1])], version=version)
    again = Rekey(name=f"{name}-again", source=_read(both), by=_driver, version=version)
    return Side([by, both, again], _read(again), topics)


def counted(name: str, version: int) -> Side:
    """A fold of rows that sends on what it counts."""
    count = _counting(f"{name}-count", version, source_of(name))
    return Side([count], _of(count.emits[0]), (name,), _not_third)


def recounted(name: str, version: int) -> Side:
    """Such folds of a re-keyed source: one that reads another source besides, and one after it."""
    topics = f"{name}-one", f"{name}-two"
    by = Rekey(name=f"{name}-by", source=source_of(topics[0]), by=_parity, version=version)
    both = _counting(f"{name}-both", version, _read(by), source_of(topics[1]))
    again = _counting(f"{name}-again", version, _of(both.emits[0]))
    return Side([by, both, again], _of(again.emits[0]), topics, _not_third)


def _counting(name: str, version: int, *sources: Source[Fare]) -> Processor[Any, int]:
    to: Internal[Fare] = Internal(name, Json(Fare), version=version, time=at_of)

    def fold(rows: Rows[int], fare: Fare, at_ms: int) -> Iterator[Emit]:
        rows[fare.driver] = rows.get(fare.driver, 0) + 1
        if _not_third(fare):
            yield to.emit(fare.driver, fare)

    more: Any = (
        {"source": sources[0], "fold": fold} if len(sources) == 1 else {"on": dict.fromkeys(sources, fold)}
    )
    return Processor(name=name, row=int, emits=(to,), version=version, **more)


def _read(step: Any) -> Source[Fare]:
    return Source(step.to, Json(Fare), time=at_of)


def _of(stream: Any) -> Source[Fare]:
    return Source(stream, Json(Fare), time=at_of)


SIDES: dict[str, Callable[[str, int], Side]] = {
    each.__name__: each for each in (raw, rekeyed, chained, merged, branched, mixed)
}
STEPS = tuple(name for name in SIDES if name != "raw")
FOLDS: dict[str, Callable[[str, int], Side]] = {each.__name__: each for each in (counted, recounted)}


def apart(name: str, version: int) -> tuple[Side, Side]:
    """Both branches of one step, as the sides of a join."""
    by = Rekey(name=f"{name}-by", source=source_of(name), by=_driver, version=version)
    into: Branch[Fare] = Branch(
        name=f"{name}-into", source=_read(by), into={"even": _is_even, "odd": _is_odd}, version=version
    )
    return (
        Side([by, into], _of(into["even"]), (name,), _is_even),
        Side([], _of(into["odd"]), (name,), _is_odd),
    )


# -- windows


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of *kind* downstream of *side*."""

    kind: str
    side: str

    def __str__(self) -> str:
        return f"{self.kind} behind {self.side}"

    @cache  # noqa: B019  there are few, and to declare them takes long
    def sides(self, version: int) -> tuple[Side, ...]:
        return ((SIDES | FOLDS)[self.side]("fares", version),)

    @cache  # noqa: B019
    def processors(self, version: int = 1, *, done: int = 1) -> Steps:
        (side,) = self.sides(version)
        window, _, merge = KINDS[self.kind]
        windows: Windowed[Fare, Numbers] = Windowed(
            name=DONE,
            source=side.source,
            by=_driver,
            window=window,
            merge=merge,
            fold=add,
            row=Numbers,
            emit=final(RESULTS),
            version=done,
        )
        return [*side.steps, windows]

    def check(self, world: World, logs: Logs, *, idle: bool) -> None:
        """Hold what the windows hold, have sent and have counted as late against the oracle."""
        (side,) = self.sides(1)
        mine = [log for topic in side.topics for log in logs[topic]]
        wanted: Found = KINDS[self.kind][1](mine, side.comes)
        rows = world.rows(DONE)
        found = sorted(
            (each.key, each.start_ms, each.end_ms, each.value)
            for of in rows
            for each in windows_of(of.items())
        )
        sent = [msgspec.json.decode(each or b"") for each in world.sent(DONE, str(RESULTS))]
        done = [(each["key"], each["start_ms"], each["end_ms"], tuple(each["value"])) for each in sent]
        assert len({*done}) == len(done), "each is final once"
        assert {*done} <= {*found}, "what is final stays so"
        kinds = by_kind(rows)
        coming = sum(side.comes(fare) for log in mine for fare in log)
        late = coming - len({number for *_, numbers in wanted for number in numbers})
        assert sum(row.late for row in kinds["OriginRow"]) == late, "what is late follows from its own log"
        after_idle = sum(row.late_after_idle for row in kinds["OriginRow"])
        taken = len({number for *_, numbers in found for number in numbers})
        assert taken + late + after_idle == coming, "each record is in a window, or counted"
        if not idle:
            assert found == wanted
            assert not after_idle
        elif not after_idle and not any(row.partly_late for row in kinds["StreamRow"]):
            assert found == wanted


# -- joins


@dataclass(frozen=True, slots=True)
class Joined:
    """A join within an interval of two sides, or of both branches of one step."""

    left: str
    right: str
    how: How

    def __str__(self) -> str:
        return f"{self.how} join of {self.left} and {self.right}"

    @cache  # noqa: B019  there are few, and to declare them takes long
    def sides(self, version: int) -> tuple[Side, Side]:
        if self.left == "apart":
            return apart("fares", version)
        sides = SIDES | FOLDS
        return sides[self.left]("left", version), sides[self.right]("right", version)

    @cache  # noqa: B019
    def processors(self, version: int = 1, *, done: int = 1) -> Steps:
        left, right = self.sides(version)
        joined: JoinWithin[Fare, Fare, Pair] = JoinWithin(
            name=DONE,
            left=left.source,
            right=right.source,
            join=_pair,
            to=PAIRS,
            before=BEFORE,
            after=AFTER,
            grace=GRACE,
            how=self.how,
            version=done,
        )
        return [*left.steps, *right.steps, joined]

    def check(self, world: World, logs: Logs, *, idle: bool) -> None:
        """Hold the pairs, the records alone and the late ones against the oracle."""
        left, right = (_timely(side, logs) for side in self.sides(1))
        wanted = Counter[Pair](
            (one.number, other.number)
            for one in left
            for other in right
            if one.driver == other.driver and -BEFORE <= other.at_ms - one.at_ms <= AFTER
        )
        met = {number for number, _ in wanted}, {number for _, number in wanted}
        if self.how != "inner":
            wanted.update((each.number, None) for each in left if each.number not in met[0])
        if self.how == "outer":
            wanted.update((None, each.number) for each in right if each.number not in met[1])
        found = Counter[Pair](
            (pair[0], pair[1])
            for each in world.sent(DONE, str(PAIRS))
            if (pair := msgspec.json.decode(each or b""))
        )
        rows = world.rows(DONE)
        streams = by_kind(rows)["JoinStreamRow"]
        late = sum(_coming(side, logs) for side in self.sides(1)) - len(left) - len(right)
        after_idle = sum(row.late_after_idle for row in streams)
        assert sum(row.late for row in streams) - after_idle == late, "what is late follows from its own log"
        kept = any(key.startswith(("l/", "r/")) for of in rows for key in of)
        assert self.how == "inner" or not kept, "kept for ever"
        partly = sum(row.partly_late for row in streams)
        if not idle:
            assert not after_idle
            assert not partly
        if not after_idle and not partly:
            assert found == wanted


def _pair(left: Fare | None, right: Fare | None) -> Pair:
    return None if left is None else left.number, None if right is None else right.number


def _timely(side: Side, logs: Logs) -> list[Fare]:
    mine = [log for topic in side.topics for log in logs[topic]]
    return [*filter(side.comes, timely(mine, lambda at, highest: at + GRACE < highest))]


def _coming(side: Side, logs: Logs) -> int:
    return sum(side.comes(fare) for topic in side.topics for log in logs[topic] for fare in log)


# -- any of them

Shape = Windows | Joined


def any_shape(rng: Random) -> Shape:
    if rng.random() < 0.5:
        return Windows(rng.choice([*KINDS]), rng.choice(STEPS))
    how: How = rng.choice(["inner", "left", "outer"])
    left = rng.choice([*SIDES, "apart"])
    return Joined(left, "apart" if left == "apart" else rng.choice([*SIDES]), how)


def any_of_folds(rng: Random) -> Shape:
    """Return windows downstream of folds that emit, or a join of one such side."""
    if rng.random() < 0.5:
        return Windows(rng.choice([*KINDS]), rng.choice([*FOLDS]))
    sides = [rng.choice([*FOLDS]), rng.choice([*SIDES, *FOLDS])]
    rng.shuffle(sides)
    how: How = rng.choice(["inner", "left", "outer"])
    left, right = sides
    return Joined(left, right, how)


def any_logs(rng: Random, shape: Shape, partitions: int) -> dict[str, list[list[Fare]]]:
    """Return the logs of the shape's sources: numbers distinguish records, and records that are joined as
    they are lie in the partition of their driver.
    """
    records, disorder = rng.choice([3, 15]), rng.choice([20, 250])
    found: dict[str, list[list[Fare]]] = {}
    for side in shape.sides(1):
        for topic in side.topics:
            if topic not in found:
                found[topic] = _numbered(source_logs(rng, partitions, records, disorder), len(found))
            if side.is_raw:
                found[topic] = _by_driver(found[topic])
    return found


def _numbered(logs: Sequence[Sequence[Fare]], topic: int) -> list[list[Fare]]:
    return [
        [msgspec.structs.replace(each, number=each.number + 100_000 * topic) for each in log] for log in logs
    ]


def _by_driver(logs: Sequence[Sequence[Fare]]) -> list[list[Fare]]:
    found: list[list[Fare]] = [[] for _ in logs]
    for log in logs:
        for each in log:
            found[of_key(each.driver.encode(), len(logs))].append(each)
    return found
