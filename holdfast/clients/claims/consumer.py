"""`ClaimConsumer`: a service's consumer whose partitions are claimed over the coordination topic,
interoperable with Go's Marshal.

    async with ClaimConsumer("127.0.0.1:9092", topics=["orders"], group="billing", client="billing-1") as
    consumer:
        async for message in consumer:
            handle(message.value)
            message.commit()

It needs a broker and nothing else: it reads the claims itself. `client` must be the same after a restart and
unique in its group.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from holdfast.clients.claims.balanced import engine_of
from holdfast.clients.claims.base import ConsumerBase
from holdfast.clients.claims.claiming.events import LIMIT_EVENTS
from holdfast.clients.claims.messages import ClaimedBatch, ClaimedMessage
from holdfast.clients.claims.settings import consumer_settings, require_helpers
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.config.client_arguments import require_wait
from holdfast.core.member.actions import Notify
from holdfast.core.member.member import Draws

__all__ = ["ClaimConsumer", "ClaimedBatch", "ClaimedMessage"]


class ClaimConsumer(ConsumerBase):
    """Consumes the partitions that this instance holds. Use it in `async with`; every await ends by a
    deadline, but waiting for messages.

    Leaving the block gives all claims back, after messages in flight were committed or *drain_s* is over;
    call `terminate(release=False)` before that to keep them for a restart of the same client. At most once,
    messages that the log has committed are still handed out to a task that continues to iterate, as long;
    those not taken go to the next owner. A process that is killed loses at most *at_most_once_messages* of
    each partition, and an event (`undelivered`) names the messages that were lost with a claim. An error ends
    the iteration: InstanceConflictError when a newer process runs under the same client id, ClockSkewError,
    TopicError, BrokerError.
    """

    def __init__(
        self,
        kafka: Settings | str,
        *,
        topics: Sequence[str],
        group: str,
        client: str,
        clock: Clock = system_clock,
        draws: Draws | None = None,
        **named: Any,
    ) -> None:
        """Describe a consumer; *kafka* is `host:port,…` or Settings with security and the name of the
        coordination topic.

        *named* are the settings of MemberSettings, EngineSettings and FetchSettings:
        `heartbeat_interval_s=3`, `delivery="at-most-once"`, `whole_topic=True`, `greedy=True`,
        `maximum_claims=4`, `interop=True` … An unknown name is a ConfigError.
        """
        require_helpers(clock, draws)
        found = consumer_settings(kafka, topics=topics, group=group, client=client, named=named)
        super().__init__(
            engine_of(
                found.kafka,
                found.member,
                found.engine,
                found.feed,
                found.groups,
                clock=clock,
                draws=draws or random.Random(),
            )
        )
        self._arrival = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await _result(self._engine.start())
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The error on its way says more, and one error is raised once.
        raised = kind is not None or self._engine.failure_raised
        if self._engine.ended.is_set():
            if not raised:
                self._engine.raise_failure()
            return
        with suppress(*((Exception,) if raised else ())):
            await self.terminate(release=True)

    async def terminate(self, *, release: bool, timeout_s: float | None = None) -> None:
        """Hand out nothing more; with *release* give all claims back, else leave them to a restart within the
        time they stay live.

        At most once with *release*, iteration ends when the committed messages have been handed out, or
        *drain_s* is over. Raises BrokerError when the log does not take it in time; then the claims run out
        by themselves.
        """
        require_wait(timeout_s, none=True)
        try:
            await _result(self._engine.terminate(release=release, timeout_s=timeout_s))
        finally:
            await self._close()

    async def _close(self) -> None:
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._engine.close))

    # -- messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ClaimedMessage:
        if self._handout is None:
            await asyncio.sleep(
                0
            )  # a backlog must not keep other tasks from running; before the gate, not after it
        while (message := self._next_message()) is None:
            if self._is_over():
                raise StopAsyncIteration
            await self._more()
        return message

    async def batches(self) -> AsyncIterator[ClaimedBatch]:
        """Yield batches, each of one partition; commit each when it is done."""
        while not self._is_over():
            batch = self._next_batch()
            if batch is None:
                await self._more()
            else:
                yield batch
                await asyncio.sleep(0)

    async def get(self, timeout_s: float) -> ClaimedMessage | None:
        """Return the next message, None when there is none within *timeout_s* or the consumer has ended."""
        require_wait(timeout_s)
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        return None

    async def events(self) -> AsyncIterator[Notify]:
        """Yield what happens to the claims from now on, until the end.

        LIMIT_EVENTS may wait to be taken; then the oldest are dropped.
        """
        loop, waiting, came = (
            asyncio.get_running_loop(),
            deque[Notify | None](maxlen=LIMIT_EVENTS),
            asyncio.Event(),
        )

        def receive(event: Notify | None) -> None:
            waiting.append(event)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(came.set)

        with self._engine.events.listening(receive):
            while not self._engine.ended.is_set() or waiting:
                if not waiting:
                    came.clear()
                    if not waiting:
                        await came.wait()
                elif (event := waiting.popleft()) is not None:
                    yield event

    async def _more(self) -> None:
        """Return when something may have come, or has changed."""
        self._engine.require_started()
        self._arrival.clear()
        self._engine.delivery.queue.wake_with(self._wake)
        await self._arrival.wait()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._arrival.set)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when the log shows all that was committed so far under claims that are held.

        Raises BrokerError when it does not in time, ClaimLostError when one of these claims is lost before.
        """
        require_wait(timeout_s, none=True)
        await _result(self._engine.flush(timeout_s))


async def _result(future: Future[None]) -> None:
    await asyncio.wrap_future(future)
