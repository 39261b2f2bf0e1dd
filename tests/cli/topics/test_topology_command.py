"""`holdfast topology`: the graph of an application, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.__main__ import main

MODULE = """
from holdfast import Processor


def fold(rows, event, at_ms):
    pass


def processors(settings):
    chain = Processor(name="split", source="lines", decode=bytes.decode, fold=fold, row=int, version=2, emits=("words",))
    return [Processor(name="count", source="words", decode=bytes.decode, fold=fold, row=int), chain]
"""  # noqa: E501
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "graphed.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments: str, application: str = "graphed") -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["-A", application, "topology", *arguments])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def test_for_people(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert (
        out == "split (version 2)\n  folds   lines\n  table   split.v2\n  emits   words (internal)\n\n"
        "count (version 1)\n  folds   words (internal)\n  table   count.v1\n"
    )


def test_for_a_page(run: Run) -> None:
    code, out, _ = run("--format", "mermaid")
    assert code == 0
    assert out.startswith("flowchart LR\n")
    assert '  p0["split v2"]' in out.splitlines()


def test_for_programs(run: Run) -> None:
    code, out, _ = run("--output", "json")
    assert code == 0
    assert json.loads(out)[1] == {
        "name": "count",
        "version": 1,
        "sources": ["words"],
        "table": "count.v1",
        "emits": [],
        "timers": False,
        "tables": [],
        "reads": [],
        "internal": ["words"],
    }


SEVERAL = """
from holdfast import Processor, Source, Text


def fold(rows, event, at_ms):
    pass


processors = [Processor(name="both", on={Source("a", Text()): fold, Source("b", Text()): fold}, row=int)]
"""


def test_several_sources_are_drawn(tmp_path: Path, run: Run) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)
    assert run(application="several")[:2] == (0, "both (version 1)\n  folds   a, b\n  table   both.v1\n")


def test_a_format_that_there_is_not(run: Run) -> None:
    code, _, said = run("--format", "svg")
    assert code == 2
    assert "'svg' is not one of 'text', 'mermaid'" in said
