"""Passes frames to the producer, one request a partition at a time; further frames wait here."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.clock import system_clock

LIMIT_WAITING = 100_000
"""Frames that wait here or are under way; more than any member has partitions, so that only a broken
broker reaches it.
"""
GATHER_S = 0.001
"""Frames of one partition handed over within this time go in one request: the producer lingers longer."""

Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class Ack(NamedTuple):
    """The outcome of a frame: *error* is None when the broker has it."""

    send_id: int
    error: str | None


class _Waiting(NamedTuple):
    send_id: int
    value: bytes
    since_s: float


class _PartitionFrames:
    """The frames of one partition: those that wait, how many are under way, and since when these are
    gathered.
    """

    __slots__ = ("began_s", "under_way", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.under_way, self.began_s = 0, 0.0

    def is_open(self, now_s: float) -> bool:
        return not self.under_way or now_s - self.began_s < GATHER_S


class FrameSender:
    """Sends the frames of each partition in order, with one request under way; frames that arrive in the
    meantime go together in the next.

    An idempotent producer of librdkafka (2.16) that has five messages of a partition under way sends no more
    of it before they are answered, and spins on a core all that time if there are more
    (`rd_kafka_toppar_producer_serve` takes messages for requests there). One member hardly notices. In a
    fleet that starts at once, on a broker that is slow for that moment, each of them made it slower still,
    and all together never came to rest.

    `send` may be called from any thread. It calls *told* with the result of each frame, within `send` or
    `go_on`.
    """

    def __init__(
        self,
        writer: Producer,
        topic: str,
        told: Callable[[Ack], object],
        *,
        unsent_s: float,
        key: bytes | None = None,
        headers: Headers | None = None,
        monotonic_s: Callable[[], float] = system_clock.monotonic_s,
    ) -> None:
        self._writer, self._topic, self._tell = writer, topic, told
        self._same: dict[str, Any] = {"key": key, "headers": headers}
        self._unsent_s, self._monotonic_s = unsent_s, monotonic_s
        self._lock = threading.RLock()  # librdkafka calls back within poll
        self._ways: dict[int, _PartitionFrames] = {}
        self._left = 0

    def send(self, send_id: int, value: bytes, partition: int) -> None:
        """Send a frame as soon as it may go; never waits."""
        with self._lock:
            if self._left >= LIMIT_WAITING:
                self._tell(Ack(send_id, "too many frames wait for the broker"))
                return
            self._left += 1
            self._ways.setdefault(partition, _PartitionFrames()).waiting.append(
                _Waiting(send_id, value, self._monotonic_s())
            )
            self.go_on()

    def go_on(self) -> None:
        """Hear what became of frames, and send what may go now."""
        with self._lock:
            self._writer.poll(0)
            now_s = self._monotonic_s()
            for partition, way in self._ways.items():
                while way.waiting:
                    first = way.waiting[0]
                    if now_s - first.since_s > self._unsent_s:
                        way.waiting.popleft()
                        self._done(
                            first, "not sent in time: the broker is slow"
                        )  # later it would be a zombie's
                    elif way.is_open(now_s):
                        self._produce(way, way.waiting.popleft(), partition, now_s)
                    else:
                        break

    def _produce(self, way: _PartitionFrames, frame: _Waiting, partition: int, now_s: float) -> None:
        def told(error: KafkaError | None, _: Message) -> None:
            with self._lock:
                way.under_way -= 1
                self._done(frame, None if error is None else error.str())

        try:
            self._writer.produce(
                self._topic, value=frame.value, partition=partition, on_delivery=told, **self._same
            )
        except (BufferError, KafkaException) as error:
            self._done(frame, str(error))
            return
        if not way.under_way:
            way.began_s = now_s
        way.under_way += 1

    def _done(self, frame: _Waiting, error: str | None) -> None:
        self._left -= 1
        self._tell(Ack(frame.send_id, error))

    def close(self, timeout_s: float) -> int:
        """Send what waits, for up to *timeout_s*; return how many frames were never acknowledged."""
        until_s = self._monotonic_s() + timeout_s
        while True:
            self.go_on()
            left_s = until_s - self._monotonic_s()
            if left_s <= 0 or not self._left:
                return self._left
            self._writer.poll(min(left_s, 0.02))
