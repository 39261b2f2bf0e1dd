"""The messages of the partitions this instance holds: one confluent-kafka consumer in a thread of its own,
assigned exact positions.

It never subscribes: the claims say what it reads. Its group id is the group's, so that positions can be
committed to Kafka as well as to the coordination topic, for `kafka-consumer-groups` and every other tool that
looks there.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.clients.claims.claiming.offset_mirror import MirroredOffset
from holdfast.clients.claims.claiming.queue import FetchedMessages, FetchQueue, Lease
from holdfast.clients.topics.identities import metadata_of
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.errors import ConfigError
from holdfast.kafka.clients import make_reader
from holdfast.kafka.codes import CLOSED_TOPIC, OUT_OF_LOG, UNREADABLE, is_end
from holdfast.kafka.librdkafka_log import Quiet, impatient
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)


JOIN_S = 10.0
"""The limit on `close` waiting for the thread, which ends within a poll unless the process is starved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """The limits of fetching ahead, and the size of portions."""

    batch_messages: int = 2_000
    queue_messages: int = 20_000
    queue_bytes: int = 32 << 20
    prefetch_bytes: int = 64 << 20
    """The most that librdkafka may hold beyond the queue, over all partitions; at least PREFETCH_FLOOR for
    each.
    """
    at_most_once_messages: int = 20
    """At most once: how many messages of a partition are committed before they are handed out. A process that
    is killed loses at most as many; each portion costs two round trips to the coordination topic.
    """
    fetch_poll_s: float = 0.05
    """The longest wait of the thread for messages before it looks for changes of the assignment."""
    space_wait_s: float = 0.1

    def __post_init__(self) -> None:
        for name in ("batch_messages", "queue_messages", "queue_bytes", "at_most_once_messages"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: use at least 1, else nothing is fetched")
        if self.prefetch_bytes < 0:
            raise ConfigError(f"prefetch_bytes is {self.prefetch_bytes}: use 0 or more")
        for name in ("fetch_poll_s", "space_wait_s"):
            if not 0 < getattr(self, name) <= LIMIT_WAIT_S:
                raise ConfigError(
                    f"{name} is {getattr(self, name):g}: use more than 0 and at most {LIMIT_WAIT_S:g} seconds"
                )


LIMIT_WAIT_S = 1.0
"""The thread sees a claim that was won or given up no sooner than after such a wait."""
IDLE_S = 0.5
LEADERS_S = 5.0
LAST_COMMIT_S = 2.0
"""The limit on the last commit to Kafka when the fetcher ends."""
PREFETCH_FLOOR_BYTES = 1 << 20
SIZE_SAMPLES = 32
"""Messages of a batch that are measured to estimate its size."""


class ClaimFetcher:
    """Fetches for as many partitions as are started, and puts what it gets into a queue; *arrived* is
    called with it afterwards.

    `start` and `stop` return at once and may be called from any thread; nothing of a stopped lease comes out
    of the queue afterwards, since `stop` closes the lease before it returns.
    """

    def __init__(
        self,
        kafka: Settings,
        config: Mapping[str, Any],
        queue: FetchQueue,
        settings: FetchSettings,
        *,
        partitions: Mapping[str, int],
        failed: Callable[[Lease, str], None],
        broken: Callable[[BaseException], None],
        arrived: Callable[[list[FetchedMessages]], None] | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._clock = clock
        self._queue, self._settings = queue, settings
        self._arrived = arrived
        self._failed, self._broken = failed, broken
        self._topics = sorted(partitions)
        per_partition = max(PREFETCH_FLOOR_BYTES, settings.prefetch_bytes // max(1, sum(partitions.values())))
        self._config = {
            **impatient(config),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            # A partition with a full queue is not looked at again for this long; librdkafka's own second
            # costs 8 x in throughput.
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": per_partition >> 10,
        }
        self._watcher = Skipper(kafka, self._config, stands=self._stands, clock=clock)
        self.unreadable: dict[Place, Unreadable] = {}
        """The batches at which reading has stopped because they cannot be read."""
        self._reported: dict[Place, int] = {}
        self._hopeless: set[Place] = set()
        """Partitions whose reading ended, was reported, and has not been resumed since."""
        self._config = {**self._config, "on_commit": self._on_commit}  # the watcher's has no callbacks
        self._commands: deque[Callable[[Consumer], None]] = deque()
        self._leases: dict[Place, Lease] = {}
        self._stopping, self._called = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-claims-feed", daemon=True)
        self._consumer: Consumer | None = None
        self.last_error: str | None = None
        self.commits_failed = 0
        self._committing = 0

    # -- any thread

    def open(self) -> None:
        """Start the thread; the broker is reached when there is something to read."""
        self._consumer = make_reader(self._config, logger=quiet, on_error=self._on_error)
        self._thread.start()

    def start(self, lease: Lease) -> Lease:
        """Begin to read a partition at its lease's position."""
        self._enqueue(lambda consumer: self._assign(consumer, lease))
        return lease

    def stop(self, lease: Lease) -> None:
        """Hand out nothing more under *lease*, from this moment on."""
        lease.close()
        self._queue.drop(lease)
        self._enqueue(lambda consumer: self._unassign(consumer, lease))

    def commit(self, offsets: Mapping[Place, MirroredOffset]) -> None:
        """Commit positions to Kafka too, best effort: the coordination topic is what counts."""
        wanted = [
            TopicPartition(*place, each.offset, metadata_of(each.topic_mark))
            for place, each in offsets.items()
        ]
        self._enqueue(lambda consumer: self._commit(consumer, wanted))

    def _enqueue(self, command: Callable[[Consumer], None]) -> None:
        self._commands.append(command)
        self._called.set()

    def close(self) -> None:
        """Stop everything and release the broker's connections; queued messages are dropped with the queue,
        not here.
        """
        for lease in list(self._leases.values()):
            lease.close()
        self._stopping.set()
        self._called.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    # -- the thread

    def _run(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        try:
            self._learn_leaders(consumer)
            while not self._stopping.is_set():
                self._obey(consumer)
                if not self._places():
                    consumer.poll(0)
                    self._called.wait(IDLE_S)
                    self._called.clear()
                    continue
                if not self._room(consumer):
                    continue
                self._watcher.look(consumer)
                first = consumer.poll(self._settings.fetch_poll_s)
                if first is not None:
                    self._sort(consumer, [first, *consumer.consume(self._settings.batch_messages - 1, 0)])
            self._obey(consumer)
            consumer.unassign()
            self._finish_commits(consumer)
        except Exception as error:  # noqa: BLE001  raised to the user by the engine
            self._broken(error)
        finally:
            for lease in self._leases.values():
                lease.close()
            self._consumer = None
            self._watcher.close()
            consumer.close()

    def _places(self) -> Collection[Place]:
        """Return the partitions of Kafka's topics that are read for a lease."""
        return self._leases

    def _room(self, consumer: Consumer) -> bool:
        """Return whether there is room for more; waits a moment for it."""
        return self._queue.wait_space(self._settings.space_wait_s)

    def _learn_leaders(self, consumer: Consumer) -> None:
        """Have the leaders known before the first claim is won: to find them by an assignment takes half a
        second more.
        """
        for topic in self._topics:
            try:
                consumer.list_topics(topic, timeout=LEADERS_S)
            except KafkaException as error:
                self._on_error(error.args[0])
                return

    def _obey(self, consumer: Consumer) -> None:
        while self._commands:
            self._commands.popleft()(consumer)

    def _assign(self, consumer: Consumer, lease: Lease) -> None:
        if not lease.open:
            return
        place = (lease.topic, lease.partition)
        if place in self._leases:
            consumer.incremental_unassign([TopicPartition(*place)])
        self._leases[place] = lease
        consumer.incremental_assign([TopicPartition(*place, lease.next_offset)])
        self._watch(place, lease.next_offset)

    def _unassign(self, consumer: Consumer, lease: Lease) -> None:
        place = (lease.topic, lease.partition)
        if self._leases.get(place) is lease:
            del self._leases[place]
            consumer.incremental_unassign([TopicPartition(*place)])
            self._watch(place, None)

    def _commit(self, consumer: Consumer, offsets: list[TopicPartition]) -> None:
        self._committing += 1
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], offsets)

    def _finish_commits(self, consumer: Consumer) -> None:
        """Wait a little for commits under way: a consumer that is closed forgets them."""
        until_s = self._clock.monotonic_s() + LAST_COMMIT_S
        while self._committing and self._clock.monotonic_s() < until_s:
            consumer.poll(self._settings.fetch_poll_s)

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        self._committing -= 1
        if error is None:
            for each in offsets:
                if each.error is not None:
                    error = each.error
        if error is not None:
            self.commits_failed += 1
            if self.commits_failed == 1:
                why = (
                    _NOT_ALONE
                    if error.code() == KafkaError.UNKNOWN_MEMBER_ID
                    else "the coordination topic has them"
                )
                logger.warning(
                    "offsets were not committed to Kafka: %(error)s; %(why)s",
                    {"error": error.str(), "why": why},
                )

    def _on_error(self, error: KafkaError) -> None:
        text = error.str()
        if text != self.last_error:
            logger.warning("claimed partitions: %(problem)s", {"problem": text})
        self.last_error = text

    # -- what cannot be read

    def _watch(self, place: Place, offset: int | None) -> None:
        """Note where reading of a partition begins; None: it has ended."""
        self.unreadable.pop(place, None)
        if offset is None:
            self._watcher.forget(*place)
        else:
            self._watcher.begin(*place, offset)

    def _stands(self, found: Unreadable) -> None:
        place = (found.topic, found.partition)
        self.unreadable[place] = found
        if self._reported.get(place) == found.first:  # a stalled claim is given back, and perhaps won again
            return
        self._reported[place] = found.first
        logger.error(
            "%(found)s; other partitions continue. To have the group begin after it: holdfast "
            "groups reset-offsets %(group)s --to-offset %(offset)d --topic "
            "%(topic)s:%(partition)d --execute",
            {
                "found": found,
                "group": self._config["group.id"],
                "offset": found.last + 1,
                "topic": place[0],
                "partition": place[1],
            },
        )

    def _in_place(self, consumer: Consumer, place: Place, messages: list[Message]) -> list[Message]:
        """Return those of *messages* whose offsets can be true, and note how far they reach."""
        messages = self._watcher.in_place(consumer, place, messages)
        if self.unreadable and messages:
            self.unreadable.pop(place, None)
        if self._hopeless and messages:
            self._hopeless.discard(place)
        return messages

    # -- sorting what came

    def _sort(self, consumer: Consumer, messages: list[Message]) -> None:
        """Put *messages* into batches by partition, each in offset order, and those into the queue."""
        self.last_error = None
        assigned = self._places()
        by_place: dict[Place, list[Message]] = {}
        ends: list[FetchedMessages] = []
        if len(assigned) == 1 and not any(map(Message.error, messages)):
            by_place[next(iter(assigned))] = messages
        else:
            places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
            for message, error, place in zip(messages, map(Message.error, messages), places, strict=True):
                if error is not None:
                    self._judge(message, error, ends)
                    continue
                try:
                    by_place[place].append(message)  # type: ignore[index]
                except KeyError:
                    by_place[place] = [message]  # type: ignore[index]
        batches = []
        for place, found in by_place.items():
            if in_place := self._in_place(consumer, place, found):
                batches += self._batches(place, in_place)
        # The end of a log comes after all that is before it.
        batches += [each for each in ends if self._moves(each)]
        if batches:
            self._queue.put(batches)
            if self._arrived is not None:
                self._arrived(batches)

    def _batches(self, place: Place, messages: list[Message]) -> list[FetchedMessages]:
        lease = self._leases.get(place)
        if lease is None or not lease.open:
            return []
        first, end = messages[0].offset() or 0, (messages[-1].offset() or 0) + 1
        if first < lease.next_offset:  # of an assignment before this one
            messages = [each for each in messages if (each.offset() or 0) >= lease.next_offset]
            if not messages:
                return []
            first = messages[0].offset() or 0
        lease.next_offset = end
        return [FetchedMessages(lease, messages, first, end, end - first == len(messages), size_of(messages))]

    @staticmethod
    def _moves(end: FetchedMessages) -> bool:
        """Return whether the log ends after the fetched messages: in a control record, or a hole of
        compaction.
        """
        if end.end <= end.lease.next_offset:
            return False
        end.lease.next_offset = end.end
        return True

    def _judge(self, message: Message, error: KafkaError, ends: list[FetchedMessages]) -> None:
        place = (message.topic() or "", message.partition() or 0)
        leases = self._readers(place)
        if self._watcher.strays(place):
            return
        if is_end(error):
            end = message.offset() or 0
            self._watcher.reached(place, end)
            ends += [FetchedMessages(lease, [], end, end, True, 0) for lease in leases]
        elif error.fatal():
            raise KafkaException(error)
        elif error.code() in UNREADABLE:
            self._watcher.refused(
                place, -1 if message.offset() is None else message.offset() or 0, error.str()
            )
        elif error.code() in _HOPELESS and leases:
            self._report_hopeless(place, error)
            for lease in leases:
                self._failed(lease, error.str())
        else:
            self._on_error(error)

    def _report_hopeless(self, place: Place, error: KafkaError) -> None:
        """Say once why a claim is given back: it may be won again at the same offset, and given back
        again.
        """
        if place in self._hopeless:
            return
        self._hopeless.add(place)
        lost = (
            "; if this comes again the log is shorter than the group's offset, as after a broker lost records"
            " of it. To begin with what there is: holdfast groups reset-offsets %(group)s --to-earliest"
            " --topic %(topic)s:%(partition)d --execute"
        )
        logger.warning(
            "%(topic)s/%(partition)d cannot be read, and its claim is given back: %(problem)s"
            + (lost if error.code() in OUT_OF_LOG else ""),
            {
                "topic": place[0],
                "partition": place[1],
                "problem": error.str(),
                "group": self._config["group.id"],
            },
        )

    def _readers(self, place: Place) -> list[Lease]:
        """Return for whom a partition is read."""
        lease = self._leases.get(place)
        return [] if lease is None else [lease]


def size_of(messages: Sequence[Message]) -> int:
    """Return about how many bytes *messages* are."""
    step = max(1, len(messages) // SIZE_SAMPLES)
    return sum(map(len, messages[::step])) * step


_NOT_ALONE = (
    "the coordination topic has them. A consumer group of Kafka's own has the name of this one, and members:"
    " let one of them have another name"
)
_HOPELESS = CLOSED_TOPIC | OUT_OF_LOG
"""Errors that end the reading of a partition: its claim is given back, and the next owner begins at the first
offset that can be read.
"""
