"""`python -P -m holdfast.dev.demo.processes.fleet_process SETTINGS FLEET PARTITIONS`: lets a fleet of
`holdfast demo --keep` live on after the demo.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.cli.asked import StopRequest
from holdfast.config import load_settings
from holdfast.dev.demo.processes.fleet import Fleet, LiveFleet

HEARTBEAT_S = 10.0
"""Slower than in the demo, since it may run for days."""

CHECK_S = 1.0


def start(fleet: Fleet, folder: Path, settings: Path, *, partitions: int) -> subprocess.Popen[bytes]:
    """Start a process that continues *fleet*, which the caller may not use any more; it runs until it is
    ended.
    """
    fleet.plan = dataclasses.replace(fleet.plan, heartbeat_s=HEARTBEAT_S)
    saved = folder / "fleet.json"
    saved.write_bytes(fleet.saved())
    with (folder / "fleet.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(settings), str(saved), str(partitions)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )


def main(arguments: list[str]) -> None:
    """Let the saved fleet live until SIGTERM, or until the broker is gone."""
    settings_file, saved, partitions = arguments
    settings = load_settings(flags={}, env={}, file=Path(settings_file))
    fleet = Fleet.restored(Path(saved).read_bytes())
    ended = StopRequest()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    with LiveFleet(settings, fleet, partitions=int(partitions), arrives=False) as live:
        while not ended.wait(CHECK_S):
            live.check()
        live.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
