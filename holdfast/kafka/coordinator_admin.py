"""An admin client for questions to the coordinator of a group, gone before librdkafka could abort the
process over one without an answer.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka.admin import AdminClient

from holdfast.kafka.clients import make_admin

T = TypeVar("T")

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

    def __init__(self, config: dict[str, Any], logger: Any) -> None:
        self._config, self._logger = config, logger
        self._client: AdminClient | None = None

    @property
    def client(self) -> AdminClient:
        """Return the client; keep no name of it beyond a call, for it ends with its last one."""
        if self._client is None:
            self._client = make_admin(self._config, logger=self._logger)
        return self._client

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
