"""What is shown of groups: asked in one thread of their own, since Kafka's clients block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.records import GroupDescription, GroupKind, Position
from holdfast.config import Settings
from holdfast.errors import BrokerError, HoldfastError

T = TypeVar("T")

TIMEOUT_S = 4.0
WAIT_S = 10.0
LIMIT_WAITING = 16
"""Questions that may wait for the thread; more than these are refused, since each would wait for the ones before."""


class GroupDesk:
    """The groups of the cluster, as of the last `look`; *trouble* is why that look failed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-console-groups")
        self._admin: GroupAdmin | None = None
        self._waiting = 0
        self.groups: tuple[GroupDescription, ...] = ()
        self.trouble: str | None = None

    async def look(self) -> None:
        """Bring `groups` abreast; a failure is kept as `trouble`, and what was known stays."""
        try:
            self.groups, self.trouble = await self.ask(lambda admin: admin.list()), None
        except HoldfastError as error:
            self.trouble = str(error)

    async def page(
        self, group: str, kind: GroupKind, first: int, count: int
    ) -> tuple[GroupDescription, int, tuple[Position, ...]]:
        """Return a group, how many partitions it has anything to do with, and lines for *count* of these; raises GroupError."""

        def read(admin: GroupAdmin) -> tuple[GroupDescription, int, tuple[Position, ...]]:
            described, places = admin.state(group, kind), admin.places(group, kind)
            wanted = set(places[first : first + count])
            return described, len(places), admin.describe(group, kind, wanted) if wanted else ()

        return await self.ask(read)

    async def ask(self, work: Callable[[GroupAdmin], T]) -> T:
        """Return what *work* makes of the groups as they are now; raises BrokerError when Kafka does not answer in time."""
        if self._waiting >= LIMIT_WAITING:
            raise BrokerError(
                f"{LIMIT_WAITING} questions about groups wait for Kafka already; ask again later"
            )
        self._waiting += 1
        asked = asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)
        asked.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(asked), WAIT_S)
        except TimeoutError:
            raise BrokerError(
                f"Kafka did not answer about groups within {WAIT_S:g} s; check bootstrap.servers and the brokers"
            ) from None

    def _done(self, asked: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not asked.cancelled():
            asked.exception()  # told to whoever waited; nobody may by now

    def _work(self, work: Callable[[GroupAdmin], T]) -> T:
        if self._admin is None:
            self._admin = GroupAdmin(self._settings, timeout_s=TIMEOUT_S).__enter__()
        try:
            return work(self._admin)
        except BrokerError:
            self._close()  # what was read may have a hole
            raise

    def _close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.__exit__(None, None, None)

    async def close(self) -> None:
        """Close the clients; waits until a question that is being asked has ended."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)
