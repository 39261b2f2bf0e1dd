"""The state of groups: asked in one thread of their own, since Kafka's clients block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.records import GroupDescription, GroupKind, GroupPosition
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.console.watching.blocking import WAIT_S, BlockingCalls
from holdfast.console.watching.ownership import OwnershipHistory
from holdfast.errors import ConfigError, GroupError, HoldfastError

T = TypeVar("T")

TIMEOUT_S = 4.0


class GroupDesk:
    """The groups of the cluster, as of the last `look`; *trouble* is why that look failed, or lacks
    groups.
    """

    def __init__(self, settings: Settings, *, wait_s: float = WAIT_S, clock: Clock = system_clock) -> None:
        """*wait_s* is how long an answer is waited for."""
        self._settings, self._clock = settings, clock
        self.ownership = OwnershipHistory()
        self._calls = BlockingCalls("groups", wait_s=wait_s)
        self._admin: GroupAdmin | None = None
        self.groups: tuple[GroupDescription, ...] = ()
        self.trouble: str | None = None

    async def look(self) -> None:
        """Update `groups`; a failure is kept as `trouble`, and the groups from before stay."""
        try:
            survey = await self.ask(lambda admin: admin.survey())
            if not survey.unlisted:  # a group that was not listed has not lost its owners
                self.ownership.learn(survey.owners, at_ms=self._clock.now_ms())
            self.groups, self.trouble = survey.groups, survey.unlisted or None
        except HoldfastError as error:
            self.trouble = str(error)

    async def page(
        self, group: str, kind: GroupKind, first: int, count: int
    ) -> tuple[GroupDescription, int, tuple[GroupPosition, ...]]:
        """Return a group, how many partitions it has anything to do with, and lines for *count* of these;
        raises GroupError.
        """

        def read(admin: GroupAdmin) -> tuple[GroupDescription, int, tuple[GroupPosition, ...]]:
            described, places = admin.state(group, kind), admin.places(group, kind)
            wanted = set(places[first : first + count])
            return described, len(places), admin.describe(group, kind, wanted) if wanted else ()

        return await self.ask(read)

    async def ask(self, work: Callable[[GroupAdmin], T]) -> T:
        """Return the result of *work* on the groups as they are now; raises BrokerError when Kafka does not
        answer in time.
        """
        return await self._calls.run(lambda: self._work(work))

    def _work(self, work: Callable[[GroupAdmin], T]) -> T:
        if self._admin is None:
            self._admin = GroupAdmin(self._settings, timeout_s=TIMEOUT_S).__enter__()
        try:
            return work(self._admin)
        except (GroupError, ConfigError):
            raise
        except HoldfastError:
            self._close()  # the reading may have a hole, or its topic is gone
            raise

    def _close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.__exit__(None, None, None)

    async def close(self) -> None:
        """Close the clients; waits until a question that is being asked has ended."""
        await self._calls.close(self._close)
