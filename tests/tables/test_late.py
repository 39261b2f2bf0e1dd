"""A partition reports how many records its windows have found late, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast import Internal, Json
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.origins import Mark, mark_headers, record_header
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.streams import Tumbling, Windowed
from tests.core.streams.paces import Fare, at_of
from tests.tables.test_partition import opened

FARES = Internal("by", Json(Fare), time=at_of)


def test_late_records_are_counted_by_their_cause(tmp_path: Path) -> None:
    hours: Windowed[Fare, int] = Windowed(
        name="hours",
        source=FARES,
        by=lambda fare: fare.driver,
        window=Tumbling("100ms"),
        fold=lambda count, fare: (count or 0) + 1,
        row=int,
    )
    part = opened(tmp_path, processor=hours)
    assert part.late is None, "nothing is folded here"
    folder: Folder[Any] = Folder(hours, DictStore())
    part.owner._folder = folder
    assert part.late == (0, 0)

    def record(origin: int, at_ms: int, before_ms: int) -> tuple[bytes | None, Any]:
        told = record_header(origin, before_ms, max(at_ms, before_ms))
        return msgspec.json.encode(Fare("a", at_ms, 0)), (told,)

    lots = [
        (None, mark_headers(Mark(1, 10, True, 2))),
        record(0, 250, 0),
        record(0, 90, 250),  # late by its own origin
        record(1, 80, 10),  # only because origin 1 had let go
        record(1, 70, 80),
    ]
    told = {
        "value": [value for value, _ in lots],
        "headers": [headers for _, headers in lots],
        "partition": [0] * len(lots),
    }
    folder.fold([Batch(range(len(lots)), [1] * len(lots), tuple(told[each] for each in hours.columns))])
    folder.commit()
    assert part.late == (1, 2)
