"""Workers as child processes of a benchmark: started, waited for, measured, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.run import ROOT

READY_DEADLINE_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(*pids: int) -> float:
    """Return user and system time of these processes so far; FileNotFoundError when one of them is gone."""
    out = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        out += (int(fields[11]) + int(fields[12])) / _TICKS
    return out


def rss_mb(pid: int) -> float:
    """Return the most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


class Worker:
    """One worker process and its web port."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.url = f"http://127.0.0.1:{environment['HOLDFAST_WEB_PORT']}"
        self.started_s = time.perf_counter()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.worker", "--loop", "uvloop", "worker", "-l", "info"],
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                cwd=ROOT,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait_ready(self) -> float:
        """Return how long the process took to serve, seconds from its start."""
        while time.perf_counter() - self.started_s < READY_DEADLINE_S:
            if self._process.poll() is not None:
                raise SystemExit(f"the worker ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(f"{self.url}/health/ready", timeout=2):
                    return time.perf_counter() - self.started_s
            except OSError:
                time.sleep(0.02)
        raise SystemExit("the worker was not ready in time")

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def rss_mb(self) -> int:
        return round(rss_mb(self._process.pid))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def worker(environment: Mapping[str, str], folder: Path) -> Iterator[Worker]:
    """Run one worker; it is stopped at the end, whatever happens."""
    found = Worker(environment, folder / f"{environment['HOLDFAST_APP']}.log")
    try:
        yield found
    finally:
        found.stop()


def quantiles(samples: list[float]) -> str:
    """Return p50, p99 and the largest of *samples* (seconds) in ms."""
    ordered = sorted(samples)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return (
        f"p50={p50 * 1e3:.1f} ms  p99={p99 * 1e3:.1f} ms  max={ordered[-1] * 1e3:.1f} ms  n={len(ordered):,}"
    )
