"""A record of a key with a long past looks at as few rows as one of another key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast import Json, Source, Stream
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.emitting import encode_json
from holdfast.streams import JoinStreamTable, Session, Windowed, final, updates

COUNT = 400


class At(msgspec.Struct, frozen=True):
    at: int
    name: str = "x"


STREAM, TABLE = (Source(name, Json(At), time=lambda each: each.at) for name in ("stream", "table"))
OUT = Stream("out", Json(list[str | None]))


class Looks:
    """Counts the rows that folds get and scan."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        get, scan = Rows.get, Rows.scan

        def counted(rows: Rows[Any], *asked: Any) -> Any:
            self.rows += 1
            return get(rows, *asked)

        def scanned(rows: Rows[Any], prefix: str = "", *, start: str = "") -> Iterator[Any]:
            for each in scan(rows, prefix, start=start):
                self.rows += 1
                yield each

        patch.setattr(Rows, "get", counted)
        patch.setattr(Rows, "scan", scanned)

    def of(self, work: Callable[[], object]) -> int:
        before = self.rows
        work()
        return self.rows - before


def session_fold(emit: Any) -> tuple[Callable[[int], list[Any]], DictStore]:
    sessions: Windowed[At, int] = Windowed(
        name="sessions",
        source="events",
        decode=STREAM.serde.decode,
        by=lambda event: event.name,
        time=lambda event: event.at,
        window=Session(5, grace="1d"),
        fold=lambda count, event: (count or 0) + 1,
        merge=lambda one, other: one + other,
        row=int,
        emit=emit,
    )
    store = DictStore()
    folder: Folder[Any] = Folder(sessions, store)
    offset = -1

    def fold(at: int) -> list[Any]:
        nonlocal offset
        offset += 1
        changes = folder.fold([Batch([offset], [offset], ([encode_json(At(at))], [0]))])
        assert changes is not None
        assert not changes.refused
        store.apply(changes.puts)
        folder.commit()
        return [*changes.emits]

    return fold, store


@pytest.mark.parametrize("emit", [final("out"), updates("out")])
def test_a_session_is_found_among_many_open_ones(emit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    fold, _ = session_fold(emit)
    looked = [looks.of(partial(fold, 10 * at)) for at in range(COUNT)]
    assert max(looked[10:]) <= 8, "each opens a session"
    between = [looks.of(partial(fold, 10 * at + 5)) for at in range(1, COUNT, 40)]
    assert max(between) <= 8, "each merges two"


def history_fold() -> tuple[Callable[..., list[Any]], DictStore]:
    joined = JoinStreamTable(
        name="joined",
        stream=STREAM,
        table=TABLE,
        join=lambda one, other: [one.name, other.name if other else None],
        to=OUT,
        how="left",
        history=10 * COUNT,
    )
    store = DictStore()
    folder: Folder[Any] = Folder(joined, store)
    merger, offsets = Merger(folder.marker), [-1, -1]

    def fold(source: int, at: int, name: str = "x") -> list[Any]:
        offsets[source] += 1
        now_ms = sum(offsets)
        merger.offer(source, Batch([offsets[source]], [now_ms], ([encode_json(At(at, name))], [b"hot"], [0])))
        changes = folder.fold(iter(lambda: merger.take((0, 0)), None))
        assert changes is not None
        assert not changes.refused
        store.apply(changes.puts)
        folder.commit()
        merger.settle(folder.marker)
        return [OUT.serde.decode(each.value) for each in changes.emits]

    return fold, store


@pytest.mark.long
def test_a_version_is_set_and_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    fold, store = history_fold()
    table, stream = 0, 1
    set_of = [looks.of(partial(fold, table, 10 * at, str(at))) for at in range(3 * COUNT)]
    assert max(set_of[10:]) <= 12, "the last ones drop one each"
    assert fold(stream, 10 * (3 * COUNT - 50) + 4) == [["x", str(3 * COUNT - 50)]], "looks all times up, once"
    found = [looks.of(partial(fold, stream, 10 * at)) for at in range(2 * COUNT + 10, 3 * COUNT, 40)]
    assert max(found) <= 6
    behind = [
        looks.of(partial(fold, table, 10 * at + 5, f"{at}b")) for at in range(2 * COUNT + 50, 3 * COUNT, 40)
    ]
    assert max(behind) <= 12, "a version between others"
    assert fold(stream, 10 * (2 * COUNT + 50) + 6) == [["x", f"{2 * COUNT + 50}b"]]
    sizes = [len(value) for key, value in store.everything() if b"hot" in key]
    assert len(sizes) > COUNT
    assert max(sizes) < 40, "no row grows with the number of versions"
