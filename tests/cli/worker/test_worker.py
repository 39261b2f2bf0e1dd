"""`holdfast worker`: what it starts, with which settings; how several are kept running, and ended."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Producer

from holdfast import by_key
from holdfast.cli.worker.launching import Launch, launches, require_ports
from holdfast.cli.worker.process import require_obeyed
from holdfast.cli.worker.supervising import MOST_FAILURES, WorkerProcesses
from holdfast.config import Settings
from holdfast.dev.ports import free_ports, is_free
from holdfast.dev.waits import wait_until
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError, WorkersError
from tests.support.patience import DEADLINE_S

PROGRAM = """
from holdfast import Processor, by_key, create_app
def count(rows, word, at_ms):
    rows[word] = (rows.get(word) or 0) + 1
app = create_app([Processor(name="counts", source="words", decode=bytes.decode, fold=count, row=int, route=by_key)])
"""  # noqa: E501


def launch(code: str, name: str = "worker.1") -> Launch:
    return Launch(name=name, arguments=(sys.executable, "-c", code), variables={"OWN": name})


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def named(made: list[Launch], variable: str) -> list[str | None]:
    return [each.variables.get(variable) for each in made]


# The processes that are started


def test_one_worker_has_the_settings_of_the_command_line_as_variables() -> None:
    flags = {"web_port": 7000, "kafka.sasl.password": "x"}
    (made,) = launches(
        Settings(web_port=7000), flags, application="shop", level="warning", file=Path("here.toml")
    )
    assert made.variables == {
        "HOLDFAST_WEB_PORT": "7000",
        "HOLDFAST_KAFKA__SASL_PASSWORD": "x",
        "HOLDFAST_CONFIG": str(Path("here.toml").absolute()),
    }
    assert "shop" in made.arguments
    assert made.arguments[-2:] == ("-l", "warning")
    assert "x" not in made.arguments  # which every account of the machine may read


def test_each_of_several_workers_has_a_port_a_folder_and_a_member_id_of_its_own(tmp_path: Path) -> None:
    settings = Settings(web_port=7000, data_dir=tmp_path, instance_id="shop")
    made = launches(settings, {"app": "shop"}, application=None, level="info", processes=3)
    assert [each.name for each in made] == ["worker.1", "worker.2", "worker.3"]
    assert named(made, "HOLDFAST_WEB_PORT") == ["7000", "7001", "7002"]
    assert named(made, "HOLDFAST_DATA_DIR") == [str(tmp_path / f"worker.{n}") for n in (1, 2, 3)]
    assert named(made, "HOLDFAST_INSTANCE_ID") == ["shop.1", "shop.2", "shop.3"]
    assert named(made, "HOLDFAST_APP") == ["shop"] * 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(web_url="http://shop:7000"), "web_url is one URL, and each of 2 workers needs its own"),
        (Settings(web_port=65_535), "leaves no ports for 2 workers"),
    ],
)
def test_workers_that_could_not_be_distinguished_are_refused(settings: Settings, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        launches(settings, {}, application=None, level="info", processes=2)


def test_a_port_that_is_taken_is_reported_before_anything_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"worker\.1 cannot listen on 127.0.0.1 port {port}: .*; set web_port"
        ):
            require_ports(Settings(web_port=port), 1)


def test_an_address_that_this_machine_has_not_is_reported_before_anything_is_started() -> None:
    elsewhere = Settings(web_bind="192.0.2.7", web_token="x", web_port=free_ports(1)[0])
    with pytest.raises(ConfigError, match=r"worker\.1 cannot listen on 192.0.2.7 port"):
        require_ports(elsewhere, 1)


def test_an_application_that_would_not_obey_the_command_line_is_refused() -> None:
    own, wanted = Settings(app="shop"), Settings(web_port=7000, kafka={"client.rack": "a"})
    with pytest.raises(
        ConfigError, match=r"does not change \(web_port, kafka.client.rack\): in create_app, leave"
    ):
        require_obeyed(own, wanted, ["web_port", "kafka.client.rack", "session_timeout_s"])


# How several are kept running


def ended(
    supervisor: WorkerProcesses, number: signal.Signals = signal.SIGTERM, *, after: Callable[[], object]
) -> int:
    """Run *supervisor* until *after* has returned, then signal this process as an operator would; return the
    code.
    """

    async def whole() -> int:
        running = asyncio.create_task(supervisor.run())
        await asyncio.wait_for(asyncio.to_thread(after), DEADLINE_S)
        os.kill(os.getpid(), number)
        return await asyncio.wait_for(running, DEADLINE_S)

    return asyncio.run(whole())


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_every_worker_and_then_the_supervisor(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    program = f"import os, signal, sys, pathlib; here = pathlib.Path({str(tmp_path)!r}) / os.environ['OWN']\n"
    program += (
        "signal.signal(signal.SIGTERM, lambda *_: (here.write_text('ended'),"
        " sys.exit()))\nhere.write_text('up')\nsignal.pause()"
    )
    names = ["worker.1", "worker.2"]
    supervisor = WorkerProcesses([launch(program, name) for name in names], grace_s=DEADLINE_S, named=True)

    def up() -> None:
        # A half-written file would be written over the one that the signal writes.
        wait_until("both", lambda: all(text_of(tmp_path / name) == "up" for name in names), DEADLINE_S)

    assert ended(supervisor, number, after=up) == code
    assert [(tmp_path / name).read_text() for name in names] == ["ended", "ended"]


@pytest.mark.process
def test_a_worker_that_dies_is_started_again_and_reported(tmp_path: Path) -> None:
    told = list[str]()
    lives = tmp_path / "lives"
    program = (
        f"import os, signal; lives = open({str(lives)!r}, 'a'); lives.write(f'{{os.getpid()}} ');"
        " lives.close(); signal.pause()"
    )
    supervisor = WorkerProcesses([launch(program)], grace_s=DEADLINE_S, named=False, tell=told.append)

    def killed_and_back() -> None:
        pid = wait_until("a life", lambda: lives.read_text().split() if lives.exists() else None, DEADLINE_S)[
            0
        ]
        os.kill(int(pid), signal.SIGKILL)
        wait_until("a second life", lambda: len(lives.read_text().split()) == 2, DEADLINE_S)

    ended(supervisor, after=killed_and_back)
    assert told == ["worker.1 ended with SIGKILL: it is started again in 1 s"]


@pytest.mark.process
def test_a_worker_that_never_comes_up_ends_all_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("holdfast.cli.worker.supervising.LONGEST_PAUSE_S", 0.01)
    left, up = tmp_path / "left", tmp_path / "up"
    program = (
        f"import pathlib, signal, sys; left, up = pathlib.Path({str(left)!r}), pathlib.Path({str(up)!r})\n"
    )
    program += (
        "signal.signal(signal.SIGTERM, lambda *_: (left.touch(), sys.exit()))\nup.touch()\nwhile True:"
        " signal.pause()"
    )
    fails = f"import os, time\nwhile not os.path.exists({str(up)!r}): time.sleep(0.01)\n"
    fails += "print('[CRITICAL] leaving: no room'); print(); raise SystemExit(3)"
    failing, steady = launch(fails), launch(program, "worker.2")
    told = list[str]()
    supervisor = WorkerProcesses([failing, steady], grace_s=DEADLINE_S, named=True, tell=told.append)
    with pytest.raises(
        WorkersError, match=r"worker\.1 has ended 6 times in a row .* exit code 3: no room; the"
    ):
        asyncio.run(asyncio.wait_for(supervisor.run(), DEADLINE_S))
    assert len(told) == MOST_FAILURES
    assert left.exists(), "the others are asked to end, not killed"


@pytest.mark.process
def test_a_worker_whose_settings_are_wrong_is_not_started_again() -> None:
    told = list[str]()
    fails = launch("print('holdfast: -A shop: there is no module shop'); raise SystemExit(2)")
    supervisor = WorkerProcesses([fails], grace_s=DEADLINE_S, named=True, steady_s=math.inf, tell=told.append)
    with pytest.raises(WorkersError, match=r"worker\.1 cannot start \(exit code 2\): -A shop: there is no"):
        asyncio.run(asyncio.wait_for(supervisor.run(), DEADLINE_S))
    assert told == []


@pytest.mark.process
def test_settings_that_became_wrong_while_a_worker_ran_end_all_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    told = list[str]()
    lived = tmp_path / "lived"
    program = f"import os, pathlib, signal; lived = pathlib.Path({str(lived)!r})\n"
    program += (
        "if lived.exists(): print('holdfast: holdfast.toml: unknown setting web_prot'); raise SystemExit(2)\n"
    )
    program += "lived.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    supervisor = WorkerProcesses(
        [launch(program)], grace_s=DEADLINE_S, named=True, steady_s=0.0, tell=told.append
    )
    with pytest.raises(WorkersError, match=r"cannot start \(exit code 2\): holdfast.toml: unknown setting"):
        asyncio.run(asyncio.wait_for(supervisor.run(), DEADLINE_S))
    assert told == ["worker.1 ended with SIGKILL: it is started again in 1 s"]


@pytest.mark.process
def test_a_worker_that_does_not_end_is_killed() -> None:
    told = list[str]()
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\nwhile True:"
        " signal.pause()"
    )
    supervisor = WorkerProcesses([launch(program)], grace_s=0.2, named=True, tell=told.append)
    ended(supervisor, after=lambda: None)
    assert not told or "it is killed" in told[0]  # the signal may have come before the program was deaf to it


@pytest.mark.process
def test_every_line_of_a_worker_bears_its_name(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    program = (
        "import sys, pathlib; sys.stdout.write('one\\ntwo\\nthe last'); sys.stdout.flush();"
        f" pathlib.Path({str(tmp_path / 'said')!r}).touch()"
    )
    supervisor = WorkerProcesses([launch(program)], grace_s=DEADLINE_S, named=True, tell=lambda line: None)
    ended(supervisor, after=lambda: wait_until("said", (tmp_path / "said").exists, DEADLINE_S))
    printed = capfdbinary.readouterr().out.splitlines()
    assert printed[:3] == [b"worker.1 | one", b"worker.1 | two", b"worker.1 | the last"]


# The command


@contextmanager
def command(folder: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "KAFKA_"))
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", *arguments],
        cwd=folder,
        env=clean | variables,
        stdout=(folder / "printed").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.variant
@pytest.mark.process
def test_two_workers_serve_a_table_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(PROGRAM)
    first = next(port for port in iter(lambda: free_ports(1)[0], None) if is_free(port + 1))
    with EmbeddedKafka() as kafka:
        kafka.create_topic("words", partitions=2, config={"message.timestamp.type": "LogAppendTime"})
        producer = Producer(kafka.client_config())
        producer.produce("words", b"ada", partition=by_key("ada", 2))
        assert producer.flush(DEADLINE_S) == 0
        where = {
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "HOLDFAST_APP": "counting",
            "HOLDFAST_CONSOLE_ON_WORKERS": "true",
        }
        with command(tmp_path, "-A", "counting", "topics", "create", **where) as made:
            assert made.wait(DEADLINE_S) == 0, (tmp_path / "printed").read_text()
        with command(
            tmp_path, "-A", "counting", "worker", "-n", "2", "--port", str(first), **where
        ) as running:
            wait_until("both workers", lambda: serving(first) and serving(first + 1), DEADLINE_S)
            killed = process_of(running.pid, first)
            assert killed
            os.kill(killed, signal.SIGKILL)
            wait_until(
                "another process", lambda: process_of(running.pid, first) not in (None, killed), DEADLINE_S
            )
            why = f"http://127.0.0.1:{first + 1}/console/tables/why?name=counts&key=ada"
            with urllib.request.urlopen(why, timeout=DEADLINE_S) as page:
                shown = page.read().decode()
            assert "1 of 1 changes" in shown, "no process loaded the application again and folded it"
            wait_until("it serves", lambda: serving(first), DEADLINE_S)
            running.send_signal(signal.SIGTERM)
            assert running.wait(DEADLINE_S) == 0
    said = (tmp_path / "printed").read_text()
    assert "worker.1 ended with SIGKILL: it is started again in 1 s" in said
    assert {line.partition(" ")[0] for line in said.splitlines() if " | " in line} == {"worker.1", "worker.2"}


@pytest.mark.process
def test_the_last_line_of_a_worker_without_topics_is_the_command_to_type(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(PROGRAM)
    with EmbeddedKafka() as kafka:
        where = {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap, "HOLDFAST_APP": "counting"}
        port = str(free_ports(1)[0])
        with command(tmp_path, "-A", "counting", "worker", "--port", port, **where) as refused:
            assert refused.wait(DEADLINE_S) == 1
    lines = (tmp_path / "printed").read_text().split("\n")
    last = [line.partition("leaving: ") for line in lines if "[" in line][-1]
    assert last[1], lines
    assert "run `holdfast -A counting topics create --partitions N`" in last[2]


def process_of(supervisor: int, port: int) -> int | None:
    """Return the worker with this port among the processes of a supervisor."""
    for child in psutil.Process(supervisor).children():
        with suppress(psutil.Error):
            if (
                child.environ().get("HOLDFAST_WEB_PORT") == str(port)
                and child.status() != psutil.STATUS_ZOMBIE
            ):
                return int(child.pid)
    return None


def serving(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=DEADLINE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("processors = []", "-A counting: found list, and a worker runs an app of create_app"),
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch'"),
        (
            "from holdfast import Settings, create_app\napp = create_app(settings=Settings(web_port=7))",
            "does not change (web_port)",
        ),
    ],
)
def test_what_no_worker_can_run_is_refused_in_one_line(program: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(program)
    with command(tmp_path, "-A", "counting", "worker", "--port", "7001") as refused:
        assert refused.wait(DEADLINE_S) == 2
    (line,) = (tmp_path / "printed").read_text().splitlines()
    assert line.startswith("holdfast: ")
    assert said in line
