"""Holding emitted topics against what a replay would emit, and naming the first difference.

Emits of one key keep the order of their source partition; those of different partitions come in any order between each other. So records are
compared key by key, and those of a key that comes from several source partitions, or that has none, by what they are alone. What is compared is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.merge.positions import Position, choices_of, offsets_of, stored_format
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.errors import ConfigError, LostRecordsError
from holdfast.pipeline.folds.folding import EmitsWanted
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import TopicLog, TopicReader
from holdfast.pipeline.verify.table import LivePartition, read_live, refused_by, upto

ANYWHERE = -1
"""The partition of an emit without key and partition: any."""


class EmitContent(NamedTuple):
    """What of a record a fold decides."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def __str__(self) -> str:
        headers = f", headers {dict(self.headers)}" if self.headers else ""
        return f"{self.value!r:.200}{headers}"


class FoundEmit(NamedTuple):
    """A record as it lies in an emitted topic."""

    partition: int
    offset: int
    content: EmitContent


_Key: TypeAlias = tuple[int, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitDifference:
    """The first record at which an emitted topic is not what a replay emits. *expected* None: a replay emits no such record; *found* None: it
    is missing, and *offset* with it. *key* is text as far as it is UTF-8.
    """

    topic: str
    partition: int
    offset: int | None
    key: str | None
    expected: str | None
    found: str | None

    def explain(self) -> str:
        """Return it in words."""
        where = f"{self.topic} partition {self.partition}"
        place = where if self.offset is None else f"{where} offset {self.offset}"
        return f"{place}, key {self.key!r}: expected {self.expected or 'none'}, found {self.found or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedTopic:
    """Whether one topic agrees. *expected* and *found* are counts; *earlier* of what was found lies before, from earlier versions, and was not compared."""

    topic: str
    expected: int
    found: int
    earlier: int = 0
    difference: EmitDifference | None = None

    @property
    def equal(self) -> bool:
        return self.difference is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitsVerdict:
    """Whether what a live table has emitted is what its source makes it emit. *cut* names topics that have lost their heads, of which only the rest
    was compared.
    """

    processor: str
    version: int
    engine: str
    records: int
    topics: tuple[EmittedTopic, ...] = field(default_factory=tuple)
    cut: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.topics)

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        topics = [{**asdict(each), "equal": each.equal} for each in self.topics]
        told = {"processor": self.processor, "version": self.version, "engine": self.engine}
        return {**told, "records": self.records, "equal": self.equal, "cut": list(self.cut), "topics": topics}


def verify_emits(
    processor: Processor[Any, Any], settings: Settings, options: ReplayOptions | None = None
) -> EmitsVerdict:
    """Fold the sources of *processor* up to the position of its live table, and compare what that emits with what lies in its topics.

    Workers may go on meanwhile. Other writers of these topics are told as differences; earlier versions are not, whose records lie before. Of *options*, engine,
    source, lake and spark count. Raises ConfigError for a processor without emits, LostRecordsError for a source that has lost what the table was folded from.
    """
    if not processor.emits:
        raise ConfigError(
            f"processor {processor.name} emits nothing: --emits is for processors that are declared with emits="
        )
    due = {each.partition: _place(each.marker) for each in read_live(processor, settings)}
    topics = {str(topic): _Topic(settings, str(topic)) for topic in processor.emits}
    live = {each.partition: each for each in read_live(processor, settings)}
    first = processor.version == 1 and not any(each.base for each in live.values())
    exact = {str(topic) for topic in processor.emits if isinstance(topic, Internal) or first}
    options = options or ReplayOptions()
    if options.source == "topic":
        _check_heads(processor, settings, live)
    handovers = {at: each.handover for at, each in live.items() if each.handover is not None}
    asked = replace(
        upto(processor, settings, options, {at: each.marker for at, each in live.items()}),
        rows=False,
        transitions=False,
        of_key=None,
        partitions=None,
        out=None,
        allow_holes=any(each.lost for each in live.values()),
        emits=EmitsWanted(handovers=handovers, due=due),
        refused=refused_by(live.values()),
    )
    replayed = replay(processor, settings, asked)
    for partition in sorted(live):
        for is_due, emit in replayed.emitted(partition):
            topics[emit.topic].expect(partition, emit, is_due=is_due)
    return EmitsVerdict(
        processor=processor.name,
        version=processor.version,
        engine=replayed.engine,
        records=replayed.records,
        topics=tuple(each.judge(exact=name in exact) for name, each in topics.items()),
        cut=tuple(name for name, each in topics.items() if each.is_cut),
    )


def _place(position: Position) -> Handover:
    return Handover(HANDOVER_FORMAT, offsets_of(position), choices_of(position))


def _check_heads(
    processor: Processor[Any, Any], settings: Settings, live: Mapping[int, LivePartition]
) -> None:
    """Raise LostRecordsError where a source has lost what was folded of it."""
    form = stored_format(processor)
    bases = {
        at: offsets_of(form.decode(each.base.position)) for at, each in live.items() if each.base is not None
    }
    for number, topic in enumerate(processor.topics):
        with TopicLog(settings, topic) as log:
            spans = log.spans()
        for partition, each in sorted(live.items()):
            begins = bases[partition][number] + 1 if partition in bases else each.lost.get(topic, 0)
            if each.applied != NOTHING_APPLIED and spans[partition].first > begins:
                raise LostRecordsError(
                    f"topic {topic} partition {partition} begins at offset {spans[partition].first}, and the table was folded from {begins} on: nothing "
                    "can tell what it should have emitted"
                )


class _Topic:
    """What lies in an emitted topic, and what is expected there, by partition and key."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._name = name
        with TopicLog(settings, name) as log:
            spans = log.spans()
        self._count, self.is_cut = len(spans), any(span.first for span in spans.values())
        self._found: dict[_Key, list[FoundEmit]] = {}
        self._expected: dict[_Key, list[tuple[int, bool, EmitContent]]] = {}
        with TopicReader(settings, name) as reader:
            for partition, span in sorted(spans.items()):
                for records, _ in reader.records(partition, span):
                    columns = (records.offsets, records.keys, records.values, records.headers)
                    for offset, key, value, headers in zip(*columns, strict=True):
                        self._find(FoundEmit(partition, offset, EmitContent(key, value, _plain(headers))))

    def _find(self, found: FoundEmit) -> None:
        key = found.content.key
        place = ANYWHERE if key is None else found.partition
        self._found.setdefault((place, key), []).append(found)

    def expect(self, source: int, emit: Emit, *, is_due: bool) -> None:
        """Note what partition *source* emits; where not *is_due*, it may have come after the topic was read."""
        key = emit.key.encode() if isinstance(emit.key, str) else emit.key
        if key is None:
            place = ANYWHERE
        else:
            place = of_key(key, self._count) if emit.partition is None else emit.partition
        content = EmitContent(key, emit.value, _plain(emit.headers))
        self._expected.setdefault((place, key), []).append((source, is_due, content))

    def judge(self, *, exact: bool) -> EmittedTopic:
        """Return the verdict; unless *exact*, what lies before may be from earlier versions."""
        differences, earlier = list[EmitDifference](), 0
        for place in self._found.keys() | self._expected.keys():
            found, expected = self._found.get(place, []), self._expected.get(place, [])
            some, older = self._compare(place, found, expected, exact=exact)
            differences += some
            earlier += older
        end = 1 << 62
        first = min(
            differences,
            key=lambda each: (each.partition, each.offset is None, each.offset or end, each.key or ""),
            default=None,
        )
        counts = (sum(map(len, self._expected.values())), sum(map(len, self._found.values())))
        return EmittedTopic(
            topic=self._name, expected=counts[0], found=counts[1], earlier=earlier, difference=first
        )

    def _compare(
        self,
        place: _Key,
        found: Sequence[FoundEmit],
        expected: Sequence[tuple[int, bool, EmitContent]],
        *,
        exact: bool,
    ) -> tuple[list[EmitDifference], int]:
        due = sum(is_due for _, is_due, _ in expected)
        if place[1] is None or len({source for source, _, _ in expected}) > 1:
            return self._compare_alone(place, found, expected, exact=exact)
        contents = [content for _, _, content in expected]
        if exact and not self.is_cut:
            at = _apart([each.content for each in found], contents)
            have, want = found[at] if at < len(found) else None, contents[at] if at < len(contents) else None
            is_there = have is None and at >= due  # what came while the topic was read may be missing
            return [] if is_there else [self._difference(place, have, want)], 0
        return self._compare_ends(place, found, contents, due, exact=exact)

    def _compare_ends(
        self,
        place: _Key,
        found: Sequence[FoundEmit],
        contents: Sequence[EmitContent],
        due: int,
        *,
        exact: bool,
    ) -> tuple[list[EmitDifference], int]:
        """Compare from the end backwards: what lies before may be of earlier versions, or may be gone."""
        counts = range(len(contents), due - 1, -1)
        wanted = contents[: next((count for count in counts if _ends_with(found, contents[:count])), due)]
        for have, want in zip(reversed(found), reversed(wanted), strict=False):
            if have.content != want:
                return [self._difference(place, have, want)], 0
        older = len(found) - len(wanted)
        if older < 0 and not self.is_cut:
            return [self._difference(place, None, wanted[-len(found) - 1])], 0
        if older > 0 and exact:
            return [self._difference(place, found[older - 1], None)], older
        return [], max(0, older)

    def _compare_alone(
        self,
        place: _Key,
        found: Sequence[FoundEmit],
        expected: Sequence[tuple[int, bool, EmitContent]],
        *,
        exact: bool,
    ) -> tuple[list[EmitDifference], int]:
        """Compare without order."""
        due = Counter(content for _, is_due, content in expected if is_due)
        may = Counter(content for _, is_due, content in expected if not is_due)
        strange, older = list[EmitDifference](), 0
        for each in reversed(found):  # the last of equal ones are those of this version
            if due[each.content]:
                due[each.content] -= 1
            elif may[each.content]:
                may[each.content] -= 1
            else:
                older += 1
                strange.append(self._difference(place, each, None))
        missing = [self._difference(place, None, content) for content in due.elements()]
        return [*(strange[-1:] if exact else ()), *([] if self.is_cut else missing[:1])], older

    def _difference(
        self, place: _Key, found: FoundEmit | None, expected: EmitContent | None
    ) -> EmitDifference:
        key = place[1]
        return EmitDifference(
            topic=self._name,
            partition=place[0] if found is None else found.partition,
            offset=None if found is None else found.offset,
            key=None if key is None else key.decode(errors="backslashreplace"),
            expected=None if expected is None else str(expected),
            found=None if found is None else str(found.content),
        )


def _plain(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, value) for name, value in headers or ())


def _ends_with(found: Sequence[FoundEmit], contents: Sequence[EmitContent]) -> bool:
    start = len(found) - len(contents)
    return start >= 0 and all(
        have.content == want for have, want in zip(found[start:], contents, strict=True)
    )


def _apart(one: Sequence[EmitContent], other: Sequence[EmitContent]) -> int:
    """Return the first place at which the two differ, where one ends too; the length of equal ones.

    >>> _apart("abc", "abd"), _apart("ab", "abc"), _apart("ab", "ab")
    (2, 2, 2)
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (here, there) in pairs if here != there), min(len(one), len(other)))


__all__ = ["EmitDifference", "EmitsVerdict", "EmittedTopic", "verify_emits"]
