"""Folds that depend on the hash seed, in the pytest run of a user's project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.test_plugin import ran

pytestmark = pytest.mark.process

PROGRAM = """
import os
import uuid

import pytest
from hypothesis import given, strategies

from holdfast import Emit, Json, Processor, Source, Stream
from holdfast.testing import Topology

LINE = "to be or not to be that is the question"


def processor(fold, row=int):
    return Processor(name="words", source="lines", decode=bytes.decode, fold=fold, row=row, emits=("out",))


def hashed(rows, line, at_ms):
    rows[line.split()[0]] = hash(line)


def in_set_order(rows, line, at_ms):
    for word in set(line.split()):
        yield Emit("out", word, b"1")


def sorted_first(rows, line, at_ms):
    words = set(line.split())
    rows["all"] = frozenset(words)
    for word in sorted(words):
        yield Emit("out", word, b"1")


def test_hash(topology):
    topology([processor(hashed)]).pipe("lines", LINE)


@pytest.mark.parametrize("name", ["a::b [c]"])
def test_set_order(name):
    with Topology([processor(in_set_order)]) as made:
        made.pipe("lines", LINE)


def test_sound(topology):
    topology([processor(sorted_first, frozenset[str])]).pipe("lines", LINE)


def test_declared(topology):
    lines, out = Source("lines", Json(str), retention="7d"), Stream("out", Json(str))

    def fold(rows, line, at_ms):
        yield out.emit("all", line)

    declared = Processor(name="declared", on={lines: fold}, row=int, emits=(out,))
    topology([declared]).pipe(lines, LINE, headers=(("who", b"ada"), ("none", None)))


def test_other_records_each_time(topology):
    topology([processor(sorted_first, frozenset[str])]).pipe("lines", uuid.uuid4().hex)


@given(strategies.text())
def test_drawn(text):
    with Topology([processor(hashed)]) as made:
        made.pipe("lines", "x" + text)


def test_without_a_topology():
    with open(os.environ["COUNTED"], "a") as counted:
        counted.write("x")
"""


def test_a_fold_that_depends_on_the_hash_seed_fails_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    done = ran(tmp_path, PROGRAM, "--junit-xml=report.xml")
    assert done.returncode == 1, done.stdout
    assert (
        "ImpureFoldError: words partition 0: record lines/0/0 gives other rows: words['to'] was "
        in done.stdout
    )
    assert "words partition 0: record lines/0/0 emits other records to out: number " in done.stdout
    assert "test_mine.py::test_set_order[a::b [c]] gave the fold the same records" in done.stdout
    assert "sort a set before its order matters" in done.stdout
    assert "2 failed, 7 passed" in done.stdout, "the sound ones are not blamed"
    assert "test_mine.py::test_other_records_each_time: not compared beyond 0 records" in done.stdout
    assert (tmp_path / "counted").read_text() == "x", "a test without a topology runs once"
    assert 'failures="2"' in (tmp_path / "report.xml").read_text(), (
        "and the second run leaves the report alone"
    )


@pytest.mark.variant
def test_processes_of_xdist_report_to_one_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    done = ran(tmp_path, PROGRAM, "-p", "xdist", "-n1", "-k", "hash or set_order or sound")
    assert "2 failed, 3 passed" in done.stdout, done.stdout


@pytest.mark.variant
def test_it_can_be_left_out_and_does_not_follow_a_failure(tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM, "--fold-hash-seeds=0", "-k", "test_hash")
    assert "1 passed" in done.stdout, done.stdout
    red = PROGRAM + "\n\ndef test_red():\n    assert False\n"
    done = ran(tmp_path, red, "-k", "test_hash or test_red")
    assert "1 failed, 1 passed" in done.stdout, done.stdout


@pytest.mark.variant
def test_a_second_run_that_cannot_begin_is_reported_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import os\n\nif os.environ.get('PYTHONHASHSEED') == '1':\n    raise RuntimeError('once only')\n"
    )
    done = ran(tmp_path, PROGRAM, "-k", "sound")
    assert done.returncode == 0, done.stdout
    assert "could not be run again under PYTHONHASHSEED=1" in done.stdout
    assert "once only" in done.stdout
