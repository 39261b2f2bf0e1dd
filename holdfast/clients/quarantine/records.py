"""The quarantine: records that could not be decoded or folded, why, and how they get another chance.

The quarantine topic holds one record for each refusal, written in the transaction of its batch. A retry adds
a note to it: the same key, no value, and the header `holdfast-retried-to`. So the topic alone shows the
records that are still open.

A batch that could not be read and was skipped is noted there too, once for each processor, at the stage
`fetch`: it cannot be retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import ClusterIds
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Headers
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import QuarantineError, TopicError
from holdfast.kafka.clients import make_writer, reader_options
from holdfast.kafka.codes import code_of
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.log_reader import reading

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
LIMIT_LISTED = 100_000
KEY_CUT_BYTES = 1_024
MADE_AGAIN = (
    "its topic was deleted and made again since it was refused, and may have the record by now; --made-again"
    " sends it all the same"
)
RETRY_OF, RETRIED_TO = "holdfast-retry-of", "holdfast-retried-to"

_ANY = -1
_LIMIT_DIGITS = 20
FETCH = "fetch"
"""The stage of a batch that could not be read."""
_STAGE = "holdfast-stage"
_NOTES = frozenset(
    f"holdfast-{name}"
    for name in (
        "processor",
        "topic",
        "partition",
        "offset",
        "stage",
        "error",
        "reason",
        "at-ms",
        "key",
        "truncated",
        "topic-id",
        "calls",
    )
)
_BATCH_NOTES = frozenset(f"holdfast-{name}" for name in ("last", "codec", "size", "records", "producer"))
"""Only of the stage `fetch`: a record may have a header of such a name, the stamp of an outbox for one,
and a batch has none of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedBatch:
    """The header of a skipped batch: its *last* offset, how it is packed, its size as it lies
    there, and "id/epoch" of its producer.

    *records_count* is its claim, -1 without one.
    """

    last: int
    codec: str
    size_bytes: int
    records_count: int
    producer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """One refused record. *headers* are its own; *value* None is a tombstone, unless *truncated_bytes* says
    that it was too large to copy. *size_bytes* is the size of its value in its topic. With *batch* it is not
    one record but a batch that was skipped, from *offset* on.

    *appended_ms* is when the record was appended to its topic, *at_ms* when it was set aside. *retried_to*
    names the last copy that was sent for another try, as topic/partition/offset. *topic_id* says which topic
    of the name it is, with the cluster's id; "" where earlier releases set it aside. *calls* are the calls of
    users' code that its error left, the innermost first, as in `shop.py:9 in fee, called from shop.py:12 in
    fold`; "" where there were none.
    """

    topic: str
    partition: int
    offset: int
    processor: str
    stage: str
    error: str
    reason: str
    appended_ms: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    size_bytes: int
    truncated_bytes: int | None = None
    key_cut: bool = False
    retried_to: str | None = None
    batch: SkippedBatch | None = None
    topic_id: str = ""
    calls: str = ""

    def is_of_another(self, now: ClusterIds) -> bool:
        """Return whether the record's topic is known to have been deleted and made again since."""
        cluster_id, _, topic_id = self.topic_id.rpartition(" ")
        there = now.topics.get(self.topic, "")
        return cluster_id == now.cluster_id and "" not in (topic_id, there) and topic_id != there

    @property
    def place(self) -> str:
        """Return where the record is in its topic: topic/partition/offset."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def coordinates(self) -> str:
        """Return its name in the quarantine: topic/partition/offset/processor."""
        return f"{self.place}/{self.processor}"

    def is_named(self, coordinates: str) -> bool:
        """Return whether *coordinates* mean this record; without a processor they mean what any of them
        refused there.
        """
        return coordinates in (self.coordinates, self.place)


def read_record(message: Message) -> QuarantinedRecord | None:
    """Return the quarantined record in a message of the quarantine topic, None for one that holds none."""
    return read_copy(_headers(message), message.value(), message.timestamp()[1])


def read_copy(
    told: Iterable[tuple[str, bytes | None]], value: bytes | None, at_ms: int
) -> QuarantinedRecord | None:
    """Return the quarantined record in a record of the quarantine topic, by its headers, value and timestamp;
    None for one that holds none.
    """
    headers = [*told]
    notes: dict[str, bytes] = {}
    stage = next((noted for name, noted in reversed(headers) if name == _STAGE), None)
    named = _NOTES | _BATCH_NOTES if stage == FETCH.encode() else _NOTES
    # The worker appended its notes; a record's own header of the same name is further up and stays the
    # record's.
    while headers and headers[-1][0] in named and headers[-1][0] not in notes:
        name, noted = headers.pop()
        notes[name] = noted or b""

    def text(name: str) -> str:
        return notes[f"holdfast-{name}"].decode(errors="replace")

    def number(name: str, least: int = 0, limit: int = 1 << 63) -> int:
        found = int(text(name)) if len(notes[f"holdfast-{name}"]) <= _LIMIT_DIGITS else limit
        if not least <= found < limit:
            raise ValueError(f"{name} is {found}")
        return found

    try:
        truncated = notes.get("holdfast-truncated")
        key = notes.get("holdfast-key")
        batch = _batch(text, number) if text("stage") == FETCH else None
        whole = truncated is None and batch is None
        return QuarantinedRecord(
            topic=text("topic"),
            partition=number("partition", limit=1 << 31),
            offset=number("offset"),
            processor=text("processor"),
            stage=text("stage"),
            error=text("error"),
            reason=text("reason"),
            appended_ms=number("at-ms", least=-(1 << 63)),
            at_ms=at_ms,
            key=key,
            value=value if whole else None,
            headers=tuple(headers),
            size_bytes=(
                batch.size_bytes if batch else len(value or b"") if truncated is None else number("truncated")
            ),
            truncated_bytes=None if truncated is None else number("truncated"),
            # The worker keeps no more of a key than this where it cannot keep the whole record.
            key_cut=key is not None and len(key) == KEY_CUT_BYTES,
            batch=batch,
            topic_id=text("topic-id") if "holdfast-topic-id" in notes else "",
            calls=text("calls") if "holdfast-calls" in notes else "",
        )
    except (KeyError, ValueError):
        return None


def _batch(text: Callable[[str], str], number: Callable[[str, int], int]) -> SkippedBatch:
    return SkippedBatch(
        last=number("last", 0),
        codec=text("codec"),
        size_bytes=number("size", 0),
        records_count=number("records", -1),
        producer=text("producer"),
    )


def cannot_retry(batch: SkippedBatch) -> str:
    """Return why a skipped batch is not sent again."""
    return (
        f"a batch that cannot be read ({batch.codec}, {batch.size_bytes} bytes) was skipped; there is nothing"
        " to send again"
    )


class Quarantine:
    """The quarantine of one application.

    Every call reads it as of its beginning and ends within *timeout_s* of its last progress. With *tail* it
    reads only about so many offsets, the last ones of each partition alike; `left_out` then says how many
    before them the last call did not read. A note of a retry follows its record in the same partition, so no
    record that is read lacks its note.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        timeout_s: float = TIMEOUT_S,
        tail: int | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._settings, self._timeout_s, self._tail, self._clock = settings, timeout_s, tail, clock
        self.topic, self._group = settings.quarantine_topic, f"{settings.app}-quarantine-readers"
        self.left_out = 0

    def records(
        self, wanted: Callable[[QuarantinedRecord], bool], *, values: bool = False, limit: int = LIMIT_LISTED
    ) -> list[QuarantinedRecord]:
        """Return the quarantined records, oldest first, the newest *limit* of them; without *values* those
        are left out to save memory.
        """
        found: dict[str, QuarantinedRecord] = {}
        retried: dict[str, str] = {}
        for message in self._log(self.topic):
            copy = _header(message, RETRIED_TO)
            if copy is not None:
                retried[(message.key() or b"").decode(errors="replace")] = copy
                continue
            record = read_record(message)
            if record is None or not wanted(record):
                continue
            earlier = found.get(record.coordinates)
            if earlier is not None and earlier.topic_id != record.topic_id:
                retried.pop(record.coordinates, None)  # the note is of a record of another topic
            found[record.coordinates] = record if values else replace(record, value=None)
            if len(found) >= 2 * limit:
                found = _newest(found, limit)
        return [
            replace(record, retried_to=retried.get(name)) for name, record in _newest(found, limit).items()
        ]

    def ends(self) -> dict[int, int]:
        """Return the next offset of each partition, so that a caller need not read it again while nothing was
        written to it.
        """
        config = self._settings.consumer(
            **reader_options(self._group, committed=True, wait_ms=10, lost="error")
        )
        with reading(self._settings, self.topic, config, logger=logger, clock=self._clock) as reader:
            return {
                place[1]: log_bounds(reader.consumer, place, self._timeout_s, clock=self._clock)[1]
                for place in self._places(reader.consumer, self.topic)
            }

    def original(self, record: QuarantinedRecord) -> QuarantinedRecord:
        """Return the record whole: read again from its topic when the quarantine holds only a part of it."""
        if record.truncated_bytes is None and not record.key_cut:
            return record
        with closing(self._log(record.topic, at=(record.partition, record.offset))) as log:
            message = next(log, None)
        if message is not None and message.offset() == record.offset:
            if not _is_same(record, message):
                raise QuarantineError(
                    f"{record.coordinates}: it was too large to be kept whole, and {record.topic} has another"
                    f" record at offset {record.offset}: the topic was deleted and made again. It cannot be"
                    " retried; send it again from where it came"
                )
            headers = tuple(_headers(message))
            return replace(
                record,
                key=message.key(),
                value=message.value(),
                headers=headers,
                truncated_bytes=None,
                key_cut=False,
            )
        raise QuarantineError(
            f"{record.coordinates}: it was too large to be kept whole, and {record.topic} no longer has"
            f" offset {record.offset}: it cannot be retried; send it again from where it came"
        )

    def of_others(self, records: Iterable[QuarantinedRecord]) -> frozenset[str]:
        """Return the coordinates of those records whose topic was deleted and made again since."""
        found = [each for each in records if each.topic_id]
        if not found:
            return frozenset()
        admin, ids = Admin(self._settings, timeout_s=self._timeout_s), dict[str, ClusterIds]()
        for topic in sorted({each.topic for each in found}):
            with suppress(TopicError):  # of a topic that is not there nothing is another's
                ids[topic] = admin.topic_ids([topic])
        return frozenset(
            each.coordinates for each in found if each.topic in ids and each.is_of_another(ids[each.topic])
        )

    def retry(
        self, records: Iterable[QuarantinedRecord], *, made_again: bool = False
    ) -> Iterator[tuple[QuarantinedRecord, str]]:
        """Send each record to its partition again and yield it with the copy's position, once the copy is in
        the log and noted.

        QuarantineError, and nothing is sent, when one of them is a batch that was skipped, or of a topic that
        was deleted and made again since; *made_again* sends those to the topic that has the name now.

        Records that several processors refused at one offset are sent once. If this ends between copy and
        note, the record looks open although it was sent: it is sent at least once.

        The copy is not transactional: readers of a coordination topic may be too old to know control records.
        """
        by_place: dict[tuple[str, str], list[QuarantinedRecord]] = {}
        records = list(records)
        if not made_again and (others := self.of_others(records)):
            raise QuarantineError(f"{min(others)}: {MADE_AGAIN}")
        for record in records:
            if record.batch is not None:
                raise QuarantineError(f"{record.coordinates}: {cannot_retry(record.batch)}")
            by_place.setdefault((record.place, record.topic_id), []).append(record)
        overrides: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(self._timeout_s * 1000),
            "message.max.bytes": 64 << 20,  # the topic's own limit decides
        }
        producer = make_writer(self._settings.producer(**overrides), logger=logger)
        # The values are read again as they are sent, so that no more than one of them is in memory.
        with closing(self._log(self.topic)) as log:
            for message in log:
                refused = read_record(message) if by_place else None
                same = None if refused is None else by_place.pop((refused.place, refused.topic_id), None)
                if refused is None or same is None:
                    continue
                copy = self._send_again(producer, self.original(refused))
                for each in same:
                    self._send(
                        producer,
                        self.topic,
                        None,
                        each.coordinates.encode(),
                        None,
                        [(RETRIED_TO, copy.encode())],
                    )
                    yield each, copy
        if by_place:
            raise QuarantineError(
                f"{self.topic} no longer holds {', '.join(place for place, _ in by_place)}: retention took"
                " it meanwhile"
            )

    def _send_again(self, producer: Producer, record: QuarantinedRecord) -> str:
        headers = [(name, value) for name, value in record.headers if name != RETRY_OF]
        again = (RETRY_OF, record.coordinates.encode())
        partition, offset = self._send(
            producer, record.topic, record.partition, record.key, record.value, [*headers, again]
        )
        return f"{record.topic}/{partition}/{offset}"

    # -- Kafka

    def _send(
        self,
        producer: Producer,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, Any]],
    ) -> tuple[int, int]:
        outcome: list[tuple[KafkaError | None, Message]] = []
        try:
            producer.produce(
                topic,
                value=value,
                key=key,
                partition=_ANY if partition is None else partition,
                headers=headers,
                on_delivery=lambda error, sent: outcome.append((error, sent)),
            )
            producer.flush(self._timeout_s + 1)
        except (KafkaException, BufferError) as error:
            raise QuarantineError(f"cannot send a record to {topic}: {error}; nothing was sent") from error
        if not outcome or outcome[0][0] is not None:
            why = f"no acknowledgement within {self._timeout_s:g} s" if not outcome else outcome[0][0].str()  # type: ignore[union-attr]
            raise QuarantineError(
                f"a record sent to {topic} was not acknowledged: {why}; see `holdfast quarantine list` before"
                " trying again"
            )
        sent = outcome[0][1]
        return sent.partition() or 0, sent.offset() or 0

    def _log(self, topic: str, at: tuple[int, int] | None = None) -> Generator[Message, None, None]:
        """Yield the committed records of *topic* up to its present ends; of one partition from an offset
        on, with *at*.
        """
        config = self._settings.consumer(
            **reader_options(self._group, committed=True, wait_ms=10, lost="error")
        )
        with reading(self._settings, topic, config, logger=logger, clock=self._clock) as reader:
            starts = self._starts(reader.consumer, topic, at)
            reader.assign(starts)
            try:
                yield from reader.until(lambda: reader.ended.keys() == starts.keys(), idle_s=self._timeout_s)
            except KafkaException as error:
                if code_of(error) != KafkaError._AUTO_OFFSET_RESET:
                    raise
                # the offset asked for is no longer in the log

    def _places(self, consumer: Consumer, topic: str) -> list[Place]:
        listed = consumer.list_topics(topic, timeout=self._timeout_s).topics.get(topic)
        if listed is None or not listed.partitions:
            raise TopicError(
                f"topic {topic} does not exist: no worker of {self._settings.app} can have run; see `holdfast"
                " topics check`"
            )
        return [(topic, partition) for partition in sorted(listed.partitions)]

    def _starts(self, consumer: Consumer, topic: str, at: tuple[int, int] | None) -> dict[Place, int]:
        places = self._places(consumer, topic)
        if at is not None:
            return {(topic, at[0]): at[1]} if (topic, at[0]) in places else {}
        if self._tail is None:
            return dict.fromkeys(places, OFFSET_BEGINNING)
        return self._last(consumer, places, self._tail)

    def _last(self, consumer: Consumer, places: list[Place], tail: int) -> dict[Place, int]:
        """Return where the last *tail* offsets of *places* begin, as many of each as long as it has them."""
        bounds = {place: log_bounds(consumer, place, self._timeout_s, clock=self._clock) for place in places}
        starts, rest = dict[Place, int](), tail
        for done, place in enumerate(sorted(places, key=lambda each: bounds[each][1] - bounds[each][0])):
            first, end = bounds[place]
            starts[place] = max(first, end - rest // (len(places) - done))
            rest -= end - starts[place]
        self.left_out = sum(starts[place] - bounds[place][0] for place in places)
        return starts


def _is_same(record: QuarantinedRecord, message: Message) -> bool:
    """Return whether the record at this offset is the quarantined one, as far as that was kept."""
    (kind, at_ms), key = message.timestamp(), message.key() or b""
    return (
        (kind == TIMESTAMP_NOT_AVAILABLE or at_ms == record.appended_ms)
        and len(message.value() or b"") == record.size_bytes
        and (key[:KEY_CUT_BYTES] if record.key_cut else key) == (record.key or b"")
    )


def _newest(found: dict[str, QuarantinedRecord], limit: int) -> dict[str, QuarantinedRecord]:
    """Return the *limit* newest, oldest first; the partitions of the quarantine come in no order of time."""
    by_age = sorted(found.items(), key=lambda each: (each[1].at_ms, each[1].coordinates))
    return dict(by_age[-limit:])


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    # The client's declared type allows shapes that only a producer may give.
    return list(message.headers() or ())  # type: ignore[arg-type]


def _header(message: Message, name: str) -> str | None:
    return text_header(_headers(message), name)


def text_header(headers: Iterable[tuple[str, bytes | None]], name: str) -> str | None:
    """Return the first header of a name as text, None where there is none."""
    return next(
        (value.decode(errors="replace") for each, value in headers if each == name and value is not None),
        None,
    )
