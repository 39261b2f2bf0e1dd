"""How frames are handed to the producer: few requests at a time, the rest waits here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

LIMIT_REQUESTS = 4
"""Requests under way at once; librdkafka's own limit for an idempotent producer is five."""
LIMIT_WAITING = 100_000
"""Frames that wait here; more than any member has partitions, so that only a broken broker reaches it."""
GATHER_S = 0.002
"""Frames of one partition handed over within this time go in one request: the producer lingers as long."""


class Ack(NamedTuple):
    """What became of a frame: *error* None when the broker has it."""

    send_id: int
    error: str | None


class _Waiting(NamedTuple):
    send_id: int
    value: bytes
    partition: int
    since_s: float


class Bursts:
    """Sends frames in order, with no more than LIMIT_REQUESTS requests under way.

    An idempotent producer of librdkafka (2.16) that has five requests under way and more to send spins on a core until one is answered. One
    member hardly notices. In a fleet that starts at once, on a broker that is slow for that moment, each of them made it slower still, and
    all together never came to rest.

    `send` may be called from any thread. *told* hears what became of each frame, within `send` or `go_on`.
    """

    def __init__(
        self,
        writer: Producer,
        topic: str,
        headers: list[tuple[str, str | bytes | None]],
        told: Callable[[Ack], object],
        *,
        unsent_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._topic, self._headers, self._tell = writer, topic, headers, told
        self._unsent_s, self._monotonic_s = unsent_s, monotonic_s
        self._lock = threading.RLock()  # librdkafka calls back within poll
        self._waiting: deque[_Waiting] = deque()
        self._requests: dict[tuple[int, int], int] = {}
        """Frames under way, by partition and number of the request as far as can be told."""
        self._gathering: dict[int, tuple[int, float]] = {}
        """Number and beginning of each partition's last request."""

    def send(self, send_id: int, value: bytes, partition: int) -> None:
        """Send a frame as soon as it may go; never waits."""
        with self._lock:
            if len(self._waiting) >= LIMIT_WAITING:
                self._tell(Ack(send_id, "too many frames wait for the broker"))
                return
            self._waiting.append(_Waiting(send_id, value, partition, self._monotonic_s()))
            self.go_on()

    def go_on(self) -> None:
        """Hear what became of frames, and send what may go now."""
        with self._lock:
            self._writer.poll(0)
            now_s = self._monotonic_s()
            while self._waiting:
                first = self._waiting[0]
                if now_s - first.since_s > self._unsent_s:
                    self._waiting.popleft()
                    self._tell(Ack(first.send_id, "not sent in time: the broker is slow"))  # later it would be a zombie's
                    continue
                request = self._request(first.partition, now_s)
                if request not in self._requests and len(self._requests) >= LIMIT_REQUESTS:
                    return
                self._waiting.popleft()
                self._produce(first, request, now_s)

    def _request(self, partition: int, now_s: float) -> tuple[int, int]:
        number, began_s = self._gathering.get(partition, (0, -1.0))
        return partition, number if now_s - began_s < GATHER_S else number + 1

    def _produce(self, frame: _Waiting, request: tuple[int, int], now_s: float) -> None:
        def told(error: KafkaError | None, _: Message) -> None:
            with self._lock:
                left = self._requests[request] - 1
                if left:
                    self._requests[request] = left
                else:
                    del self._requests[request]
                self._tell(Ack(frame.send_id, None if error is None else error.str()))

        headers: Any = self._headers
        try:
            self._writer.produce(self._topic, value=frame.value, partition=frame.partition, headers=headers, on_delivery=told)
        except (BufferError, KafkaException) as error:
            self._tell(Ack(frame.send_id, str(error)))
            return
        self._requests[request] = self._requests.get(request, 0) + 1
        if self._gathering.get(frame.partition, (-1, 0.0))[0] != request[1]:
            self._gathering[frame.partition] = request[1], now_s

    def close(self, timeout_s: float) -> int:
        """Send what waits, for up to *timeout_s*; return how many frames were never acknowledged."""
        until_s = self._monotonic_s() + timeout_s
        while True:
            self.go_on()
            left_s = until_s - self._monotonic_s()
            if left_s <= 0 or not (self._waiting or self._requests):
                return len(self._waiting) + sum(self._requests.values())
            self._writer.poll(min(left_s, 0.02))
