"""Windows that fold records of a step in runs have the same rows, results and positions as one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Json, Source, Stream
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.event_times import FIRST_APPEND_MS
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.origins import Mark, mark_headers, record_header
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.streams.windowing import fold as folds
from holdfast.core.streams.windowing import runs
from holdfast.streams import Hopping, Map, Session, Sliding, Tumbling, Windowed, final, updates
from tests.core.streams.paces import FARES, Fare, at_of

Headers = tuple[tuple[str, bytes | None], ...]
Record = tuple[bytes | None, Headers, int]
"""Value, headers, append time."""
STEP = Map(name="step", source=FARES, each=lambda fare: fare, serde=Json(Fare), time=at_of)
BY_STEP = Source(STEP.to, Json(Fare), time=at_of)


def add(total: int | None, fare: Fare) -> int:
    if fare.number == 66:
        raise ValueError("refused")
    return (total or 0) * 3 % 1_000_003 + fare.number


def declared(**other: Any) -> Windowed[Fare, int]:
    given_: dict[str, Any] = {
        "window": Tumbling("10ms", grace="5ms"),
        "emit": final(Stream("done", Json(Any))),
        "retention": "4ms",
    }
    common: dict[str, Any] = {"by": lambda fare: fare.driver, "fold": add, "row": int}
    return Windowed(name="windows", source=BY_STEP, **common, **given_ | other)


KINDS: dict[str, Callable[[], Windowed[Fare, int]]] = {
    "tumbling": declared,
    "late": lambda: declared(late="late"),
    "updates": lambda: declared(emit=updates("changes")),
    "spaced updates": lambda: declared(emit=updates("changes", every="3ms")),
    "no emits": lambda: declared(emit=None),
    "hopping": lambda: declared(window=Hopping("12ms", every="4ms", grace="3ms"), late="late"),
    "sliding": lambda: declared(window=Sliding("6ms", grace="5ms")),
    "sessions": lambda: declared(window=Session("4ms", grace="5ms"), merge=lambda one, other: one + other),
}

Sent = tuple[int, str, int, int]
"""An origin, a driver, event time and cents."""
SENT = st.tuples(
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from("ab"),
    st.integers(0, 60),
    st.sampled_from([1, 2, 3, 3, 5, 66]),
)


def log(sent: Sequence[Sent | Mark | bytes]) -> list[Record]:
    """Return the records that steps write for what their partitions read, marks and malformed values."""
    records: list[Record] = []
    highest: dict[int, int] = {}
    for number, each in enumerate(sent):
        append_ms = FIRST_APPEND_MS + number
        if isinstance(each, Mark):
            records.append((None, mark_headers(each), append_ms))
            highest[each.origin] = max(each.watermark_ms, highest.get(each.origin, -1))
        elif isinstance(each, bytes):
            records.append((each, (), append_ms))
        else:
            origin, driver, at_ms, cents = each
            before_ms = highest.get(origin, -1)
            highest[origin] = max(before_ms, at_ms)
            value = Json(Fare).encode(Fare(driver, at_ms, cents))
            records.append((value, (record_header(origin, before_ms, highest[origin]),), append_ms))
    return records


def outcome(
    windows: Windowed[Fare, int], records: Sequence[Record], cuts: Sequence[int], *, in_runs: bool
) -> list[Any]:
    """Return the changes of each transaction, refused records included."""
    store, found = DictStore(), list[Any]()
    folder: Folder[Any] = Folder(windows, store)
    if not in_runs:
        folder._fold_all = None
    at = 0
    for cut in (*cuts, len(records)):
        part = records[at : max(at, cut)]
        if not part:
            continue
        batch = Batch(
            range(at, at + len(part)), [append_ms for _, _, append_ms in part], columns_of(windows, part)
        )
        changes = folder.fold([batch])
        assert isinstance(changes, Changes)
        found.append(
            (sorted(changes.puts), [*changes.emits], changes.marker, changes.refused, changes.records)
        )
        store.apply(changes.puts)
        folder.commit()
        at += len(part)
    return found


def columns_of(windows: Windowed[Fare, int], part: Sequence[Record]) -> tuple[list[Any], ...]:
    named: dict[str, list[Any]] = {
        "value": [value for value, _, _ in part],
        "key": [b"k"] * len(part),
        "headers": [headers for _, headers, _ in part],
        "partition": [0] * len(part),
    }
    return tuple(named[name] for name in windows.columns)


def ramp(records: int) -> list[Sent]:
    """Return records in order, of one origin: a run."""
    return [(0, "ab"[at % 2], at // 2, at % 5) for at in range(records)]


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(
        st.one_of(
            SENT,
            SENT,
            SENT,
            st.builds(Mark, st.integers(0, 1), st.integers(0, 40), st.booleans(), st.just(2)),
            st.just(b"{"),
            st.integers(4, 24).map(ramp),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 60), max_size=2).map(sorted),
)
def test_a_run_changes_the_same_as_one_record_after_another(
    kind: str, sent: list[Any], cuts: list[int]
) -> None:
    flat = [one for each in sent for one in (each if isinstance(each, list) else [each])]
    records = log([Mark(1, 0, False, 2), *flat])
    windows = KINDS[kind]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "RUN_RECORDS", 3)
        patch.setattr(runs, "RUN_RECORDS", 3)
        found = outcome(windows, records, cuts, in_runs=True)
    assert found == outcome(windows, records, cuts, in_runs=False)


def test_records_of_one_origin_are_folded_in_a_run() -> None:
    """Else the test above would compare nothing."""
    windows, calls = declared(), 0
    one_by_one = windows._windows.by_origin
    folder: Folder[Any] = Folder(windows, DictStore())

    def counted(*given_: Any) -> Any:
        nonlocal calls
        calls += 1
        return one_by_one(*given_)

    records = log([Mark(1, 1_000, False, 2), *((0, "a", 50, 1) for _ in range(200))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds.WindowFold, "by_origin", lambda self, *given_: counted(*given_))
        folder._step_records = 512
        folder.fold([Batch(range(201), [1] * 201, columns_of(windows, records))])
    assert calls <= 2 + runs.RUN_RECORDS, "the mark, the first record, and as many as a run needs"
