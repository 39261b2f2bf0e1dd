"""`holdfast demo`: one whole run, runs that are cut short, and the parts that need neither broker nor
Spark.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from rich.console import Console

from holdfast.clock import ManualClock
from holdfast.dev.demo.environment import DemoEnvironment, Running, down
from holdfast.dev.demo.narrator import (
    ClaimFindings,
    DayFindings,
    JoinFindings,
    Measurements,
    OutboxFindings,
    Teller,
    UpgradeFindings,
    Way,
    require_one_hash,
    summary,
)
from holdfast.dev.demo.processes import procfile
from holdfast.dev.signals import EndingSignals, Interrupted
from holdfast.errors import DemoError
from tests.support.parts import QUICK_JAVA
from tests.support.patience import DEADLINE_S, SCENARIO_S

SMALL = ("--clients", "16", "--claims", "80", "--seconds", "1")
ESCAPE = "\x1b"


# -- the whole of it


class Run:
    """`holdfast demo` in a process of its own.

    Everything it starts inherits its TMPDIR, and is found again by that.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self._out = folder, folder / "out.txt"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.cli", "demo", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
                | {"TMPDIR": str(self.temporary)}
                | QUICK_JAVA,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._out.read_text(encoding="utf-8")

    def wait_for(self, words: str) -> None:
        """Wait until the demo has printed *words*."""
        until_s = time.monotonic() + DEADLINE_S
        while words not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < until_s, self.text
            time.sleep(0.02)

    def end(self, number: signal.Signals | None = None, *, deadline_s: float = SCENARIO_S) -> int:
        """Send a signal, if any, and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(deadline_s)

    def left(self) -> list[str]:
        """Return the command lines of what it started and still runs."""
        mark, found = f"{self.temporary}", []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and process.environ().get("TMPDIR") == mark:
                    found.append(" ".join(process.cmdline())[:200])
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def gone_within(self, deadline_s: float) -> bool:
        until_s = time.monotonic() + deadline_s
        while self.left() and time.monotonic() < until_s:
            time.sleep(0.05)
        return not self.left()


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[Run]:
    run = Run(folder, *arguments)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(DEADLINE_S)


@pytest.mark.kafka
@pytest.mark.spark
def test_the_whole_demo_holds_prints_three_equal_hashes_and_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, *SMALL) as run:
        assert run.end() == 0, run.text
        text = run.text
        hashes = re.findall(
            r"^(?:live table|local replay|Spark replay) +([0-9a-f]{16})   ", text, re.MULTILINE
        )
        assert len(hashes) == 3, text
        assert len(set(hashes)) == 1
        assert "Everything held, in " in text
        assert re.search(r"^takeover +\d+\.\d s from SIGKILL", text, re.MULTILINE)
        assert re.search(r"For all 80 claims of the fleet", text)
        assert re.search(r"^upgrade +[\d,]+ visits counted once by a new version", text, re.MULTILINE)
        assert re.search(
            r"[\d,]+ visits from the lake and [\d,]+ that came since became 16 rows of version 2",
            " ".join(text.split()),
        )
        assert re.search(r"^join +[\d,]+ impressions told once", text, re.MULTILINE)
        described = re.findall(r"^ +mail   letters +(\d) .*  (\w+)$", text, re.MULTILINE)
        before, after = described[:6], described[6:]
        assert sorted(client for _, client in before) == ["anna", "anna", "ben", "ben", "cleo", "cleo"], text
        assert len(after) == 6
        assert len({client for _, client in after}) == 2, text
        assert re.search(r"All [\d,]+ letters were handled", " ".join(text.split()))
        assert len(re.findall(r"^ +orders +\d +0 +\d+ +\d+ +1 +0 +0  true +0$", text, re.MULTILINE)) == 4, (
            text
        )
        assert re.search(
            r"each order once, each customer's in order, not one that was rolled back", " ".join(text.split())
        )
        assert ESCAPE not in text
        assert [line for line in text.splitlines() if line != line.rstrip() or len(line) > 110] == []
        assert run.left() == []
        assert list(run.temporary.iterdir()) == []


@pytest.mark.process
@pytest.mark.slow
def test_the_demo_on_the_embedded_kafka_needs_no_java_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-jdk"))
    with demo(tmp_path, "--embedded", *SMALL) as run:
        assert run.end() == 0, run.text
        text = " ".join(run.text.split())
        hashes = re.findall(r"(?:live table|local replay|lake replay) ([0-9a-f]{16}) ", text)
        assert len(hashes) == 3, text
        assert len(set(hashes)) == 1
        assert "Spark is left out, for it needs a JDK" in text
        assert "production is Apache Kafka" in text
        for scene in (
            "visits counted once by a new version",
            "impressions told once",
            "letters, each handled",
        ):
            assert scene in text
        assert "each order once, each customer's in order, not one that was rolled back" in text
        assert "Spark's JVM" not in text
        assert run.left() == []
        assert list(run.temporary.iterdir()) == []


@pytest.mark.variants("Start two workers-15")
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("Start a Kafka broker", signal.SIGINT),
        ("Start two workers", signal.SIGTERM),
        pytest.param("Kill worker", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("Fold the Delta table", signal.SIGINT, marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_a_demo_that_is_cut_short_says_so_and_leaves_nothing(
    tmp_path: Path, words: str, number: signal.Signals
) -> None:
    with demo(tmp_path, *SMALL) as run:
        run.wait_for(words)
        assert run.end(number, deadline_s=DEADLINE_S) == 128 + number, run.text
        assert run.text.endswith(f"{number.name}: everything that was started has been ended\n")
        assert run.left() == []
        assert list(run.temporary.iterdir()) == []


@pytest.mark.variant
@pytest.mark.process
def test_a_demo_in_which_a_worker_dies_by_itself_fails_says_why_and_keeps_only_the_logs(
    tmp_path: Path,
) -> None:
    with demo(tmp_path, "--embedded", *SMALL, "--seconds", "60") as run:
        run.wait_for("Watch them live")
        found = re.search(r"worker\.2 \(pid (\d+)\)", run.text)
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        assert run.end(deadline_s=DEADLINE_S) == 1, run.text
        assert re.search(
            r"^holdfast: worker\.2 ended with code -9; the end of \S+/worker\.2\.log says: ",
            run.text,
            re.MULTILINE,
        ), run.text
        assert run.left() == []
        (kept,) = run.temporary.iterdir()
        assert f"The logs are in {kept}" in " ".join(run.text.split())
        assert {path.suffix for path in kept.rglob("*") if path.is_file()} == {".log"}


@pytest.mark.variants("kind1")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its owner's death")
@pytest.mark.parametrize(
    "kind",
    [pytest.param((), marks=pytest.mark.kafka), pytest.param(("--embedded",), marks=pytest.mark.process)],
)
def test_even_a_demo_that_is_killed_leaves_no_process(tmp_path: Path, kind: tuple[str, ...]) -> None:
    # They are watched for long enough that it has not gone on by the time it is looked at.
    with demo(tmp_path, *kind, *SMALL, "--seconds", "60") as run:
        run.wait_for("Watch them live")
        assert len(run.left()) >= 3  # a broker and two workers
        assert run.end(signal.SIGKILL, deadline_s=DEADLINE_S) == -signal.SIGKILL
        assert run.gone_within(DEADLINE_S), run.left()


@pytest.mark.process
@pytest.mark.slow
def test_a_demo_that_is_kept_runs_until_it_is_ended_and_can_be_queried_in_that_time(tmp_path: Path) -> None:
    holdfast = [sys.executable, "-P", "-m", "holdfast.cli"]
    with demo(tmp_path, "--embedded", *SMALL, "--keep") as run:
        try:
            assert run.end() == 0, run.text
            assert len(run.left()) == 4  # broker, two workers, fleet
            ask = [*holdfast, "--config", ".holdfast/demo/holdfast.toml"]
            verified = subprocess.run(
                [*ask, "verify", "claims"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert verified.returncode == 0, verified.stderr
        finally:
            ended = subprocess.run(
                [*holdfast, "demo", "down"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        assert ended.stderr == "ended: fleet, worker.2, worker.1, embedded broker 1\n"
        assert run.left() == []
        assert not (tmp_path / ".holdfast/demo").exists()


@pytest.mark.process
def test_a_folder_in_use_is_refused_in_one_line_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious").write_text("x")
    with demo(tmp_path, "--dir", "mine") as run:
        assert run.end() == 1
    assert run.text.splitlines()[-1].startswith(f"holdfast: {tmp_path}/mine is not empty: ")
    assert (tmp_path / "mine/precious").read_text() == "x"


# -- the stage


def test_a_kept_process_is_known_by_more_than_its_pid(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        kept = [Running(name="worker.1", pid=bystander.pid, birth="another/process")]
        (tmp_path / "demo.json").write_bytes(msgspec.json.encode(kept))
        assert list(down(tmp_path)) == []
        assert bystander.poll() is None
        assert not tmp_path.exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_ending_a_demo_that_was_never_kept_removes_nothing(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="no demo was kept in"):
        down(tmp_path)
    (tmp_path / "demo.json").write_text("{}")
    with pytest.raises(DemoError, match="is not a file of `holdfast demo`"):
        down(tmp_path)
    assert tmp_path.exists()


def test_a_stage_that_fails_keeps_its_logs_and_nothing_else(tmp_path: Path) -> None:
    stage = DemoEnvironment(keep=False, folder=tmp_path / "stage")

    def fail() -> None:
        with stage:
            (stage.folder / "data").mkdir()
            (stage.folder / "data" / "000001.log").write_text("the store's, not for people")
            (stage.folder / "data" / "sst").write_text("x")
            (stage.folder / "worker.1.log").write_text("last words")
            raise DemoError("planted")

    with pytest.raises(DemoError, match="planted"):
        fail()
    assert [path.name for path in stage.folder.rglob("*")] == ["worker.1.log"]


# -- processes


def test_the_built_in_command_is_the_one_of_the_procfile() -> None:
    found = Path(procfile.__file__).resolve().parents[4] / "Procfile"
    assert found.exists()
    assert procfile.read_commands() == {"worker": procfile.WORKER}


def test_a_procfile_without_a_worker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("web: sleep 1\n")
    with pytest.raises(DemoError, match="declares no `worker`; its processes are: web"):
        procfile.read_commands(tmp_path / "Procfile")


TELLING = "exec python -c \"import os; print(*(os.environ.get(name) for name in '{names}'.split()))\""


@pytest.mark.process
def test_each_worker_has_its_port_its_folder_and_no_setting_of_the_callers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HOLDFAST_APP", "stranger"), ("PORT", "1"), ("HONCHO_PROCESS_NAME", "outer.1")):
        monkeypatch.setenv(name, value)
    names = "PORT HONCHO_PROCESS_NAME HOLDFAST_DATA_DIR HOLDFAST_CONFIG HOLDFAST_APP"
    settings = tmp_path / "holdfast.toml"
    started = procfile.workers(
        2,
        ports=[7001, 7002],
        folder=tmp_path,
        settings=settings,
        commands={"worker": TELLING.format(names=names)},
    )
    for worker in started:
        worker.start()
        assert worker._wait(DEADLINE_S)
    told = [worker.log.read_text().split() for worker in started]
    assert told == [
        ["7001", "worker.1", str(tmp_path / "data"), str(settings), "None"],
        ["7002", "worker.2", str(tmp_path / "data"), str(settings), "None"],
    ]
    assert [worker.url for worker in started] == ["http://127.0.0.1:7001", "http://127.0.0.1:7002"]


def test_a_process_that_ended_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = procfile.Process("worker.1", "echo 'out of luck'; exit 3", os.environ, 7001, tmp_path)
    process.start()
    assert process._wait(DEADLINE_S)
    with pytest.raises(DemoError, match=r"worker\.1 ended with code 3; .* out of luck"):
        process.check()


def test_a_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    process = procfile.Process(
        "worker.1", "trap '' TERM; echo ready; while :; do sleep 1; done", os.environ, 7001, tmp_path
    )
    process.start()
    until_s = time.monotonic() + DEADLINE_S
    while "ready" not in process.last_words() and time.monotonic() < until_s:
        time.sleep(0.02)
    process.stop(grace_s=0.2)
    assert not process.running


# -- signals


def test_the_first_signal_interrupts_and_later_ones_let_the_clean_up_finish() -> None:
    before = signal.getsignal(signal.SIGTERM)
    steps = []

    def be_interrupted() -> None:
        with EndingSignals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                steps.append("cleaned up")

    with pytest.raises(Interrupted) as caught:
        be_interrupted()
    assert steps == ["cleaned up"]
    assert (str(caught.value), caught.value.exit_code) == ("SIGTERM", 143)
    assert signal.getsignal(signal.SIGTERM) is before


# -- narration


def findings(*digests: str) -> Measurements:
    names = ("live table", "local replay", "Spark replay")
    return Measurements(
        records=58_725,
        rows=2_017,
        clients=200,
        claims=2_000,
        handovers=500,
        restarts=50,
        refused=50,
        live_rate=2_070.4,
        visible_s=[0.004, 0.006, 0.1],
        takeover_s=6.93,
        session_timeout_s=6.0,
        ways=[
            Way(name=name, digest=digest, how="some way", seconds=1.5)
            for name, digest in zip(names, digests, strict=True)
        ],
        claimed=ClaimFindings(messages=1_297, again=59, takeover_s=6.12, bound_s=7.0),
        day=DayFindings(views=24_000, windows=240, read=6_000, seconds=5.1),
        joined=JoinFindings(results=1_204, away_s=3.1, digest="ef" * 32),
        upgraded=UpgradeFindings(visits=4_321, begun=1_234, answers=987, pause_s=1.24),
        outbox=OutboxFindings(orders=3_182, rolled_back=348, takeover_s=7.1, session_s=6.0),
        elapsed_s=61.2,
    )


def told(columns: int | None = None) -> tuple[Teller, io.StringIO]:
    out = io.StringIO()
    return Teller(Console(file=out, highlight=False, width=columns or 110), clock=ManualClock()), out


def test_the_summary_has_records_rate_takeover_three_hashes_and_pointers() -> None:
    teller, out = told()
    teller.close(summary(findings(*["ab12" * 16] * 3), [("end it", "holdfast demo down")]))
    lines = out.getvalue().splitlines()
    assert "Everything held, in 61 s." in lines
    assert (
        "records            58,725 frames became 2,017 rows, exactly once, with one of two workers killed"
        in lines
    )
    assert "rate               2,070 frames a second while the fleet was watched" in lines
    assert (
        "takeover           6.9 s from SIGKILL to the survivor's answer; the session timeout is 6 s" in lines
    )
    text = " ".join(out.getvalue().split())
    assert (
        "1,297 letters, each handled, 59 of them twice; 6.1 s from SIGKILL to the heirs, 7 s are promised"
        in text
    )
    assert (
        "3,182 orders published once and in order, 348 rolled back and never seen; 7.1 s from SIGKILL" in text
    )
    assert "read your writes   6 ms from Kafka's acknowledgement to the answer (p50), 100 ms (p99)" in lines
    assert [line for line in lines if "ab12ab12ab12ab12   some way in 1.5 s" in line] != []
    assert lines[-2:] == ["end it             holdfast demo down", ""]


def test_states_that_differ_are_never_summed_up_as_if_they_held() -> None:
    found = findings("ab" * 32, "ab" * 32, "cd" * 32)
    with pytest.raises(
        DemoError, match=r"the same log gave different states: live table abab.*Spark replay cdcd"
    ):
        require_one_hash(found.ways)
    with pytest.raises(DemoError):
        summary(found, [])


def test_steps_are_printed_under_a_clock_and_long_lines_keep_their_margin() -> None:
    teller, out = told(columns=60)
    with teller.step("Start a Kafka broker"):
        teller.waiting("this would be for a terminal")
        teller.say(
            "Kafka answers at 127.0.0.1:29092, and this sentence does not fit one line of sixty columns."
        )
    assert out.getvalue().splitlines() == [
        "   0.0 s  Start a Kafka broker",
        "          Kafka answers at 127.0.0.1:29092, and this",
        "          sentence does not fit one line of sixty columns.",
    ]
