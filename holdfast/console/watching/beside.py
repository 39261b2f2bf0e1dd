"""The state of the outbox, quarantine and lake, as of the last look at each: each has a pace of its own, and
does not wait for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from holdfast.clock import Clock, system_clock
from holdfast.console.watching.findings import HealthFinding, Urgency
from holdfast.errors import HoldfastError

T = TypeVar("T")


class BesideLook(Generic[T]):
    """Keeps the last result of *work*, for *every_s*; *judge* yields the faults in it.

    `found` is None until a look has succeeded. `trouble` is why the last one failed, which is a finding of
    *urgency*; the result before stays.
    """

    def __init__(
        self,
        name: str,
        page: str,
        work: Callable[[], Awaitable[T]],
        judge: Callable[[T], Iterable[HealthFinding]],
        *,
        every_s: float,
        urgency: Urgency,
        clock: Clock = system_clock,
    ) -> None:
        self.name, self.every_s = name, every_s
        self._page, self._work, self._judge, self._urgency, self._clock = page, work, judge, urgency, clock
        self._one = asyncio.Lock()
        self._looked_s: float | None = None
        self.found: T | None = None
        self.trouble: str | None = None
        self.at_ms: int | None = None
        """When `found` was found."""

    @property
    def looked(self) -> bool:
        """Return whether a look has ended, well or not."""
        return self._looked_s is not None

    async def fresh(self) -> None:
        """Look, unless the last look is recent enough; callers that come during a look wait for the same
        one.
        """
        async with self._one:
            now_s = self._clock.monotonic_s()
            if self._looked_s is None or now_s - self._looked_s >= self.every_s:
                await self._look()

    async def now(self) -> None:
        """Look, however young the last look is."""
        async with self._one:
            await self._look()

    async def _look(self) -> None:
        at_ms = self._clock.now_ms()
        try:
            self.found = await self._work()
            self.trouble, self.at_ms = None, at_ms
        except HoldfastError as error:
            self.trouble = str(error)
        self._looked_s = self._clock.monotonic_s()

    def findings(self) -> list[HealthFinding]:
        """Return the faults, as of the last look."""
        told = [] if self.found is None else [*self._judge(self.found)]
        if self.trouble is not None:
            told.append(
                HealthFinding(
                    urgency=self._urgency,
                    what=f"The {self.name} cannot be looked at: {self.trouble}",
                    cure="What is shown of it is what was known before, if anything.",
                    page=self._page,
                )
            )
        return told
