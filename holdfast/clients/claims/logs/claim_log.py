"""The coordination topic as a claim client uses it: a reader that follows it from its beginning, and a writer
of frames.

The reader never joins a group and the writer is never transactional: both are as the Go library expects of
its neighbours (PROTOCOL.md#frames). All calls are made from one thread, but `send`, which any thread may
call.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from holdfast.config import Settings
from holdfast.core.claims.frames import coordination_partition
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import make_reader, make_writer
from holdfast.kafka.codes import CLOSED_TOPIC, NO_TOPIC, is_of_group
from holdfast.kafka.frame_sender import Ack, FrameSender
from holdfast.kafka.librdkafka_log import Quiet, impatient
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.kafka.reading.log_tail import EndOfLog, following
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

READ_RECORDS = 2_000
"""Records taken from the reader at once."""
FRAME_LINGER_MS = 2
"""The writer waits so long for frames to go together; a member of a thousand partitions writes in bursts."""
LIMIT_UNSENT = 100_000
"""Frames written and not acknowledged; more than any member has partitions, so that only a broken broker
reaches it.
"""

CAPABILITY_HEADER = ("holdfast", b"1")
"""On frames of members that obey a pause of their group.

Not written with `interop`: then a frame is what the Go library writes.
"""


class LogRecord(NamedTuple):
    """One record of the coordination topic; *at_ms* is -1 where it carries no time, *capable* whether its
    sender obeys pauses.
    """

    partition: int
    offset: int
    at_ms: int
    value: bytes | None
    capable: bool = False


class CoordinationLog:
    """Reads the coordination partitions that carry *topics*, and appends to any of them.

    `caught_up` holds the partitions read to the end that they had at some moment after `open`, despite holes
    and control records at the tail (`EndOfLog`).
    """

    def __init__(
        self,
        settings: Settings,
        *,
        compression: str = "none",
        interop: bool = False,
        send_timeout_s: float = 30.0,
        follow_wait_ms: int = 20,
    ) -> None:
        self._settings, self._topic = settings, settings.coordination_topic
        self._compression, self._send_timeout_s, self._follow_wait_ms = (
            compression,
            send_timeout_s,
            follow_wait_ms,
        )
        self._headers: list[tuple[str, str | bytes | None]] = [] if interop else [CAPABILITY_HEADER]
        self._reader: LogReader | None = None
        self._skipper: Skipper | None = None
        self._writer: Producer | None = None
        self._sender: FrameSender | None = None
        self._acks: deque[Ack] = deque()
        self.partitions = 0
        self.reading: frozenset[int] = frozenset()
        self.caught_up: set[int] = set()
        self._tails: dict[int, EndOfLog] = {}
        self.last_error: str | None = None
        self._warned_of_time = False

    # -- life

    def open(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect, and begin to read all frames about *topics*, from the beginning.

        Raises TopicError when there is no coordination topic, BrokerError when no broker answers within
        *timeout_s*.
        """
        config = impatient(following(self._settings, "claims-reader", self._follow_wait_ms))
        self._skipper = Skipper(self._settings, config)
        self._reader = LogReader(
            make_reader(config, logger=quiet, on_error=self._on_error),
            self._skipper,
            limit=READ_RECORDS,
            refuse=self._refuse,
        )
        self.partitions = self._count(timeout_s)
        self.follow(topics)
        writing: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": self._compression,
            "linger.ms": FRAME_LINGER_MS,
            # A heartbeat that arrives long after it was sent is a zombie's: better it never arrives.
            "message.timeout.ms": max(1_000, int(self._send_timeout_s * 1_000)),
            "queue.buffering.max.messages": LIMIT_UNSENT,
        }
        produces = impatient(self._settings.producer(**writing))
        self._writer = make_writer(produces, logger=quiet, on_error=self._on_error)
        self._sender = FrameSender(
            self._writer, self._topic, self._acks.append, unsent_s=self._send_timeout_s, headers=self._headers
        )

    def _count(self, timeout_s: float) -> int:
        assert self._reader is not None
        try:
            listed = self._reader.consumer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
            if listed.error is not None:
                raise KafkaException(listed.error)
        except KafkaException as error:
            self.close()
            cause: KafkaError = error.args[0]
            if cause.code() in NO_TOPIC:
                raise TopicError(
                    f"the coordination topic {self._topic} does not exist at"
                    f" {self._settings.bootstrap_servers}: create it with `holdfast topics create"
                    " --partitions N`, without -A, or name another one by the setting coordination_topic"
                ) from None
            why = self.last_error or cause.str()
            raise BrokerError(
                f"cannot read the coordination topic {self._topic} at {self._settings.bootstrap_servers}"
                f" within {timeout_s:g} s: {why}; check bootstrap.servers and the broker"
            ) from None
        return len(listed.partitions)

    def follow(self, topics: Iterable[str]) -> None:
        """Read the coordination partitions of *topics* too, each from its beginning; those read already
        continue.
        """
        self.follow_partitions({coordination_partition(topic, self.partitions) for topic in topics})

    def follow_partitions(self, partitions: AbstractSet[int]) -> None:
        """Read these coordination partitions too."""
        assert self._reader is not None
        added = partitions - self.reading
        if added:
            # From 0, and from the first there is where that is gone (auto.offset.reset): asking for the
            # beginning takes half a second.
            self._reader.follow({(self._topic, number): 0 for number in sorted(added)})
            self.reading |= added
            self._tails |= {number: EndOfLog(self._reader, (self._topic, number)) for number in added}

    def close(self, timeout_s: float = 0.0) -> int:
        """Wait up to *timeout_s* for acknowledgements, let go of the broker, and return how many frames
        were never acknowledged.
        """
        writer, self._writer = self._writer, None
        sender, self._sender = self._sender, None
        reader, self._reader = self._reader, None
        unsent = 0
        if writer is not None and sender is not None:
            unsent = sender.close(timeout_s)
            writer.purge()
            writer.flush(0)
        if reader is not None:
            reader.close()
        return unsent

    def _on_error(self, error: KafkaError) -> None:
        text = error.str()
        if text != self.last_error:  # librdkafka repeats itself many times a second while a broker is away
            logger.warning("coordination topic: %(problem)s", {"problem": text})
        self.last_error = text

    # -- reading

    def poll(self, timeout_s: float) -> list[LogRecord]:
        """Return the records since the last call, at most READ_RECORDS and none of them twice; wait up to
        *timeout_s* for the first.

        Raises TopicError when the topic is gone or must not be read, BrokerError on what no waiting mends.
        """
        assert self._reader is not None
        out = []
        for message in self._reader.read(timeout_s):
            at = self._append_ms(message)
            capable = CAPABILITY_HEADER in (message.headers() or ())
            out.append(
                LogRecord(message.partition() or 0, message.offset() or 0, at, message.value(), capable)
            )
        if out:
            self.last_error = None
        for partition in [number for number, tail in self._tails.items() if tail.is_reached()]:
            del self._tails[partition]
            self.caught_up.add(partition)
        return out

    def _append_ms(self, message: Message) -> int:
        """Return when the broker appended a record, -1 where only its sender says when it was: one clock that
        is wrong must not move the time of all claims (PROTOCOL.md#time).
        """
        kind, at_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            return at_ms
        if kind == TIMESTAMP_CREATE_TIME and not self._warned_of_time:
            self._warned_of_time = True
            logger.warning(
                "%(topic)s/%(partition)d offset %(offset)d has the time of its sender and not the broker's:"
                " set message.timestamp.type=LogAppendTime for the topic; until then claims go by the clocks"
                " of their members",
                {"topic": self._topic, "partition": message.partition(), "offset": message.offset()},
            )
        return -1

    @property
    def ends(self) -> dict[int, int]:
        """Return the latest end that was reported of each partition."""
        ended = {} if self._reader is None else self._reader.ended
        return {partition: end for (_, partition), end in ended.items()}

    @property
    def skipped(self) -> int:
        """Return how many unreadable batches were passed."""
        return 0 if self._skipper is None else self._skipper.skipped

    def _refuse(self, error: KafkaError) -> None:
        if error.code() in CLOSED_TOPIC:
            raise TopicError(f"coordination topic {self._topic}: {error.str()}")
        if error.fatal():
            raise BrokerError(f"coordination topic {self._topic}: {error.str()}")
        if not is_of_group(error):
            self._on_error(error)

    # -- writing

    def send(self, send_id: int, value: bytes, partition: int) -> None:
        """Append a frame; `acks` reports what becomes of it under *send_id*, sooner or later.

        Never waits.
        """
        if self._sender is None:
            self._acks.append(Ack(send_id, "the client is closed"))
        else:
            self._sender.send(send_id, value, partition)

    def acks(self) -> list[Ack]:
        """Return the outcomes of frames since the last call, without waiting."""
        if self._sender is not None:
            self._sender.go_on()
        out = []
        while self._acks:
            out.append(self._acks.popleft())
        return out
