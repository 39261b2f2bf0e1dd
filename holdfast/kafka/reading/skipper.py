"""Takes a librdkafka consumer past a batch that it cannot read, and past nothing else.

A consumer of librdkafka is stuck for ever at a batch that it cannot unpack or decode. In a log by which
members exchange messages no member can read such a batch, so all of them pass it alike: the log alone decides
which batches are passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.kafka.codes import UNREADABLE, is_end

if TYPE_CHECKING:
    from holdfast.kafka.reading.batch_look import BatchLook

logger = logging.getLogger(__name__)


STANDS_S = 1.0
"""A partition that has records and gives none for so long is looked at; twice as long after each look that
finds nothing.
"""
STANDS_AGAIN_S = 0.1
"""The same after a batch was passed: unreadable batches often come in groups."""
LIMIT_STANDS_S = 60.0
WATCH_S = 0.1
INSIST_TIMES = 3
"""A refusal or a silence of the consumer that was seen so often counts, even if we can read the batch."""
STOP_S = 2.0
TOLD_ONE_BY_ONE = 10
CURE = (
    "brokers refuse the compressed ones among them where compression.type=uncompressed: run `holdfast topics"
    " create --alter`"
)


@dataclass(slots=True)
class _Standing:
    """The position of reading one partition: offset *next* has been waited for since *since_s*."""

    next: int
    since_s: float
    patience_s: float = STANDS_S
    times: int = 0
    refused: str | None = None
    strays: bool = False
    """True while the consumer is elsewhere: records that it returns before it is sent back do not count."""

    is_behind: bool = False
    """True if the consumer reports a batch below *next*."""

    sound_until: int = -1
    """Up to here the log has been looked at, and holes in it are true."""

    has_begun: bool = False

    def moved(self, offset: int, now_s: float) -> None:
        self.next, self.since_s, self.patience_s, self.times, self.refused, self.is_behind = (
            offset,
            now_s,
            STANDS_S,
            0,
            None,
            False,
        )
        self.has_begun = True


class Skipper:
    """Filters a consumer's polled messages: learns its positions from them, and takes its partitions past
    batches that cannot be read.

    Used from the consumer's thread, but for `close`; it never waits for the broker, which a thread of its own
    asks. Given *stands*, it passes nothing, and calls *stands* once for each batch. *in_group*: the consumer
    has its partitions from a group.
    """

    def __init__(
        self,
        settings: Settings,
        config: Mapping[str, Any],
        *,
        stands: Callable[[Unreadable], None] | None = None,
        in_group: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        """*config* is that of the consumer, without callbacks."""
        self._settings, self._config, self._clock = settings, config, clock
        self._committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._stands, self._in_group = stands, in_group
        self._places: dict[Place, _Standing] = {}
        self._told: dict[Place, int] = {}
        self._look: BatchLook | None = None
        self._watch_s = 0.0
        self.skipped = 0
        """Batches that were passed."""

    def begin(self, topic: str, partition: int, offset: int) -> None:
        """Note that reading of a partition begins at *offset*; below 0 the first record, or the end, will
        show it.
        """
        self._places[topic, partition] = _Standing(offset, self._clock.monotonic_s())

    def resume(self, topic: str, partition: int, offset: int) -> None:
        """Note that reading of a partition resumes at *offset*, where it may have been stalled before."""
        standing = self._places.get((topic, partition))
        if standing is None or standing.next != offset:
            self.begin(topic, partition, offset)

    def forget(self, topic: str, partition: int) -> None:
        """Note that a partition is not read any more."""
        self._places.pop((topic, partition), None)
        self._told.pop((topic, partition), None)

    def close(self) -> None:
        """End a look that is under way."""
        look, self._look = self._look, None
        if look is not None:
            look.stop(STOP_S)

    # -- polled messages

    def sift(self, consumer: Consumer, messages: Sequence[Message]) -> list[Message]:
        """Return *messages* without those that only report a batch that cannot be read.

        Call it also when there are no messages.
        """
        out = []
        for message in messages:
            error = message.error()
            place, offset = (message.topic() or "", message.partition() or 0), message.offset()
            if error is None:
                if self._is_in_place(consumer, place, offset or 0):
                    out.append(message)
            elif self.strays(place):
                continue
            elif error.code() in UNREADABLE:
                self.refused(place, -1 if offset is None else offset, error.str())
            else:
                if is_end(error) and offset is not None:
                    self.reached(place, offset)
                out.append(message)
        self.look(consumer)
        return out

    def reached(self, place: Place, offset: int) -> None:
        """Note that *offset* is the next one of a partition."""
        standing = self._places.get(place)
        if standing is not None and offset > standing.next:
            standing.moved(offset, self._clock.monotonic_s())

    def strays(self, place: Place) -> bool:
        """Return whether the consumer is elsewhere than the partition's position: its messages must be
        ignored.
        """
        standing = self._places.get(place)
        return standing is not None and standing.strays

    def in_place(self, consumer: Consumer, place: Place, records: list[Message]) -> list[Message]:
        """Return those of *records*, all of one partition, whose offsets can be true:

        `sift` for very many.
        """
        standing = self._places.get(place)
        if standing is None:
            return records
        first, end = records[0].offset() or 0, (records[-1].offset() or 0) + 1
        is_dense = standing.next == first and end - first == len(records)
        if standing.strays or not (
            is_dense or max(each.offset() or 0 for each in records) < _end_of(consumer, place)
        ):
            return [each for each in records if self._is_in_place(consumer, place, each.offset() or 0)]
        self.reached(place, end)
        return records

    def _is_in_place(self, consumer: Consumer, place: Place, offset: int) -> bool:
        """Return whether a record may have its offset. Brokers do not check those within a batch.

        One far off would end the reading early; librdkafka would continue after it, where there is nothing,
        and then start again with the whole log.
        """
        standing = self._places.get(place)
        if standing is None:
            return True
        if standing.strays:
            return False
        if offset > standing.next >= 0 and self._is_doubtful(consumer, place, standing, offset):
            self.refused(place, standing.next, f"a record says that its offset is {offset}")
            standing.strays = True
            return False
        if (
            offset < standing.next
            and self._stands is None
            and not -1 < _end_of(consumer, place) < standing.next
        ):
            # A search for another offset was still under way when it was sent here; only a log that is
            # shorter by now is read again from its beginning.
            self._go(consumer, place, standing.next)
            return False
        standing.moved(offset + 1, self._clock.monotonic_s())
        return True

    def _is_doubtful(self, consumer: Consumer, place: Place, standing: _Standing, offset: int) -> bool:
        """Return whether a record may not lie at *offset*, where a hole would have to be before it.

        In a log of ours a hole is rare, and every one is looked at but that of a lost beginning. Topics of
        users may be full of them: there only the end decides.
        """
        if self._stands is None and (standing.has_begun or standing.next > 0):
            return offset >= standing.sound_until
        return offset >= _end_of(consumer, place)

    def refused(self, place: Place, offset: int, why: str) -> None:
        """Note that the consumer cannot read the batch at *offset* (-1 if it does not say), and why."""
        standing = self._places.get(place)
        if standing is None:
            if offset < 0:
                return
            standing = self._places[place] = _Standing(offset, self._clock.monotonic_s())
        if (
            0 <= offset < standing.next
        ):  # an error from before the last pass, or of a batch whose beginning has been read
            standing.patience_s, standing.is_behind = 0.0, True
            return
        standing.next = max(standing.next, offset)
        standing.times += 1
        standing.refused = why

    # -- stalled partitions

    def look(self, consumer: Consumer) -> None:
        """Act on the last finished look, and begin to look at the next stalled partition, if any."""
        if self._look is not None:
            if not self._look.over:
                return
            look, self._look = self._look, None
            self._judge(consumer, look)
        now_s = self._clock.monotonic_s()
        if now_s < self._watch_s:
            return
        self._watch_s = now_s + WATCH_S
        for place, standing in self._places.items():
            if self._told.get(place) != standing.next and self._is_stuck(consumer, place, standing, now_s):
                self._begin_look(place, standing, now_s)
                return

    @staticmethod
    def _is_stuck(consumer: Consumer, place: Place, standing: _Standing, now_s: float) -> bool:
        if standing.refused is not None or standing.is_behind:
            return True
        if standing.next < 0 or now_s < standing.since_s + standing.patience_s:
            return False
        return _end_of(consumer, place) > standing.next

    def _begin_look(self, place: Place, standing: _Standing, now_s: float) -> None:
        from holdfast.kafka.reading.batch_look import BatchLook  # aiokafka takes a while to load

        if standing.refused is None:
            standing.times += 1
        self._look = BatchLook(
            self._settings,
            self._config,
            place,
            standing.next,
            refused=standing.refused,
            insists=standing.times >= INSIST_TIMES,
            committed=self._committed,
            clock=self._clock,
        )
        standing.refused, standing.since_s = None, now_s
        standing.patience_s = min(LIMIT_STANDS_S, max(STANDS_S, 2 * standing.patience_s))
        self._look.start()

    def _judge(self, consumer: Consumer, look: BatchLook) -> None:
        standing = self._places.get(look.place)
        if standing is None or standing.next != look.at:
            return
        if standing.strays and look.log_start > standing.next:
            # The hole that was doubted is a deleted beginning. Sent to where that began, the consumer would
            # come back with the same hole, or with a greater one.
            standing.next, standing.times = look.log_start, 0
        if not look.found:
            if standing.strays or standing.is_behind:
                self._go(consumer, look.place, standing.next)
                standing.strays = standing.is_behind = False
            standing.sound_until = max(standing.sound_until, look.sound_until)
            return
        if self._stands is not None:
            self._told[look.place] = standing.next
            self._stands(look.found[0])
            return
        behind = look.found[-1].last + 1
        self._go(consumer, look.place, behind)
        standing.moved(behind, self._clock.monotonic_s())
        standing.patience_s, standing.strays = STANDS_AGAIN_S, False
        for found in look.found:
            self.skipped += 1
            if _is_told(self.skipped):
                logger.warning(
                    "%(found)s; all readers of this log pass it by alike; %(cure)s",
                    {
                        "found": found,
                        "cure": CURE,
                        "topic": found.topic,
                        "partition": found.partition,
                        "offset": found.first,
                    },
                )

    def _go(self, consumer: Consumer, place: Place, offset: int) -> None:
        """Have the consumer resume at *offset*.

        Unlike a seek, this discards fetches and offset searches that are under way.
        """
        try:
            if self._in_group:  # whose assignment is not ours to change
                consumer.seek(TopicPartition(*place, offset))
                return
            consumer.incremental_unassign([TopicPartition(*place)])
            consumer.incremental_assign([TopicPartition(*place, offset)])
        except KafkaException as error:  # it is not read any more
            logger.info(
                "%(topic)s partition %(partition)d is not sent to offset %(offset)d: %(error)s",
                {"topic": place[0], "partition": place[1], "offset": offset, "error": error.args[0].str()},
            )


def _end_of(consumer: Consumer, place: Place) -> int:
    """Return the end of a partition from the last answer; below 0 before the first."""
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(*place), cached=True) or (-1, -1)
    except KafkaException:  # it is not read (any more)
        return -1
    return int(end)


def _is_told(count: int) -> bool:
    """Return whether the *count*th such batch is logged: a client that writes one may write thousands."""
    return count <= TOLD_ONE_BY_ONE or count & (count - 1) == 0
