"""Readers whose closing goes wrong."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException

from holdfast.kafka.clients import Reader
from tests.support.patience import DEADLINE_S


class _Hanging(Consumer):
    """Closes once it is let, as librdkafka's may never."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._let, self._closed = threading.Event(), threading.Event()

    def close(self) -> None:
        self._let.wait()
        super().close()
        self._closed.set()

    def let_end(self) -> None:
        """Have it close after all."""
        self._let.set()
        assert self._closed.wait(DEADLINE_S)


class _Refusing(Consumer):
    def close(self) -> None:
        super().close()
        raise KafkaException("broken")


class HungReader(Reader, _Hanging):
    """A reader whose closing hangs in librdkafka until `let_end`."""


class RefusingReader(Reader, _Refusing):
    """A reader whose closing raises."""
