"""README's program, run by a stranger: an empty environment, the wheel, an embedded broker, the commands in
order.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from release.environments import surroundings, told
from release.errors import ReleaseError
from tests.test_docs import blocks, values

ANSWER_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
_ANSWER = "Total(count=1, cents=1999) as of partition 1 offset 0"


def light(programs: Path, folder: Path) -> None:
    """See that the base without extras answers, and says in one line which extra a worker needs."""
    told(["holdfast", "--help"], folder, programs=programs)
    told(["holdfast", "doctor", "--offline"], folder, programs=programs)
    try:
        told(["python", "-c", "from holdfast import create_app"], folder, programs=programs)
    except ReleaseError as error:
        if "holdfast[worker]" in str(error):
            return
        raise
    raise ReleaseError("the light base has Faust: some dependency brings it in")


def readme(programs: Path, folder: Path, page: str) -> None:
    """Run the shop of *page* (README's text) from `dev up` to `verify`; raise ReleaseError where it fails."""
    write_programs(folder, page)
    port = free_port()
    settings = {
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
        "HOLDFAST_WEB_PORT": str(free_port()),
    }

    def holdfast(*arguments: str) -> str:
        return told(["holdfast", *arguments], folder, programs=programs, settings=settings)

    holdfast("dev", "up", "--embedded", "--port", str(port))
    try:
        holdfast("-A", "shop", "topics", "create", "--partitions", "4")
        with worker(programs, folder, settings):
            told(["python", "order.py"], folder, programs=programs, settings=settings)
            ask(programs, folder, settings)
            holdfast("-A", "shop", "replay", "totals")
            holdfast("-A", "shop", "verify", "totals")
    finally:
        holdfast("dev", "down")


def write_programs(folder: Path, page: str) -> None:
    """Save README's first program as shop.py, and those that write and ask by their names, as it tells its
    reader to.
    """
    shop, *_ = (block.text for block in blocks(page) if "runnable" in block.words)
    (folder / "shop.py").write_text(shop, "utf-8")
    for name in ("order.py", "ask.py"):
        (text,) = (block.text for block in blocks(page) if name in values(block, "program"))
        (folder / name).write_text(text, "utf-8")


@contextmanager
def worker(programs: Path, folder: Path, settings: dict[str, str]) -> Iterator[None]:
    """Run `holdfast worker` while the context lasts; it must end with 0 on SIGTERM."""
    log = folder / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(programs / "holdfast"), "-A", "shop", "worker"],
            cwd=folder,
            env=surroundings(programs, settings),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_LIMIT_S)
    finally:
        process.kill()
        process.wait()
    if code:
        raise ReleaseError(f"the worker ended with {code} on SIGTERM:\n{log.read_text('utf-8')}")


def ask(programs: Path, folder: Path, settings: dict[str, str]) -> None:
    """Ask until the answer has the order that was produced, within ANSWER_LIMIT_S."""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while True:
        try:
            printed = told(["python", "ask.py"], folder, programs=programs, settings=settings)
        except ReleaseError as error:
            printed = str(error)
        if _ANSWER in printed:
            return
        if time.monotonic() > deadline:
            raise ReleaseError(
                f"ask.py did not show the order: {printed}\n{(folder / 'worker.log').read_text('utf-8')}"
            )
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
