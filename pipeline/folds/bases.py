"""What tables began with in place of nothing, as the topic `{app}-{table}-base` keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.migrating import Beginning, taken_up
from holdfast.core.engine.merge.positions import offsets_of
from holdfast.core.engine.state.base import BASE, TableBase, decode_base
from holdfast.errors import ChangelogError, PipelineError, TopicError
from holdfast.pipeline.bronze.extent import Extent
from holdfast.pipeline.topic import Span, TopicLog, TopicReader


def read_bases(processor: Processor[Any, Any], settings: Settings) -> dict[int, Beginning]:
    """Return what partitions of *processor* began with, where that was not nothing.

    TopicError without the topic, ChangelogError for one that was written to by something else or trimmed.
    """
    if not processor.migrate:
        return {}
    topic = processor.base(settings.app)
    with TopicLog(settings, topic) as log:
        spans = log.spans()
    with TopicReader(settings, topic) as reader:
        found = {at: _read(processor, topic, reader, at, span) for at, span in spans.items()}
    return {at: each for at, each in found.items() if each is not None}


def _read(
    processor: Processor[Any, Any], topic: str, reader: TopicReader, partition: int, span: Span
) -> Beginning | None:
    """Return the last beginning of a partition: each ends with its note."""
    where = f"{topic} partition {partition}"
    if span.first > 0:
        raise ChangelogError(f"{where} begins at offset {span.first}: what the table began with was deleted")
    rows: list[tuple[bytes, bytes]] = []
    last: Beginning | None = None
    for records, _ in reader.records(partition, span):
        for key, value in zip(records.keys, records.values, strict=True):
            if key is None or value is None:
                raise ChangelogError(f"{where} has a record without key or value: holdfast did not write it")
            if key == BASE:
                base = decode_base(value)
                assert base is not None, "there is a value"
                last, rows = taken_up(processor, base, rows), []
            else:
                rows.append((key, value))
    if rows:
        raise ChangelogError(f"{where} ends with {len(rows)} records that no note closes")
    return last


def check_bases(
    processor: Processor[Any, Any],
    settings: Settings,
    bases: Mapping[int, Beginning],
    live: Mapping[int, TableBase | None],
) -> None:
    """Raise TopicError where a changelog tells of a base that its topic does not hold, or of another."""
    for partition, noted in live.items():
        kept = bases.get(partition)
        if noted != (None if kept is None else kept.base):
            raise TopicError(
                f"{processor.base(settings.app)} partition {partition} does not hold what table {processor.table} began with: "
                f"the changelog tells of {'nothing' if noted is None else noted.told(processor.topics)}, the topic "
                f"of {'nothing' if kept is None else kept.base.told(processor.topics)}. Raise the version and migrate again"
            )


def first_behind(bases: Mapping[int, Beginning]) -> dict[int, int]:
    """Return the first offset of the source that is not in what each partition began with."""
    return {at: offsets_of(base.position)[0] + 1 for at, base in bases.items()}


def behind_bases(extent: Extent, bases: Mapping[int, Beginning]) -> Extent:
    """Return what is left to read of *extent* behind what partitions began with.

    PipelineError where it ends before that: nothing tells what the table was then.
    """
    spans = dict(extent.spans)
    for partition, first in first_behind(bases).items():
        span = spans[partition]
        if span.end < first:
            raise PipelineError(
                f"partition {partition} of the table began behind offset {first - 1}, so it cannot be replayed up to {span.end - 1}"
            )
        spans[partition] = Span(first=max(span.first, first), end=span.end)
    return Extent(spans=spans, holes=extent.holes)


def told_bases(processor: Processor[Any, Any], bases: Mapping[int, Beginning]) -> tuple[str, ...]:
    """Return, in words, with what partitions began."""
    return tuple(
        f"partition {at} from base: {each.base.told(processor.topics)}" for at, each in sorted(bases.items())
    )
