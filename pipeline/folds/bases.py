"""The first states of tables that did not begin empty, as the topic `{app}-{table}-base` keeps them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.migrating import Beginning, taken_up
from holdfast.core.engine.state.base import BASE, TableBase, decode_base
from holdfast.errors import ChangelogError, PipelineError, TopicError
from holdfast.pipeline.topic import Span, TopicLog, TopicReader


def read_bases(
    processor: Processor[Any, Any], settings: Settings, partitions: Collection[int] | None = None
) -> dict[int, Beginning]:
    """Return the first states of *partitions* of *processor* (None: all) that did not begin empty: the topic
    decides, since a declaration may have lost its `migrate=` later.

    ChangelogError for a topic that was written to by something else or trimmed.
    """
    topic = processor.base(settings.app)
    if topic not in Admin(settings).partition_counts():
        return {}
    with TopicLog(settings, topic) as log:
        spans = log.spans()
    with TopicReader(settings, topic) as reader:
        found = {
            at: _read(processor, topic, reader, at, span)
            for at, span in spans.items()
            if partitions is None or at in partitions
        }
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
    bases: Mapping[int, TableBase],
    live: Mapping[int, TableBase | None],
) -> None:
    """Raise TopicError if a changelog names a base that its topic does not hold, or another one."""
    for partition, noted in live.items():
        if noted != (kept := bases.get(partition)):
            raise TopicError(
                f"{processor.base(settings.app)} partition {partition} does not hold what table"
                f" {processor.table} began with: the changelog tells of"
                f" {'nothing' if noted is None else noted.told()}, the topic of"
                f" {'nothing' if kept is None else kept.told()}. Raise the version and migrate again"
            )


def first_behind(bases: Mapping[int, Beginning], source: int = 0) -> dict[int, int]:
    """Return the first offset of the source with that number that is not in what each partition began
    with.
    """
    return {at: each.position.applied[source] + 1 for at, each in bases.items()}


def span_behind(span: Span, partition: int, first: int, topic: str = "") -> Span:
    """Return the rest of *span* from *first* on, with which a partition continued after its base, 0 for one
    without.

    PipelineError where it ends before that: the table's state then is unknown.

    >>> span_behind(Span(first=0, end=9), 0, 4), span_behind(Span(first=2, end=9), 0, 0)
    (Span(first=4, end=9), Span(first=2, end=9))
    """
    if span.end < first:
        source = f" of {topic}" if topic else ""
        raise PipelineError(
            f"partition {partition} of the table began behind offset {first - 1}{source}, so it cannot be"
            f" replayed up to {span.end - 1}"
        )
    return Span(first=max(span.first, first), end=span.end)
