"""The reasons why records were late: their partition is folded again, record by record, and judged again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import compute

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.graph import origins_of_topic
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.origins import NAMELESS, UNHEARD, Mark, is_mark, mark_of
from holdfast.core.streams.windowing.lateness import JudgedRecord, Lateness, PartitionTime
from holdfast.core.streams.windowing.rows import ORIGINS, STREAM, stream_key
from holdfast.errors import ConfigError, PipelineError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.folds.result_rows import REFUSED, TRANSITION, result_batch
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import Span, TopicLog, TopicReader

LIMIT_LATE = 20
JUDGED, TOTAL = "judged", "total"
"""Kinds of results: a record with what it was judged by, and how many of a partition were late."""
BY_TICK = -1
"""Instead of the offset of a mark: a recorded tick."""

TAKEN, PARTLY, LATE, AFTER_IDLE = "taken", "partly late", "late", "late after idle"
REFUSED_OUTCOME, MARK, UNFOLDED = "refused", "mark", "not folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLate:
    """A record, what its processor made of it, and *why* in a sentence. Times are in ms.

    *outcome* is one of "taken", "partly late" (of hopping windows: late for some; of a join: the earliest of
    its partners may have been dropped), "late" (by its own origin), "late after idle" (only because others
    continued while its origin held nothing back), "refused", "mark" and "not folded" (it lies after the
    records folded, or is skipped). The last three have no times.

    *origin* is the log that it comes from: topics, of several the ones that a step reads, and a partition.
    *watermark_ms* is that origin's before the record, None where it had said nothing; of a raw source with
    `idle=` as far as it has moved stream time. *stream_ms* is stream time before it. The window from
    *start_ms* to *end_ms* is the last that it can be in; of a join *end_ms* is just after the record itself,
    and *reach_ms* how long after it a partner may be. It is late where the watermark is at *late_from_ms* or
    stream time at *over_from_ms*. *let_go_ms* is the append time at which its origin stopped holding others
    back: for a record that was late for that.
    """

    topic: str
    partition: int
    offset: int
    outcome: str
    why: str
    key: str | None = None
    time_ms: int | None = None
    origin: str | None = None
    watermark_ms: int | None = None
    stream_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    grace_ms: int | None = None
    reach_ms: int | None = None
    late_from_ms: int | None = None
    over_from_ms: int | None = None
    let_go_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRecords:
    """The last late records of each partition, in their order, and how many there were by partition."""

    processor: str
    version: int
    engine: str
    applied: Mapping[int, int]
    totals: Mapping[int, int]
    records: tuple[WhyLate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateOptions:
    """Settings for folding the partitions again, and the most late records returned of each."""

    replay: ReplayOptions = field(default_factory=ReplayOptions)
    limit: int = LIMIT_LATE


class RecordPlace(NamedTuple):
    """The topic, partition and offset of a record of a source."""

    topic: str
    partition: int
    offset: int


def late_records(
    processors: Sequence[Processor[Any, Any]],
    name: str,
    settings: Settings,
    at: Until | None = None,
    options: LateOptions | None = None,
) -> LateRecords:
    """Return the late records of processor *name*, one of *processors*, by *at*, and why they were late.

    All its partitions are folded up to there, or those that *at* names. ConfigError for a processor of which
    no record is ever late, and whatever `replay` raises.
    """
    options = options or LateOptions()
    looked = _Look(processors, name, settings, options.replay)
    named = () if at is None else (*at.offsets, *at.sources)
    asked = replace(
        looked.options((STREAM, ORIGINS), at, looked.watch(None, options.limit)),
        partitions=tuple(sorted({*named})) or options.replay.partitions,
    )
    replayed = replay(looked.processor, settings, asked)
    assert replayed.results is not None, "nothing is written to a folder"
    rows = replayed.results.to_pylist()
    records = [looked.why(each) for each in rows if each["kind"] == JUDGED]
    return LateRecords(
        processor=name,
        version=looked.processor.version,
        engine=replayed.engine,
        applied=replayed.applied,
        totals={each["partition"]: each["offset"] for each in rows if each["kind"] == TOTAL},
        records=tuple(records),
    )


def why_late(
    processors: Sequence[Processor[Any, Any]],
    name: str,
    settings: Settings,
    place: RecordPlace,
    options: ReplayOptions | None = None,
) -> WhyLate:
    """Return whether processor *name*, one of *processors*, took the record at *place* as late, and why.

    Its partition is folded up to there. ConfigError for a processor that does not read the topic, or of which
    no record is ever late; PipelineError where no record lies there; and whatever `replay` raises.
    """
    looked = _Look(processors, name, settings, options or ReplayOptions())
    number, processor = looked.number(place.topic), looked.processor
    found = looked.read(place)
    if isinstance(found, Mark):
        return WhyLate(**place._asdict(), outcome=MARK, why=looked.mark_text(place.topic, found))
    wanted: list[str] = [stream_key(place.partition), f"{ORIGINS}{place.partition}/"]
    try:
        judged = looked.judged(number, found, found.times_ms[0])
    except Exception as error:  # noqa: BLE001  the fold says it as well, and refuses the record
        judged, refusal = None, f"its processor cannot read it: {type(error).__name__}: {error}"
    else:
        refusal = "it has no value, so nothing is folded"
    if judged is not None:
        wanted.append(judged.row_prefix)
    until = Until(sources={place.partition: {place.topic: place.offset}})
    asked = replace(
        looked.options(tuple(wanted), until, looked.watch(place, 1)), partitions=(place.partition,)
    )
    replayed = replay(processor, settings, asked)
    assert replayed.results is not None, "nothing is written to a folder"
    for each in replayed.results.to_pylist():
        of = (each["value"] if each["kind"] == REFUSED else each["key"]) or place.topic.encode()
        if each["offset"] != place.offset or of != place.topic.encode():
            continue
        if each["kind"] == REFUSED:
            refused = f"its processor refused it: {each['after']} (`holdfast quarantine show`)"
            return WhyLate(**place._asdict(), outcome=REFUSED_OUTCOME, why=refused)
        if each["kind"] == JUDGED:
            return looked.why(each)
    why = "it is skipped, or was not folded yet" if judged is not None else refusal
    return WhyLate(**place._asdict(), outcome=UNFOLDED, why=why)


class _Look:
    """One processor, with the reading that explains why its records are late."""

    def __init__(
        self,
        processors: Sequence[Processor[Any, Any]],
        name: str,
        settings: Settings,
        options: ReplayOptions,
    ) -> None:
        found = {each.name: each for each in processors}.get(name)
        if found is None or found.lateness is None:
            able = ", ".join(sorted(each.name for each in processors if each.lateness is not None))
            raise ConfigError(
                f"no record of processor {name!r} is ever late: only windows and JoinWithin judge records by"
                f" event time; of this application {able or 'none does'}"
            )
        self.processor, self.topics = found, found.topics
        self.lateness: Lateness = found.lateness
        self._settings, self._options = settings, options
        self._origins = {topic: origins_of_topic(processors, topic) for topic in found.topics}

    def number(self, topic: str) -> int:
        if topic not in self.topics:
            raise ConfigError(
                f"processor {self.processor.name} does not read {topic!r}: name a record of"
                f" {' or '.join(self.topics)}"
            )
        return self.topics.index(topic)

    def watch(self, place: RecordPlace | None, limit: int) -> _Watch:
        return _Watch(self.lateness, self.topics, bool(self.processor.named_sources), place, limit)

    def options(self, prefixes: tuple[str, ...], until: Until | None, watch: _Watch) -> ReplayOptions:
        return replace(
            self._options,
            until=until,
            rows=False,
            transitions=True,
            of_prefixes=prefixes,
            out=None,
            through=watch,
        )

    def read(self, place: RecordPlace) -> Batch | Mark:
        """Return the record at *place* in the columns that its fold takes, or the mark."""
        processor, span = self.processor, Span(first=place.offset, end=place.offset + 1)
        takes = processor.folds[self.number(place.topic)].inputs
        for batch in self._batches(place, span, (*takes, *(() if "headers" in takes else ("headers",)))):
            if batch.offsets:
                headers = batch.columns[takes.index("headers") if "headers" in takes else -1][0]
                if is_mark(headers):
                    return mark_of(headers)
                return Batch(batch.offsets, batch.times_ms, batch.columns[: len(takes)])
        raise PipelineError(
            f"{place.topic} partition {place.partition}: at offset {place.offset} lies no record that can be"
            " read: it is deleted, the marker of a transaction, or not written yet"
        )

    def _batches(self, place: RecordPlace, span: Span, inputs: Sequence[Any]) -> Iterator[Batch]:
        options = self._options
        if options.source != "topic":
            files, _ = open_bronze(bronze_path(str(options.lake), place.topic))
            for batch, _ in files.batches(inputs, place.partition, span):
                yield batch
        if options.source != "bronze":
            with TopicLog(self._settings, place.topic) as log:
                if span.end > (end := log.ends([place.partition])[place.partition]):
                    raise PipelineError(
                        f"{place.topic} partition {place.partition} ends at offset {end}, so no record lies"
                        f" at {place.offset}"
                    )
            skips = read_skips(self._settings).of_topic(place.topic)
            with ExitStack() as stack:
                reader = stack.enter_context(TopicReader(self._settings, place.topic, skips))
                for batch, _ in reader.batches(place.partition, span, inputs):
                    yield batch

    def judged(self, number: int, batch: Batch, at_ms: int) -> JudgedRecord | None:
        """Return the times that decide whether the one record of *batch* is late, as its fold reads it."""
        given = [next(iter(each)) for each in self.processor.folds[number].told(batch)]
        return self.lateness.judged(number, given, at_ms)

    def why(self, row: Mapping[str, Any]) -> WhyLate:
        """Return the explanation of a record from a result of `_Watch`."""
        topic = row["key"].decode()
        place, number = RecordPlace(topic, row["partition"], row["offset"]), self.number(topic)
        seen = _decode_seen(row["after"])
        batch = self.read(place)
        assert isinstance(batch, Batch), "marks are not late"
        judged = self.judged(number, batch, row["at_ms"])
        assert judged is not None, "it was judged"
        own_ms = seen.watermark_of(number, judged)
        outcome = seen.outcome
        if outcome == LATE and (own_ms is None or own_ms < judged.late_from_ms):
            outcome = AFTER_IDLE
        let_go = seen.let_go.get(f"{number}/{judged.origin}") if outcome == AFTER_IDLE else None
        found = WhyLate(
            **place._asdict(),
            outcome=outcome,
            why="",
            key=judged.key,
            time_ms=judged.time_ms,
            origin=self._origin(topic, place.partition, judged.origin),
            watermark_ms=own_ms,
            stream_ms=None if seen.time.stream_ms < 0 else seen.time.stream_ms,
            start_ms=judged.start_ms,
            end_ms=judged.end_ms,
            grace_ms=judged.grace_ms,
            reach_ms=judged.reach_ms,
            late_from_ms=judged.late_from_ms,
            over_from_ms=judged.over_from_ms,
            let_go_ms=None if let_go is None else let_go[1],
        )
        text = _Sentence(found, is_join=len(self.topics) > 1)
        return replace(found, why=text.told(_cause(found, seen, let_go)))

    def _origin(self, topic: str, partition: int, origin: int | None) -> str:
        if origin is None:
            return f"{topic}-{partition}"
        return " and ".join(f"{each}-{origin}" for each in self._origins[topic])

    def mark_text(self, topic: str, mark: Mark) -> str:
        """Return in words what a mark says."""
        origin = self._origin(topic, 0, mark.origin)
        reached = (
            "has said nothing yet" if mark.watermark_ms == UNHEARD else f"is at {clock(mark.watermark_ms)}"
        )
        ends = ", at the end of its log, and lets go" if mark.has_ended else ""
        return f"a mark, which is folded for its time alone: {origin} {reached}{ends}"


def clock(at_ms: int) -> str:
    """Return a time in UTC, to the millisecond where it has some; in ms where it is no date.

    >>> clock(1_700_000_000_000), clock(1_700_000_000_123), clock(1 << 62)
    ('2023-11-14T22:13:20Z', '2023-11-14T22:13:20.123Z', '4611686018427387904')
    """
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return f"{at:%Y-%m-%dT%H:%M:%S}{f'.{at_ms % 1000:03d}' if at_ms % 1000 else ''}Z"


class _Sentence(NamedTuple):
    """The parts of a sentence that says what became of a record, all of whose times are known."""

    of: WhyLate
    is_join: bool

    def told(self, cause: str) -> str:
        of = self.of
        assert of.stream_ms is not None or of.outcome != AFTER_IDLE, "else nothing is over"
        match of.outcome:
            case "taken":
                return f"in time: {self.own}; {self.bound}"
            case "partly late" if self.is_join:
                return (
                    f"in time: {self.own}; but stream time was at {clock(of.stream_ms or 0)}, since its"
                    " origin had let go: the earliest of its partners may have been dropped"
                )
            case "partly late":
                return f"late for some of its windows: {self.own}; {self.bound}, but earlier ones were over"
            case "late":
                return f"{self.own}; {self.bound}"
        return (
            f"in time by its own origin: {self.own}. But stream time was at {clock(of.stream_ms or 0)};"
            f" {self.over}. {cause}"
        )

    @property
    def own(self) -> str:
        of = self.of
        if of.watermark_ms is None:
            return f"{of.origin} had said nothing before it"
        return f"{of.origin} was at {clock(of.watermark_ms)} before it"

    @property
    def bound(self) -> str:
        of = self.of
        late_from, grace = clock(of.late_from_ms or 0), f"grace {(of.grace_ms or 0) / 1000:g} s"
        if self.is_join:
            return f"a record of {clock(of.time_ms or 0)} is late from {late_from} on ({grace})"
        which = "the last of its windows" if of.outcome == PARTLY else "its window"
        return f"{which} ends at {clock(of.end_ms or 0)}, and is over from {late_from} on ({grace})"

    @property
    def over(self) -> str:
        of = self.of
        if not of.reach_ms:
            return self.bound
        return (
            f"it is let go from {clock(of.over_from_ms or 0)} on, {of.reach_ms / 1000:g} s and grace behind"
        )


def _cause(found: WhyLate, seen: _JudgedAt, let_go: tuple[int, int] | None) -> str:
    if let_go is not None:
        offset, at_ms = let_go
        if offset == BY_TICK:
            return (
                f"{found.origin} had let go at {clock(at_ms)}, since it said nothing while the other source"
                " waited: a recorded tick says so"
            )
        return (
            f"{found.origin} had let go at {clock(at_ms)}, since it stayed at the end of its log: the mark at"
            f" {found.topic}/{found.partition}/{offset} says so"
        )
    if seen.time.stream_ms > seen.by_records_ms:
        return "The partition was idle, so the clock had passed its window (idle=): a recorded tick says so"
    return f"{found.origin} was not known yet to be one of its origins"


class _JudgedAt(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a partition before a record, and the outcome of that record.

    *by_records_ms* is the highest stream time that records have moved it to: ticks may have moved it since.
    *nameless* are the watermarks of the records without origins by source, and *let_go* has by
    `SOURCE/ORIGIN` the offset and time of the mark by which it let go last, of sources of a join BY_TICK.
    """

    outcome: str
    time: PartitionTime
    by_records_ms: int
    nameless: dict[str, int]
    let_go: dict[str, tuple[int, int]]

    def watermark_of(self, source: int, judged: JudgedRecord) -> int | None:
        """Return the watermark that the record's own origin had before it, None for one without any."""
        own_ms: int | None
        if judged.before_ms is not None:
            own_ms = judged.before_ms
        elif (named := self.nameless.get(str(source))) is not None:
            own_ms = named
        elif self.time.watermarks:
            own_ms = self.time.watermarks[source]
        else:
            own_ms = self.by_records_ms
        return None if own_ms is None or own_ms < 0 else own_ms


_encode = msgspec.json.encode
_decode_seen = msgspec.json.Decoder(_JudgedAt).decode
_START = PartitionTime(stream_ms=-1)
_Change = tuple[str, str | None, str | None]
"""The key of a row that a record has changed, and the row before and after, as JSON."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """Passes on the last *limit* late records of each partition, and the number of late ones; or the record
    at *place*. Runs where partitions are folded.
    """

    lateness: Lateness
    topics: tuple[str, ...]
    ticks: bool
    """True if changes without a topic are those of ticks."""
    place: RecordPlace | None
    limit: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partitions = dict[int, _Watched]()
        for batch in batches:
            is_change = compute.equal(batch.column("kind"), TRANSITION)
            yield batch.filter(compute.invert(is_change))
            for row in batch.filter(is_change).to_pylist():
                partition = row["partition"]
                if partition not in partitions:
                    partitions[partition] = _Watched(self, partition)
                partitions[partition].take(row)
        for each in partitions.values():
            each.flush()
            if rows := [*each.found]:
                yield result_batch(rows)
        if partitions and self.place is None:
            yield result_batch([(TOTAL, at, each.total) for at, each in sorted(partitions.items())])


class _Watched:
    """The progress of one partition while it is folded, and its last records that were asked for."""

    def __init__(self, watch: _Watch, partition: int) -> None:
        self._watch, self._partition = watch, partition
        self.found, self.total = deque[tuple[Any, ...]](maxlen=watch.limit), 0
        self._at: tuple[bytes | None, int, int] | None = None
        self._changes: list[_Change] = []
        self._time, self._by_records_ms = _START, -1
        self._nameless, self._ended = dict[str, int](), set[str]()
        self._let_go: dict[str, tuple[int, int]] = {}

    def take(self, row: Mapping[str, Any]) -> None:
        """Take one change of a row; those of one record follow each other."""
        at = row["key"], row["offset"], row["at_ms"]
        if self._at is not None and self._at[:2] != at[:2]:
            self.flush()
        self._at = at
        self._changes.append((row["name"], row["before"], row["after"]))

    def flush(self) -> None:
        """Judge the record whose changes have come."""
        if self._at is None:
            return
        topic, offset, at_ms = self._at
        is_tick = topic is None and self._watch.ticks
        after = self._time
        for name, before, text in self._changes:
            if name.startswith(STREAM) and text is not None:
                self._time = self._time if before is None else self._watch.lateness.time(before)
                after = self._watch.lateness.time(text)
        if not is_tick:
            self._judge(topic or self._watch.topics[0].encode(), offset, at_ms, after)
            if after.stream_ms > self._time.stream_ms:
                self._by_records_ms = after.stream_ms
        ended = after.ended & ~self._time.ended
        for number in range(len(self._watch.topics)):
            if ended & 1 << number and is_tick:
                self._let_go[f"{number}/None"] = BY_TICK, at_ms
        self._time = after
        self._take_origins(offset, at_ms)
        self._at, self._changes = None, []

    def _judge(self, topic: bytes, offset: int, at_ms: int, after: PartitionTime) -> None:
        before, place = self._time, self._watch.place
        outcome = (
            LATE if after.late > before.late else PARTLY if after.partly_late > before.partly_late else TAKEN
        )
        is_asked = place is not None and (topic, offset) == (place.topic.encode(), place.offset)
        if not is_asked and (place is not None or outcome == TAKEN):
            return
        self.total += 1
        seen = _JudgedAt(
            outcome=outcome,
            time=before,
            by_records_ms=self._by_records_ms,
            nameless=dict(self._nameless),
            let_go=dict(self._let_go),
        )
        row = (JUDGED, self._partition, offset, at_ms, None, None, _encode(seen).decode(), topic, None)
        self.found.append(row)

    def _take_origins(self, offset: int, at_ms: int) -> None:
        for name, _, text in self._changes:
            if not name.startswith(ORIGINS) or text is None:
                continue
            _, source, origin = name.removeprefix(ORIGINS).split("/")
            row = self._watch.lateness.origin(text)
            if int(origin) == NAMELESS:
                self._nameless[source] = row.watermark_ms
            of = f"{source}/{origin}"
            if row.has_ended and of not in self._ended:
                self._let_go[of] = offset, at_ms
            (self._ended.add if row.has_ended else self._ended.discard)(of)
