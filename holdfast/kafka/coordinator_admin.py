"""An admin client for questions to the coordinator of a group, gone before librdkafka could abort the
process over one without an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.clock import Clock, system_clock
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.errors import BrokerError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.codes import code_of, refuses_connection, retriable

T = TypeVar("T")

ATTEMPT_S = 3.0
"""The timeout of the first request. A look-up of a coordinator that began before there was one never ends, so
it is sent again. Each further attempt may take twice as long, for a slow coordinator.
"""
AGAIN_S = 0.05
SLICE_S = 0.1
"""The interval at which refused credentials are looked for."""
LIMIT_ASKED = 200
"""Groups asked about at once."""
NAMING_S = 2.0
"""The time for brokers to name the coordinator of a group whose own one did not answer."""
_OFFSETS_TOPIC = "__consumer_offsets"

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
        self._why_refused: str | None = None

    @property
    def client(self) -> AdminClient:
        """Return the client; keep no name of it beyond a call, for it ends with its last one."""
        if self._client is None:
            self._why_refused = None
            self._client = make_admin(self._config, logger=self._logger, on_error=self._on_error)
        return self._client

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._why_refused = error.str().partition(" (after ")[0] if refuses_connection(error) else None

    def ask(
        self,
        question: Callable[[AdminClient, list[str]], Mapping[str, Future[T]]],
        groups: Sequence[str],
        timeout_s: float,
    ) -> dict[str, T | KafkaException | FutureTimeoutError]:
        """Return the answer to *question* for each of *groups*: a value, the last refusal, or a timeout.

        A group is asked for again, up to *timeout_s*, while its coordinator moves, loads its log or does not
        answer, so *question* may be called several times for it. A silent coordinator does not hide the
        answers of other coordinators: each lot of LIMIT_ASKED groups has its share of the time.
        """
        until_s = self._clock.monotonic_s() + timeout_s
        found: dict[str, T | KafkaException | FutureTimeoutError] = {}
        left, attempt_s = list(groups), ATTEMPT_S
        while left:
            lots = [left[at : at + LIMIT_ASKED] for at in range(0, len(left), LIMIT_ASKED)]
            for number, lot in enumerate(lots):
                share_s = max(0.0, until_s - self._clock.monotonic_s()) / (len(lots) - number)
                answers = self._answers(question, lot, min(attempt_s, share_s))
                for group, answer in answers.items():
                    if not isinstance(answer, FutureTimeoutError) or group not in found:
                        found[group] = answer  # a refusal says more than a last attempt without an answer
            left, attempt_s = [group for group in left if _passes(found[group])], 2 * attempt_s
            if left and self._clock.monotonic_s() + AGAIN_S >= until_s:
                break
            if left:
                time.sleep(AGAIN_S)
        return found

    def _answers(
        self,
        question: Callable[[AdminClient, list[str]], Mapping[str, Future[T]]],
        groups: Sequence[str],
        wait_s: float,
    ) -> dict[str, T | KafkaException | FutureTimeoutError]:
        until_s = self._clock.monotonic_s() + wait_s
        found: dict[str, T | KafkaException | FutureTimeoutError] = {}
        # Each for itself: librdkafka gives the answers to a question about several groups once it has all of
        # them. It sends a request for each group either way.
        asked = {group: future for each in groups for group, future in question(self.client, [each]).items()}
        for group, future in asked.items():
            try:
                found[group] = self.result(future, max(0.0, until_s - self._clock.monotonic_s()))
            except (KafkaException, FutureTimeoutError) as error:
                found[group] = error  # the client is closed after a timeout: results that exist by then count
        return found

    def coordinators(self, groups: Sequence[str]) -> dict[str, str]:
        """Return the broker that coordinates each of *groups*, as "host:port (id)".

        Groups whose coordinator the brokers do not name within NAMING_S are left out.
        """
        try:
            found = self.client.list_topics(_OFFSETS_TOPIC, NAMING_S)
        except KafkaException:
            return {}
        partitions = found.topics[_OFFSETS_TOPIC].partitions if _OFFSETS_TOPIC in found.topics else {}
        out: dict[str, str] = {}
        for group in groups if partitions else ():
            home = partitions.get(coordinator_partition(group, len(partitions)))
            broker = None if home is None else found.brokers.get(home.leader)
            if broker is not None:
                out[group] = f"{broker.host}:{broker.port} ({broker.id})"
        return out

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Return the answer; raises KafkaException, and concurrent.futures.TimeoutError when there is none
        in *timeout_s*. BrokerError as soon as the credentials are refused.
        """
        while True:
            slice_s = min(SLICE_S, timeout_s)
            try:
                return future.result(slice_s)
            except FutureTimeoutError:
                timeout_s -= slice_s
                self._require_log_in()
                if timeout_s <= 0:
                    self.close()
                    raise

    def _require_log_in(self) -> None:
        if self._client is not None:
            self._client.poll(0)  # lets the client say what it ran into
        if self._why_refused is not None:
            self.close()
            raise BrokerError(
                f"cannot log in to Kafka at {self._config.get('bootstrap.servers')}: {self._why_refused}; "
                "check the sasl.* and ssl.* properties"
            )

    def close(self) -> None:
        """Let go of the broker, whatever is still open."""
        self._client = None


def _passes(answer: object) -> bool:
    if isinstance(answer, FutureTimeoutError):
        return True
    return isinstance(answer, KafkaException) and retriable(code_of(answer))
