"""Headers that steps alone write mean nothing on records of strangers, in any topic that no step writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import FoldWith, Internal, Json, Processor, Source, Stream
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.origins import (
    LIMIT_ORIGINS,
    MARK,
    ORIGIN,
    Mark,
    mark_headers,
    quickly_told_of,
    record_header,
    told_of,
)
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.errors import DecodeError
from holdfast.streams import (
    Branch,
    Filter,
    JoinWithin,
    Map,
    Merge,
    Rekey,
    Tumbling,
    Windowed,
    WindowResult,
    dedupe,
    final,
)
from holdfast.testing import Topology
from tests.core.streams.paces import FARES, Fare, at_of

FORGED = {
    "origin": record_header(0, 10**14, 10**14),
    "malformed origin": (ORIGIN, b"x"),
    "origin without value": (ORIGIN, None),
    "mark": mark_headers(Mark(0, 10**14, True, 1))[0],
    "mark of many origins": mark_headers(Mark(0, 5, True, LIMIT_ORIGINS))[0],
    "malformed mark": (MARK, b"x"),
}
UNTIMED = Source("untimed", Json(Fare))
OTHERS = Source("others", Json(Fare), time=at_of)


def always(fare: Fare) -> bool:
    return True


STEPS: dict[str, tuple[Source[Fare], Callable[[], Any]]] = {
    "rekey": (FARES, lambda: Rekey(name="step", source=FARES, by=lambda fare: fare.driver)),
    "rekey untimed": (UNTIMED, lambda: Rekey(name="step", source=UNTIMED, by=lambda fare: fare.driver)),
    "pairs": (
        FARES,
        lambda: Rekey(
            name="step",
            source=FARES,
            pairs=lambda fare: [(fare.driver, fare)],
            serde=Json(Fare),
            time=at_of,
        ),
    ),
    "filter": (FARES, lambda: Filter(name="step", source=FARES, keep=always)),
    "filter untimed": (UNTIMED, lambda: Filter(name="step", source=UNTIMED, keep=always)),
    "map": (
        FARES,
        lambda: Map(name="step", source=FARES, each=lambda fare: fare, serde=Json(Fare), time=at_of),
    ),
    "branch": (FARES, lambda: Branch(name="step", source=FARES, into={"all": always})),
    "branch beside another topic": (
        FARES,
        lambda: Branch(
            name="step",
            source=FARES,
            into={"all": always, Stream("own", Json(Fare)): always},
        ),
    ),
    "merge": (FARES, lambda: Merge(name="step", sources=[FARES, OTHERS])),
    "merge untimed": (
        UNTIMED,
        lambda: Merge(name="step", sources=[UNTIMED, Source("others", Json(Fare))]),
    ),
}
Results = tuple[list[tuple[int, int]], int]


def results(source: Source[Fare], step: Any, header: tuple[str, bytes | None]) -> Results:
    """Return start and count of each closed window downstream of *step*, and how many records were late, if
    the third of seven records has *header* besides one of its own.
    """
    minutes: Windowed[Fare, int] = Windowed(
        name="minutes",
        source=Source(step.to, Json(Fare), time=at_of),
        by=lambda fare: fare.driver,
        window=Tumbling(1_000),
        fold=lambda count, fare: (count or 0) + 1,
        row=int,
        emit=final(Stream("minutes-done", Json(WindowResult[int]))),
        late="late",
    )
    with Topology([step, minutes], partitions=1) as topology:
        for number, at_ms in enumerate((100, 200, 250, 300, 400, 5_000, 9_000)):
            headers = (header, ("own", b"1")) if number == 2 else ()
            topology.pipe(source, Fare("a", at_ms, number), key="a", headers=headers)
        done = topology.values(Stream("minutes-done", Json(WindowResult[int])))
        assert not topology.refused
        own = [record.headers for record in topology.read(step.to) if record.value and record.headers]
        assert own == [(("own", b"1"),)]
        return [(each.start_ms, each.value) for _, each in done], len(topology.read("late"))


@pytest.mark.parametrize("header", FORGED)
@pytest.mark.parametrize("step", STEPS)
def test_a_strangers_headers_of_origins_in_a_source_are_not_believed(step: str, header: str) -> None:
    source, made = STEPS[step]
    assert results(source, made(), FORGED[header]) == ([(0, 5), (5_000, 1)], 0)


SENT = Internal("sent", Json(Fare), time=at_of)


def passing(rows: Any, fare: Fare, at_ms: int, headers: Any) -> Any:
    yield SENT.emit(fare.driver, fare, headers=headers)


def windows_of_late() -> Any:
    """Every record but the first, of the year 2001, is late."""
    return Windowed(
        name="step",
        source=UNTIMED,
        by=lambda fare: fare.driver,
        time=lambda fare: 10**12 if fare.number < 0 else fare.at_ms,
        window=Tumbling(1_000),
        fold=lambda count, fare: 1,
        row=int,
        late=SENT,
    )


def join_of_late() -> Any:
    times = [lambda fare: 10**12 if fare.number < 0 else fare.at_ms, at_of]
    left, right = (
        Source(name, Json(Fare), time=time) for name, time in zip(("untimed", "others"), times, strict=True)
    )
    return JoinWithin(
        name="step",
        left=left,
        right=right,
        join=lambda one, other: one,
        to=Stream("own", Json(Fare)),
        late=SENT,
    )


SENDERS: dict[str, Callable[[], Any]] = {
    "late of windows": windows_of_late,
    "late of a join": join_of_late,
    "dedupe untimed": lambda: dedupe(
        name="step", source=UNTIMED, to=SENT, key=lambda fare: f"{fare.number}", ttl="1h"
    ),
    "dedupe": lambda: dedupe(
        name="step",
        source=Source("untimed", Json(Fare), time=at_of),
        to=SENT,
        key=lambda fare: f"{fare.number}",
        ttl="1h",
    ),
    "fold untimed": lambda: Processor(
        name="step", on={UNTIMED: FoldWith(passing, ("headers",))}, row=int, emits=(SENT,)
    ),
    "fold": lambda: Processor(
        name="step",
        on={Source("untimed", Json(Fare), time=at_of): FoldWith(passing, ("headers",))},
        row=int,
        emits=(SENT,),
    ),
}


@pytest.mark.parametrize("header", FORGED)
@pytest.mark.parametrize("sender", SENDERS)
def test_a_strangers_headers_are_not_sent_on_to_readers_who_would_believe_them(
    sender: str, header: str
) -> None:
    minutes: Windowed[Fare, int] = Windowed(
        name="minutes",
        source=Source(SENT, Json(Fare)),
        by=lambda fare: fare.driver,
        window=Tumbling(1_000),
        fold=lambda count, fare: (count or 0) + 1,
        row=int,
        emit=final(Stream("minutes-done", Json(WindowResult[int]))),
        late="too-late",
    )
    with Topology([SENDERS[sender](), minutes], partitions=1) as topology:
        if sender.startswith("late"):
            topology.pipe("untimed", Fare("a", 0, -1), key="a")
        for number, at_ms in enumerate((100, 200, 250, 300, 400, 5_000, 9_000)):
            headers = (FORGED[header], ("own", b"1")) if number == 2 else ()
            topology.pipe("untimed", Fare("a", at_ms, number), key="a", headers=headers)
        done = topology.values(Stream("minutes-done", Json(WindowResult[int])))
        assert not topology.refused
        assert not topology.read("too-late")
        assert [(each.start_ms, each.value) for _, each in done] == [(0, 5), (5_000, 1)]


@pytest.mark.parametrize("header", FORGED)
def test_a_step_sends_the_same_record_by_record(header: str) -> None:
    """If one record of a transaction fails, all of them are folded one by one."""
    step = Rekey(name="step", source=FARES, by=lambda fare: fare.driver)
    values = [msgspec.json.encode(Fare("a", at_ms, 0)) for at_ms in (100, 250)]
    sent = []
    for broken in ([], [b"{"]):
        given = [*values, *broken]
        columns = (given, [b"a"] * len(given), [(FORGED[header],)] * len(given), [0] * len(given))
        changes = Folder(step, DictStore()).fold([Batch(range(len(given)), [1] * len(given), columns)])
        assert changes is not None
        assert len(changes.refused) == len(broken)
        sent.append(changes.emits)
    assert sent[0] == sent[1]
    assert len(sent[0]) == 2


@pytest.mark.parametrize("origin", [-1, -7, LIMIT_ORIGINS, 2**31 - 1])
def test_an_origin_that_no_topic_has_is_refused(origin: int) -> None:
    headers = (record_header(origin, 0, 100),)
    assert quickly_told_of(headers) is None
    with pytest.raises(DecodeError, match="header holdfast-origin is malformed: no step wrote it"):
        told_of(headers)
