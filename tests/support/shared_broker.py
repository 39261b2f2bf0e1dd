"""One Apache Kafka for all processes of a run of tests (`make test-all`), so that only one has to warm up.

The process that hands out the tests owns the broker and starts it when the first of the others asks. It ends
with that process, by whatever that ends.

    process that runs tests: ask(where)  --Unix socket-->  Desk.where: Cluster.start, once
                             RunBroker  <--folder--
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import NoReturn

from holdfast.dev.broker.cluster import Cluster
from holdfast.errors import DevBrokerError
from tests.support.own_topics import RunBroker
from tests.support.patience import DEADLINE_S

QUESTION_DEADLINE_S = 120.0
"""Timeout of the desk's connections: long, because a process may stall between two lines."""


class Desk:
    """Reports the broker's address to the run's processes; keeps its files in *folder*, an empty one.

    The caller closes it, and the broker ends then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cluster = Cluster(self._folder / "kafka", short_lived=True)
        self._started = False
        self._listener = Listener(
            None, "AF_UNIX", backlog=64
        )  # a path of its own: those of sockets are short
        self.where = str(self._listener.address)
        self._thread = threading.Thread(target=self._serve, name="broker-desk", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            with (
                self._listener.accept() as asked,
                contextlib.suppress(EOFError, OSError),
            ):  # who asked is gone
                if not asked.poll(QUESTION_DEADLINE_S):
                    continue  # who says nothing keeps no others waiting
                if asked.recv() == "close":
                    return
                asked.send(self._answer())

    def _answer(self) -> str | Exception:
        """Return the folder of the broker that runs, or why there is none."""
        try:
            if not self._started:
                self._cluster.start()
                self._started = True
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told
            return DevBrokerError(f"the broker of this run did not start: {error}")
        return str(self._cluster.folder)

    def close(self) -> None:
        """End the broker and remove its folder."""
        with Client(self.where, "AF_UNIX") as end:
            end.send("close")
        self._thread.join()
        self._listener.close()
        if self._started:
            self._cluster.stop(grace_s=0)
        shutil.rmtree(self._folder, ignore_errors=True)


class SharedCluster(Cluster):
    """The broker of all processes: no test may disturb it."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("this broker serves other tests too: see tests/support/own_broker.py")

    start = stop = purge = kill = restart = pause = resume = _refuse


def ask(where: str) -> RunBroker:
    """Return the broker whose address the desk at *where* reports."""
    with Client(where, "AF_UNIX") as desk:
        desk.send("broker")
        if not desk.poll(DEADLINE_S):
            raise AssertionError(f"the broker of this run was not there after {DEADLINE_S:.0f} s")
        answer = desk.recv()
    if isinstance(answer, Exception):
        raise answer
    cluster = SharedCluster.attach(answer)
    return RunBroker(config=cluster.client_config(), cluster=cluster)
