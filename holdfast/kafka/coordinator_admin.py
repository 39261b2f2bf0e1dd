"""An admin client for questions to the coordinator of a group, gone before librdkafka could abort the
process over one without an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.clock import Clock, system_clock
from holdfast.kafka.clients import make_admin
from holdfast.kafka.codes import code_of, retriable

T = TypeVar("T")

ATTEMPT_S = 3.0
"""How long one question may take before it is put again: a look-up of a coordinator that began before there
was one waits for it in vain.
"""
AGAIN_S = 0.05

NEVER_S = 3_600.0
"""The `request_timeout` of questions to a coordinator: longer than anybody here waits."""


class CoordinatorAdmin:
    """Asks coordinators. Put questions to `client` with a `request_timeout` of NEVER_S, and wait for the
    answers by `result`.

    librdkafka keeps a question to a coordinator after its `request_timeout` has ended it, sends it when the
    coordinator is back, and then aborts: `eonce->refcnt > 0` (confluentinc/librdkafka#3663). A client that
    goes while a question is open forgets it in good order. So a question never ends by librdkafka's timeout
    here. Dropping a question drops its client; the next question makes a new one.
    """

    def __init__(self, config: dict[str, Any], logger: Any, *, clock: Clock = system_clock) -> None:
        self._config, self._logger, self._clock = config, logger, clock
        self._client: AdminClient | None = None

    @property
    def client(self) -> AdminClient:
        """Return the client; keep no name of it beyond a call, for it ends with its last one."""
        if self._client is None:
            self._client = make_admin(self._config, logger=self._logger)
        return self._client

    def ask(
        self,
        question: Callable[[AdminClient, list[str]], Mapping[str, Future[T]]],
        groups: Sequence[str],
        timeout_s: float,
    ) -> dict[str, T | KafkaException]:
        """Return what *question* brings for each of *groups*, which may be asked twice: the answer, or the
        last refusal.

        A group whose coordinator moves, still loads its log or does not answer is asked for again, until
        *timeout_s* is over; concurrent.futures.TimeoutError where there was no answer by then.
        """
        until_s = self._clock.monotonic_s() + timeout_s
        found: dict[str, T | KafkaException] = {}
        left = list(groups)
        while left:
            attempt_until_s = min(until_s, self._clock.monotonic_s() + ATTEMPT_S)
            silence: FutureTimeoutError | None = None
            try:
                for group, future in question(self.client, left).items():
                    try:
                        found[group] = self.result(
                            future, max(0.0, attempt_until_s - self._clock.monotonic_s())
                        )
                    except KafkaException as error:
                        found[group] = error
            except FutureTimeoutError as error:
                silence = error  # the client has gone, and with it what it was still asked
            left = [group for group in left if group not in found or _passes(found[group])]
            if left and self._clock.monotonic_s() + AGAIN_S >= until_s:
                if silence is not None:
                    raise silence
                break
            if left:
                time.sleep(AGAIN_S)
        return found

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Return the answer; raises KafkaException, and concurrent.futures.TimeoutError when there is none
        in *timeout_s*.
        """
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the broker, whatever is still open."""
        self._client = None


def _passes(answer: object) -> bool:
    return isinstance(answer, KafkaException) and retriable(code_of(answer))
