"""Faults for the worker under test, patched in from outside: holdfast itself knows of none."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance
from faust.assignor.partition_assignor import PartitionAssignor
from faust.transport.consumer import Consumer

from holdfast.agents.partitions.manager import PartitionManager
from holdfast.core.engine import linger
from holdfast.kafka.transactions.transactional_client import TransactionalClient
from holdfast.tables import restore, store
from holdfast.tables.changelog import ChangelogWriter
from holdfast.tables.owner import PartitionOwner
from holdfast.tables.partition import Partition
from holdfast.tables.replay import ChangelogReplay
from holdfast.tables.store import PartitionStore

FAULTS = (
    "begin",
    "produced",
    "committing",
    "committed",
    "storing",
    "piece",
    "stored",
    "acked",
    "fenced",
    "restoring",
    "activated",
)
"""Points at which a worker can be killed, in the order of the path: eight in a batch, then three in the
takeover of a partition.
"""

SMALL_STEP_RECORDS = 20
SMALL_PIECE_ROWS = 4
HOUR_S = 3_600.0
_JUST_MS = 4.0
_LOOK_S = 0.02


class Doom:
    """Counts the visits to one point and kills the process at the chosen one."""

    def __init__(self, order: str) -> None:
        point, _, number = order.partition(":")
        self._point, self._left, self._lock = point, int(number or 1), threading.Lock()

    def reached(self, point: str) -> bool:
        """Return whether this is the visit at which to die."""
        if point != self._point:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0

    def strike(self, point: str) -> None:
        """Die here if it is time."""
        if self.reached(point):
            os.kill(os.getpid(), signal.SIGKILL)

    def strike_during(self, point: str) -> None:
        """Kill the process a moment from now, in the middle of the caller's next action, if it is time."""
        if self.reached(point):
            delay_s = random.uniform(0, _JUST_MS) / 1000
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


def around(
    owner: object,
    name: str,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Have *before* and *after* called around every call of a method."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before()
        found = plain(*args, **kwargs)
        after()
        return found

    @functools.wraps(plain)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        before()
        found = await plain(*args, **kwargs)
        after()
        return found

    setattr(owner, name, awaited if inspect.iscoroutinefunction(plain) else wrapped)


def plant(doom: Doom) -> None:
    """Make the ways of a worker lead past *doom*."""
    strike = functools.partial

    def ending() -> None:
        doom.strike("produced")  # the records are in the log, their transaction is open
        doom.strike_during("committing")

    around(ChangelogWriter, "_append", before=strike(doom.strike, "begin"))
    around(TransactionalClient, "end", before=ending, after=strike(doom.strike, "committed"))
    around(
        PartitionStore,
        "write",
        before=strike(doom.strike_during, "storing"),
        after=strike(doom.strike, "stored"),
    )
    around(store, "batch_of", before=strike(doom.strike, "piece"))
    around(PartitionManager, "done", after=strike(doom.strike, "acked"))
    around(PartitionOwner, "fence", after=strike(doom.strike, "fenced"))
    around(ChangelogReplay, "apply", after=strike(doom.strike, "restoring"))
    around(Partition, "activate", after=strike(doom.strike, "activated"))


def freeze_when(order: Path) -> None:
    """Stop this process by SIGSTOP right after the group gave it an assignment or right before it ends a
    transaction, as *order* says.

    A test writes `synced` or `committing` to the file when it wants a freeze; each such order is carried out
    once.
    """

    def obey(point: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if order.read_text() == point:
                order.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)

    around(CoordinatorGroupRebalance, "_send_sync_group_request", after=functools.partial(obey, "synced"))
    around(TransactionalClient, "end", before=functools.partial(obey, "committing"))


def fail_to_assign() -> None:
    """Have the assignor refuse every assignment, as Faust's does one that it thinks is another's."""

    def fail() -> None:
        raise AssertionError("told to fail")

    around(PartitionAssignor, "on_assignment", before=fail)


def let_hours_pass() -> None:
    """Have everything of Faust's that looks at the clock find itself an hour later, from when its watchers
    have first looked.
    """
    looks = 0

    def later() -> float:
        return time.monotonic() + HOUR_S

    def looked() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            for module in [found for name, found in sys.modules.items() if name.startswith("faust")]:
                if getattr(module, "monotonic", None) is time.monotonic:
                    module.monotonic = later  # type: ignore[attr-defined]
        logging.getLogger(__name__).info("Faust's watchers have looked %d times", looks)

    around(Consumer, "verify_all_partitions_active", after=looked)


def let_gather() -> None:
    """Have slow streams of records gather for all of `linger_ms`, however idle the worker is."""
    linger.LEAST_WAIT_S = math.inf


def write_in_pieces() -> None:
    """Have even the small transactions of a test written to the store piece by piece."""
    store.WRITE_ROWS = SMALL_PIECE_ROWS


def hold_up(held: Path) -> None:
    """Have restores, and standbys, wait as long as *held* exists."""

    def wait() -> None:
        while held.exists():
            time.sleep(_LOOK_S)

    around(ChangelogReplay, "apply", before=wait)


def slow_down(milliseconds: float) -> None:
    """Have restores go in small steps with a pause before each, so that a test can act while a worker
    restores.
    """
    around(ChangelogReplay, "apply", before=functools.partial(time.sleep, milliseconds / 1000))
    restore.READ_RECORDS = SMALL_STEP_RECORDS
