"""A producer with a name that outlives its processes: every record says whose it is, in which epoch, and its
sequence number.

    with SequencedProducer(settings, "billing") as producer:
        producer.send("invoices", value, key=b"customer-7")
        producer.flush()

The bookkeeper then finds what came twice, late or never, and what a process sent that should have been dead;
`dedupe` removes it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clients.producers.names import NameHolder
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.config.client_arguments import (
    require_clock,
    require_number,
    require_settings,
    require_type,
    require_wait,
    require_whole,
)
from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.engine.declared.processor import Headers
from holdfast.core.kafka.sequences import MAX_SEQUENCE, NO_SEQUENCE, advance
from holdfast.core.producers.stamps import NAMES, Stamp, stamp_headers
from holdfast.errors import BrokerError, ConfigError, FencedError, TopicError
from holdfast.kafka.clients import make_writer
from holdfast.tracing.spans import record_headers, sending

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
LIMIT_UNSURE = 100_000
LIMIT_UNSURE_MOST = 5_000_000
LEAST_TIMEOUT_S, LIMIT_TIMEOUT_S = 0.01, 86_400.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Sent:
    """A record on its way: where to, and its stamp."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    stamp: Stamp


class SequencedProducer:
    """Sends stamped records under *name*. One process holds a name at a time: `open` takes it over from the
    last holder.

    Each epoch counts from 0 in every partition, and says so. A record whose delivery failed is kept and sent
    again by `flush` under the same stamp, so that one which did arrive is found to be a duplicate. A caller
    that has numbers of its own, the same after a restart, gives them (`sequence`): then what it sends again
    after a restart is found too, since such numbers continue through epochs.

    Several threads may use it. All waits end within *timeout_s*; at most *limit_unsure* records wait for
    their acknowledgement.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        instance: str = "",
        timeout_s: float = 30.0,
        limit_unsure: int = LIMIT_UNSURE,
        clock: Clock = system_clock,
    ) -> None:
        require_settings(settings)
        require_type("instance", instance, str)
        timeout_s = require_number("timeout_s", timeout_s, LEAST_TIMEOUT_S, LIMIT_TIMEOUT_S)
        limit_unsure = require_whole("limit_unsure", limit_unsure, 1, LIMIT_UNSURE_MOST)
        require_clock(clock)
        self._names = NameHolder(settings, name, instance=instance, timeout_s=timeout_s, clock=clock)
        self._timeout_s, self._limit, self._clock = timeout_s, limit_unsure, clock
        own: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "message.timeout.ms": int(timeout_s * 1000),
            "queue.buffering.max.messages": min(10_000_000, 2 * limit_unsure),
        }
        self._producer = make_writer(settings.producer(**own), logger=logger)
        self._lock = threading.RLock()
        self._last: dict[tuple[str, int], int] = {}
        self._partitions: dict[str, int] = {}
        self._turn = self._unsure = 0
        self._failed: list[Sent] = []
        self._failure = ""
        self._fenced: FencedError | None = None
        self._check_s = 0.0
        self.epoch = -1

    # -- life

    def open(self) -> Self:
        """Register the name and return the producer, ready to send; who held the name before is fenced."""
        self.epoch = self._names.register()
        return self

    def close(self) -> None:
        """Flush and end; BrokerError when records are left whose delivery is unknown."""
        try:
            self.flush()
        finally:
            self._names.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._names.close()

    @property
    def name(self) -> str:
        return self._names.name

    @property
    def producer_id(self) -> int:
        return self._names.producer_id

    # -- sending

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Sent:
        """Hand a record over for sending and return its stamp and partition: that of its key as Java clients
        choose it, else in turn. Within a trace of OpenTelemetry its headers carry that, unless they have a
        traceparent.

        FencedError once another process holds the name. BrokerError when the broker takes nothing for
        *timeout_s*.
        """
        if any(name in NAMES for name, _ in headers):
            raise ConfigError(
                f"headers {[name for name, _ in headers]}: {', '.join(NAMES)} are set by the producer"
            )
        if sequence is not None and not 0 <= sequence <= MAX_SEQUENCE:
            raise ConfigError(
                f"sequence {sequence} is not within 0..{MAX_SEQUENCE}; after the largest comes 0"
            )
        with self._lock:
            self._check()
            place = (topic, self._partition(topic, key) if partition is None else partition)
            if sequence is None:
                stamp = Stamp(self.name, self.epoch, advance(self._last.get(place, NO_SEQUENCE), 1), 0)
            else:
                stamp = Stamp(self.name, self.epoch, sequence)
            own = sum(len(name) + len(content or b"") for name, content in headers)
            carried = record_headers(headers, len(key or b"") + len(value or b"") + own)
            sent = Sent(*place, key, value, (*headers, *carried, *stamp_headers(stamp)), stamp)
            self._produce(sent)
            # Only now: a number that was not handed over may be given to the next record.
            self._last[place] = stamp.sequence
            return sent

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent is acknowledged, sending what failed again; BrokerError when that
        takes longer than *timeout_s*.
        """
        require_wait(timeout_s, none=True)
        with sending(f"send {self.name}", "PRODUCER", {"messaging.system": "kafka"}):
            self._flush(self._timeout_s if timeout_s is None else timeout_s)

    def _flush(self, timeout_s: float) -> None:
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            left = self._producer.flush(max(0.0, min(1.0, deadline_s - self._clock.monotonic_s())))
            with self._lock:
                self._check()
                if not left and not self._failed:
                    return
                if self._clock.monotonic_s() >= deadline_s:
                    why = f"; {self._failure}" if self._failure else ""
                    raise BrokerError(
                        f"producer {self.name}: {left + len(self._failed)} records are not acknowledged{why};"
                        " flush again, or check the broker"
                    )
                again, self._failed = self._failed, []
                for sent in again:
                    self._produce(sent)

    def bump(self) -> int:
        """Begin a new epoch under the same name, and return it: numbers begin at 0 again. Flush first."""
        with self._lock:
            self._check()
            if self._unsure or self._failed:
                raise BrokerError(
                    f"producer {self.name}: records of epoch {self.epoch} are not acknowledged; flush before"
                    " a new epoch"
                )
            self.epoch = self._names.bump()
            self._last.clear()
            return self.epoch

    # -- within

    def _check(self) -> None:
        if self.epoch < 0:
            raise ConfigError(
                f"producer {self.name} is not open: use it in a `with` statement, or call open()"
            )
        now_s = self._clock.monotonic_s()
        if self._fenced is None and now_s >= self._check_s:
            self._check_s = now_s + CHECK_EVERY_S
            try:
                self._names.check()
            except FencedError as error:
                self._fenced = error
        if self._fenced is not None:
            raise self._fenced

    def _partition(self, topic: str, key: bytes | None) -> int:
        count = self._partitions.get(topic)
        if count is None:
            try:
                listed = self._producer.list_topics(topic, timeout=self._timeout_s).topics[topic]
            except KafkaException as error:
                raise BrokerError(
                    f"the partitions of {topic} cannot be asked for: {error.args[0].str()}; check the broker"
                ) from error
            if listed.error is not None or not listed.partitions:
                raise TopicError(f"topic {topic} does not exist: create it first")
            count = self._partitions[topic] = len(listed.partitions)
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % count
        self._turn += 1
        return self._turn % count

    def _produce(self, sent: Sent) -> None:
        until_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            if self._unsure + len(self._failed) < self._limit:
                try:
                    self._producer.produce(
                        sent.topic,
                        value=sent.value,
                        key=sent.key,
                        partition=sent.partition,
                        headers=list(sent.headers),
                        on_delivery=partial(self._delivered, sent),
                    )
                    break
                except BufferError:
                    pass
                except KafkaException as error:
                    raise BrokerError(
                        f"producer {self.name}: {sent.topic} does not take the record: {error.args[0].str()}"
                    ) from error
            if self._clock.monotonic_s() >= until_s:
                raise BrokerError(
                    f"producer {self.name}: {self._unsure + len(self._failed)} records wait for their"
                    f" acknowledgement, and none came for {self._timeout_s:g} s; flush, or check the broker"
                )
            self._producer.poll(_POLL_S)
        self._unsure += 1
        self._producer.poll(0)

    def _delivered(self, sent: Sent, error: KafkaError | None, _: Message) -> None:
        with self._lock:
            self._unsure -= 1
            if error is not None:
                self._failure = error.str()
                self._failed.append(sent)
