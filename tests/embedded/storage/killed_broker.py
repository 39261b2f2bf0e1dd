"""An embedded broker in a folder and a process of its own, which tests kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import DEADLINE_S

_SERVER = """
import sys
from holdfast.embedded.kafka import EmbeddedKafka
folder, port, fsync = sys.argv[1:]
with EmbeddedKafka(folder=folder, port=int(port), fsync=fsync == "fsync") as kafka:
    print(kafka.bootstrap, flush=True)
    sys.stdin.read()
"""


class KilledBroker:
    """A broker in a process of its own, at one address however often it is killed."""

    def __init__(self, folder: Path, how: str) -> None:
        self._folder, self._how = folder, how
        self.bootstrap = "127.0.0.1:0"
        self._start()

    def _start(self) -> None:
        port = self.bootstrap.split(":")[1]
        command = [sys.executable, "-P", "-c", _SERVER, str(self._folder), port, self._how]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().strip()
        assert self.bootstrap, "it did not start"

    def kill(self) -> None:
        """SIGKILL it, and start it again."""
        self.end()
        self._start()

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=DEADLINE_S)

    def config(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200, **more}


@contextmanager
def broker_in(folder: Path, how: str) -> Iterator[KilledBroker]:
    broker = KilledBroker(folder, how)
    try:
        yield broker
    finally:
        broker.end()
