"""A copy of a global table that waits for what its fold needs, on a thread of a worker."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from holdfast.agents.globals.waiting import ThreadPause
from holdfast.clock import system_clock
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.patience import Waiting
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.merge.global_copies import GlobalCopy
from holdfast.core.engine.state.codec import ROW
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import GlobalsError, Later, StillWaitingError
from tests.support.patience import DEADLINE_S


class Registry:
    def __init__(self) -> None:
        self.away = 0

    def keep(self, rows: Rows[str], event: str, at_ms: int) -> None:
        rows["last"] = event
        rows["all"] = (rows.get("all") or "") + event
        if event == "n" and self.away:
            self.away -= 1
            raise Later("nobody answers", needs="the registry")


def copy_of(registry: Registry, timeout_s: float, pause: ThreadPause) -> tuple[GlobalCopy, list[Refused]]:
    refused: list[Refused] = []
    table: Global[str] = Global("names", Source("names", Text()), registry.keep, row=str)
    waiting = Waiting(timeout_s, system_clock.monotonic_s, pause)
    return GlobalCopy(table, None, lambda partition, each: refused.append(each), None, waiting), refused


NAMES = Batch([0, 1, 2], [5, 6, 7], ([b"a", b"n", b"b"],))


def test_a_copy_waits_says_why_and_refuses_nothing() -> None:
    registry, told, moved = Registry(), list[str](), list[None]()
    registry.away = 4
    copy, refused = copy_of(registry, 60, ThreadPause(told.append, lambda: moved.append(None)))
    before = copy.view()
    copy.apply(2, NAMES)
    assert (copy.vector, refused) == ((-1, -1, 2), [])
    assert copy.view().get(ROW + b"all") == b"\x01\xa3anb"
    assert before.get(ROW + b"all") is None
    assert set(told) == {"global table names: names/2/1 waits for the registry: nobody answers"}
    assert len(moved) >= len(told), "the worker is not stuck"


def test_a_copy_that_waits_for_too_long_says_so() -> None:
    registry = Registry()
    registry.away = 1 << 30
    copy, _ = copy_of(registry, 0.3, ThreadPause(lambda why: None, lambda: None))
    with pytest.raises(StillWaitingError, match="global table names: names/2/1 has waited"):
        copy.apply(2, NAMES)


def test_a_worker_that_stops_does_not_wait_for_its_copies() -> None:
    registry, began, left = Registry(), Event(), list[BaseException]()
    registry.away = 1 << 30
    pause = ThreadPause(lambda why: began.set(), lambda: None)
    copy, _ = copy_of(registry, 3_600, pause)

    def apply() -> None:
        try:
            copy.apply(2, NAMES)
        except GlobalsError as error:
            left.append(error)

    thread = Thread(target=apply)
    thread.start()
    assert began.wait(DEADLINE_S)
    pause.stopped.set()
    thread.join(DEADLINE_S)
    assert [str(each).partition(":")[0] for each in left] == ["the worker stops"]
