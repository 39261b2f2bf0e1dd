"""A thread of the demo that fails, or does not end, is reported: a scene must not continue as if it had
worked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast.dev.demo.beside import Beside
from holdfast.errors import DemoError
from tests.support.patience import DEADLINE_S


class Doing(Beside):
    def __init__(self, do: Callable[[threading.Event], object], within_s: float = DEADLINE_S) -> None:
        super().__init__("the audience", within_s=within_s)
        self._do = do

    def work(self) -> None:
        self._do(self.stopping)


def test_work_continues_until_it_is_asked_to_end() -> None:
    with Doing(lambda stopping: stopping.wait(DEADLINE_S)) as beside:
        beside.check()
        beside.finish()


def test_a_failure_is_raised_where_a_caller_waits() -> None:
    def fail(stopping: threading.Event) -> None:
        raise KeyError("lost")

    with Doing(fail) as beside:
        with pytest.raises(DemoError, match="the audience: 'lost'"):
            beside.finish()
        with pytest.raises(DemoError, match="the audience: 'lost'"):
            beside.check()


def test_work_that_does_not_end_is_reported() -> None:
    over = threading.Event()
    with Doing(lambda stopping: over.wait(DEADLINE_S), within_s=0.2) as beside:
        with pytest.raises(DemoError, match=r"the audience: not done within 0\.2 s"):
            beside.finish()
        over.set()
