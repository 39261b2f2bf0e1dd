"""`BlockingClaimConsumer`: the same as `ClaimConsumer` for services without asyncio.

with BlockingClaimConsumer("127.0.0.1:9092", topics=["orders"], group="billing", client="billing-1") as
consumer:
    for message in consumer:
        handle(message.value)
        message.commit()
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from holdfast.clients.claims.balanced import engine_of
from holdfast.clients.claims.base import ConsumerBase
from holdfast.clients.claims.messages import ClaimedBatch, ClaimedMessage
from holdfast.clients.claims.settings import consumer_settings, require_helpers
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.config.client_arguments import require_wait
from holdfast.core.member.member import Draws
from holdfast.errors import BrokerError

__all__ = ["BlockingClaimConsumer"]

_SLACK_S = 5.0
"""The engine ends every wait by its own deadline; this is only for an engine that does not run any more."""
_LOOK_S = 1.0
"""A thread that waits for messages looks up this often, so that Ctrl-C reaches it."""


class BlockingClaimConsumer(ConsumerBase):
    """Consumes the partitions that this instance holds.

    Use it in `with`. One thread takes messages; any thread may commit them.
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
        """Describe a consumer as `ClaimConsumer` does."""
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
        self._options, self._clock = found.engine, clock
        self._arrival = threading.Event()

    def __enter__(self) -> Self:
        try:
            self._wait(
                self._engine.start(), self._options.start_timeout_s + 4 * self._options.request_timeout_s
            )
        except BaseException:
            self._engine.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The error on its way says more, and one error is raised once.
        raised = kind is not None or self._engine.failure_raised
        if self._engine.ended.is_set():
            if not raised:
                self._engine.raise_failure()
            return
        with suppress(*((Exception,) if raised else ())):
            self.terminate(release=True)

    def terminate(self, *, release: bool, timeout_s: float | None = None) -> None:
        """Hand out nothing more; with *release* give all claims back, else leave them to a restart within the
        time they stay live.

        At most once with *release*, a thread that iterates gets the committed messages before its iteration
        ends, within *drain_s*.
        """
        require_wait(timeout_s, none=True)
        within_s = timeout_s or self._options.stop_within_s(self._engine.member_settings)
        try:
            self._wait(self._engine.terminate(release=release, timeout_s=within_s), within_s)
        finally:
            self._engine.close()

    def __iter__(self) -> Iterator[ClaimedMessage]:
        return self

    def __next__(self) -> ClaimedMessage:
        while (message := self._next_message()) is None:
            if self._is_over():
                raise StopIteration
            self._more(_LOOK_S)
        return message

    def batches(self) -> Iterator[ClaimedBatch]:
        """Yield batches, each of one partition; commit each when it is done."""
        while not self._is_over():
            batch = self._next_batch()
            if batch is None:
                self._more(_LOOK_S)
            else:
                yield batch

    def get(self, timeout_s: float) -> ClaimedMessage | None:
        """Return the next message, None when there is none within *timeout_s* or the consumer has ended."""
        require_wait(timeout_s)
        until_s = self._clock.monotonic_s() + timeout_s
        while (message := self._next_message()) is None:
            left_s = until_s - self._clock.monotonic_s()
            if self._is_over() or left_s <= 0:
                return None
            self._more(min(_LOOK_S, left_s))
        return message

    def _more(self, timeout_s: float) -> None:
        self._engine.require_started()
        self._arrival.clear()
        self._engine.delivery.queue.wake_with(self._arrival.set)
        self._arrival.wait(timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when the log shows all that was committed so far under claims that are held.

        Raises BrokerError when it does not in time, ClaimLostError when one of these claims is lost before.
        """
        require_wait(timeout_s, none=True)
        within_s = timeout_s or self._options.flush_timeout_s
        self._wait(self._engine.flush(within_s), within_s)

    @staticmethod
    def _wait(future: Future[None], timeout_s: float) -> None:
        try:
            future.result(timeout_s + _SLACK_S)
        except TimeoutError:
            raise BrokerError(
                f"the client's own thread did not answer within {timeout_s + _SLACK_S:g} s: the process is"
                " starved"
            ) from None
