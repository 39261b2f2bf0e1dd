"""The line that shows how far a command is."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from holdfast.cli import status_line as lines
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.output import note
from holdfast.pipeline.progress import advance, begin
from tests.support.patience import DEADLINE_S


class Terminal(io.StringIO):
    """Says that it is a terminal, and when the line of a quarter has been written: the line before it may
    show nothing yet.
    """

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__()
        self.terminal, self.written = terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        done = super().write(text)
        if " 25 %" in text:
            self.written.set()
        return done


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines._Rewritten, "period_s", 0.01)
    monkeypatch.setattr(lines._Logged, "period_s", 0.01)
    monkeypatch.setattr("holdfast.cli.lake.progress.PATIENCE_S", 0.0)


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    out = Terminal(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", out)
    with shown_progress():
        begin("replay of totals", 200)
        advance(50)
        assert out.written.wait(DEADLINE_S)
        note("partition 0 is done")
    note("all is done")
    return out.getvalue()


def test_a_terminal_keeps_one_line_and_nothing_stays_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(monkeypatch, terminal=True)
    assert "\r\x1b[2Kreplay of totals [#####...............] 25 %, 50 of 200 offsets" in told
    assert "\r\x1b[2Kpartition 0 is done\n" in told
    assert told.endswith("\r\x1b[2Kall is done\n")


def test_a_log_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(monkeypatch, terminal=False)
    assert "\x1b" not in told
    line = "replay of totals [#####...............] 25 %, 50 of 200 offsets"
    assert any(each.startswith(line) for each in told.splitlines())


def test_work_that_is_not_watched_costs_nothing_and_fails_nowhere() -> None:
    begin("replay of totals", 1)
    advance(1)
