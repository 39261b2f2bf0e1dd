"""The program that keeps the machine busy takes time of it, returns its command's exit code, and is gone with
it.
"""

from __future__ import annotations

import os
import sys

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.busy import busy, main
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S


@pytest.mark.process
def test_each_core_has_so_many_more_that_never_rest_until_the_block_ends() -> None:
    with busy(1) as spinning:
        assert len(spinning) == os.cpu_count()
        found = [psutil.Process(each.pid) for each in spinning]
        wait_for(
            "each to have worked", lambda: all(each.cpu_times().user > 0.1 for each in found), DEADLINE_S
        )
    assert not any(each.is_running() for each in found)


@pytest.mark.process
def test_the_command_s_code_is_handed_on() -> None:
    assert main(["0", sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"]) == 3


@pytest.mark.parametrize("arguments", [[], ["20"], ["twenty", "true"]])
def test_other_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err
