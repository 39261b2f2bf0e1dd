"""Tests of topologies, run a second time under another hash seed.

Text has another hash in each process, so a fold that calls `hash`, or goes through a set of text in the order
it finds, gives other rows on the next worker; a test within one process cannot see it. If all tests of a
session have passed, those that made a `Topology` run again in one more process of pytest, with another
PYTHONHASHSEED. A test fails where a fold was given the same records in both and made something else of them.

Not run again: tests of Hypothesis, whose examples are others each time, and those with a broker of this
plugin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import compress, decompress

import msgspec
import pytest

from holdfast.testing.notes import NotedStep, NotesCompared, NotesOfTest, compare, noting

OPTION, AGAIN = "--fold-hash-seeds", "--fold-again"
BROKERS = {"embedded_kafka", "holdfast_broker", "fresh_topic"}
"""Fixtures with which a test is not run again: it would start another."""
START_S, TIMES = 120.0, 10.0
"""The limit for a second run: to start, and how many times as long as the tests took at first."""
LIMIT_SEEDS = 100
LIMIT_TOLD = 10
"""The most tests that are named if they could not be compared."""
CURE = (
    "sort a set before its order matters, and take zlib.crc32 or hashlib in place of hash(): "
    "each process has another hash of text"
)

_TESTS = msgspec.msgpack.Decoder(dict[str, list[list[NotedStep]]])
_NOTES = msgspec.msgpack.Decoder(list[list[NotedStep]])
_ATTRIBUTE = "holdfast_notes"


def add_options(group: Any) -> None:
    """Add the options of this part of the plugin."""
    group.addoption(
        OPTION,
        type=_seeds,
        default=1,
        metavar="N",
        help=(
            "run the tests of topologies again under N other hash seeds, to find folds that depend on it (1;"
            " 0 for none)"
        ),
    )
    group.addoption(AGAIN, type=Path, metavar="FOLDER", help="this is such a second run, told by FOLDER")


def _seeds(given: str) -> int:
    if not given.isdecimal() or not 0 <= int(given) <= LIMIT_SEEDS:
        raise ValueError(f"{given!r:.100}: a number of hash seeds, 0 to {LIMIT_SEEDS}")
    return int(given)


def register(config: pytest.Config) -> None:
    """Have the session take notes of its topologies, and run their tests again or be such a run."""
    again: Path | None = config.getoption(AGAIN)
    if again is not None:
        config.pluginmanager.register(RunAgain(config, again), "holdfast-fold-again")
    elif not config.getoption(OPTION) or config.option.collectonly or config.option.usepdb:
        return
    elif not hasattr(config, "workerinput"):  # a process of pytest-xdist reports to the one that has none
        config.pluginmanager.register(HashSeeds(config), "holdfast-hash-seeds")
    config.pluginmanager.register(NoteTaking(), "holdfast-notes")


class NoteTaking:
    """Notes what the topologies of each test fold, and sends it along with the last report of the test."""

    def __init__(self) -> None:
        self._notes: NotesOfTest | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        served = BROKERS.intersection(getattr(item, "fixturenames", ()))
        with nullcontext() if drawn or served else noting() as self._notes:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown" and self._notes is not None and (steps := self._notes.steps):
            text = b64encode(compress(msgspec.msgpack.encode(steps), 1)).decode()
            setattr(report, _ATTRIBUTE, text)
        return report  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Test:
    """A test that has run: where it lies, how long it took, and what its folds did."""

    location: tuple[str, int | None, str]
    passed: bool = True
    took_s: float = 0.0
    notes: str | None = None


class TestsRun:
    """The tests of a session, from their reports, whichever process made them."""

    __test__ = False

    def __init__(self) -> None:
        self.tests: dict[str, _Test] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(report.nodeid, _Test(report.location))
        if report.when == "setup":
            test.passed, test.notes = True, None  # it is run once more, as some plugins do
        test.passed &= report.passed
        test.took_s += report.duration
        test.notes = getattr(report, _ATTRIBUTE, test.notes)


class RunAgain(TestsRun):
    """The second run: only the tests that the first names, whose notes it leaves in the folder."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._named = set((folder / "tests").read_text().splitlines())
        files = dict.fromkeys(each.partition("::")[0] for each in sorted(self._named))
        config.args = [str(config.rootpath / each) for each in files]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.nodeid in self._named]

    def pytest_sessionfinish(self) -> None:
        notes = {name: unpacked(test.notes) for name, test in self.tests.items() if test.notes is not None}
        (self._folder / "notes").write_bytes(msgspec.msgpack.encode(notes))


class HashSeeds(TestsRun):
    """The first run: when all its tests are done, it has those of topologies run again and compares."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._config = config
        self._told: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        done: Any = yield
        noted = {name: test for name, test in self.tests.items() if test.notes is not None and test.passed}
        if noted and not session.testsfailed:
            for seed in other_seeds(self._config.getoption(OPTION), os.environ.get("PYTHONHASHSEED", "")):
                self._under(seed, noted)
                if session.testsfailed:
                    break
        return done  # type: ignore[no-any-return]

    def _under(self, seed: int, noted: Mapping[str, _Test]) -> None:
        with tempfile.TemporaryDirectory(prefix="holdfast-fold-again-") as folder:
            limit_s = START_S + TIMES * sum(test.took_s for test in noted.values())
            again, output = run_again(self._config, Path(folder), list(noted), seed, limit_s)
        if again is None:
            self._told.append(
                f"the tests of topologies could not be run again under PYTHONHASHSEED={seed} "
                f"({OPTION}=0 leaves that out):\n{output[-2_000:]}"
            )
            return
        for name, test in noted.items():
            found = compare(unpacked(test.notes), again.get(name, []))
            if found.difference is not None:
                self._fail(name, test, seed, found.difference)
            elif found.parted:
                self._told.append(_parted(name, seed, found))

    def _fail(self, name: str, test: _Test, seed: int, difference: str) -> None:
        message = (
            f"{difference}, under PYTHONHASHSEED={seed}\n"
            f"{name} gave the fold the same records in both processes. Cure: {CURE}."
        )
        report = pytest.TestReport(
            nodeid=name,
            location=test.location,
            keywords={},
            outcome="failed",
            longrepr=f"ImpureFoldError: {message}",
            when="call",
        )
        self._config.hook.pytest_runtest_logreport(report=report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._told:
            terminalreporter.section("folds under another hash seed")
            for line in self._told[:LIMIT_TOLD]:
                terminalreporter.line(line)
            if (more := len(self._told) - LIMIT_TOLD) > 0:
                terminalreporter.line(f"and {more} more")


def _parted(name: str, seed: int, found: NotesCompared) -> str:
    return (
        f"{name}: not compared beyond {found.compared} records, since under PYTHONHASHSEED={seed} the test"
        " pipes other records, or fails before it pipes them"
    )


def unpacked(notes: str | None) -> list[list[NotedStep]]:
    """Return the notes of a report."""
    return [] if notes is None else _NOTES.decode(decompress(b64decode(notes)))


def other_seeds(count: int, own: str) -> list[int]:
    """Return *count* hash seeds other than that of this process, as PYTHONHASHSEED gives it.

    >>> other_seeds(2, "2"), other_seeds(1, "random"), other_seeds(0, "")
    ([1, 3], [1], [])
    """
    return [each for each in range(1, count + 2) if str(each) != own][:count]


def run_again(
    config: pytest.Config, folder: Path, names: Sequence[str], seed: int, limit_s: float
) -> tuple[dict[str, list[list[NotedStep]]] | None, str]:
    """Run tests in another process of pytest; return their notes by name, None if there are none, and what it
    printed.

    It is called with the options of this one, but leaves its reports, its cache and its folders alone.
    """
    (folder / "tests").write_text("\n".join(names))
    output, ended = folder / "output", None
    with output.open("wb") as out:
        try:
            ended = subprocess.run(
                command(config, folder),
                cwd=config.invocation_params.dir,
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            out.write(f"not done within {limit_s:.0f} s".encode())
        except OSError as error:
            out.write(f"not started: {error}".encode())
    text = output.read_text(errors="replace")
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return None, text
    try:
        return _TESTS.decode((folder / "notes").read_bytes()), text
    except (OSError, msgspec.MsgspecError) as error:
        return None, f"{text}\nits notes are not there: {error}"


def command(config: pytest.Config, folder: Path) -> list[str]:
    """Return how pytest is called again: as it was, with later options that take back what writes or
    spreads.
    """
    given = [str(each) for each in config.invocation_params.args]
    if "--" in given:
        given = given[: given.index("--")]
    # `pytest` leaves the folder that it was called in out of the path, `python -m pytest` does not.
    path = [] if str(config.invocation_params.dir) in sys.path else ["-P"]
    # A folder that is an argument of its own would count when pytest looks for the root.
    own = [f"{AGAIN}={folder}", f"--rootdir={config.rootpath}", f"--basetemp={folder / 'basetemp'}"]
    own += ["--junit-xml=", "--maxfail=0", f"--log-file={os.devnull}"]
    if config.inipath is not None:
        own.append(f"--config-file={config.inipath}")
    if config.pluginmanager.hasplugin("cacheprovider"):
        own.append(f"--override-ini=cache_dir={folder / 'cache'}")
    if config.pluginmanager.hasplugin("xdist"):
        own.append("--numprocesses=0")
    if config.pluginmanager.hasplugin("_cov"):
        own.append("--no-cov")
    return [sys.executable, *path, "-m", "pytest", *given, *own]
