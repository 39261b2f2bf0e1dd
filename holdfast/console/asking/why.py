"""Why a row is as it is: the records that made it so. Asked in a process of its own, since its partition is
folded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor

LIMIT_CHANGES = 50
LIMIT_BYTES = 20_000


class LoadedApplication(Protocol):
    """An application as a process of its own has loaded it again."""

    @property
    def settings(self) -> Settings:
        """Return the application's settings."""

    @property
    def processors(self) -> Sequence[Processor[Any, Any]]:
        """Return all that it declares."""

    def processor(self, name: str) -> Processor[Any, Any]:
        """Return the processor of this name; ConfigError where there is none."""


Load = Callable[[], LoadedApplication]
"""Loads the application again; it can be pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyQuestion:
    """The row to explain: *table* is a named table of *processor*, "" for its own. *at* is a time or an
    offset, as `--until` takes them. *lake* None: of the topic alone.
    """

    processor: str
    table: str
    key: str
    at: str
    lake: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyChange:
    """A change of the row, with the record that made it; *topic* None: the passing of time did. *key* and
    *value* are the beginning of the record's, of *value_bytes* in all; *lies_in* None where it was not found
    any more. *in_topic*: the topic still holds it.
    """

    partition: int
    topic: str | None
    offset: int
    at_ms: int
    before: str | None
    after: str | None
    key: bytes | None
    value: bytes | None
    value_bytes: int
    lies_in: str | None
    in_topic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyAnswer:
    """The last changes, the newest first, of *total*; *rows* has the row by partition, as JSON, and *applied*
    up to which offset each was folded.
    """

    rows: Sequence[tuple[int, str | None]]
    applied: Sequence[tuple[int, int]]
    changes: Sequence[WhyChange]
    total: int


def answer_why(load: Load, question: WhyQuestion) -> WhyAnswer:
    """Return the records that made the row so. Raises any error of `row_as_of`."""
    from holdfast.pipeline.bronze.extent import parse_until
    from holdfast.pipeline.histories.as_of import AsOfOptions, row_as_of
    from holdfast.pipeline.replay import ReplayOptions

    application = load()
    replay = ReplayOptions(
        engine="local", source="topic" if question.lake is None else "history", lake=question.lake
    )
    found = row_as_of(
        application.processor(question.processor),
        application.settings,
        question.key,
        parse_until(question.at, "at"),
        AsOfOptions(replay=replay, limit=LIMIT_CHANGES),
        table=question.table,
    )
    return WhyAnswer(
        rows=[(each.partition, each.row) for each in found.rows],
        applied=sorted(found.applied.items()),
        changes=[_change(row.partition, each) for row in found.rows for each in reversed(row.changes)],
        total=sum(each.total for each in found.rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LateQuestion:
    """Why records of *processor* were late: the one at *place*, a topic, partition and offset, or without it
    the last ones.
    """

    processor: str
    place: tuple[str, int, int] | None
    lake: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateAnswer:
    """The records, the newest of each partition first, of *total* that were late."""

    records: Sequence[Any]
    total: int


def answer_late(load: Load, question: LateQuestion) -> LateAnswer:
    """Return which records were late, and why, as `WhyLate` has it. Raises whatever `late_records` does."""
    from holdfast.pipeline.histories.late import LateOptions, RecordPlace, late_records, why_late
    from holdfast.pipeline.replay import ReplayOptions

    application = load()
    replay = ReplayOptions(
        engine="local", source="topic" if question.lake is None else "history", lake=question.lake
    )
    known = application.processors, question.processor, application.settings
    if question.place is not None:
        return LateAnswer(records=[why_late(*known, RecordPlace(*question.place), replay)], total=1)
    found = late_records(*known, None, LateOptions(replay=replay, limit=LIMIT_CHANGES))
    return LateAnswer(records=found.records[::-1][:LIMIT_CHANGES], total=sum(found.totals.values()))


def _change(partition: int, made: Any) -> WhyChange:
    record = made.record
    value = None if record is None else record.value
    return WhyChange(
        partition=partition,
        topic=made.topic,
        offset=made.offset,
        at_ms=made.at_ms,
        before=made.before,
        after=made.after,
        key=None if record is None or record.key is None else record.key[:LIMIT_BYTES],
        value=None if value is None else value[:LIMIT_BYTES],
        value_bytes=len(value or b""),
        lies_in=None if record is None else record.lies_in,
        in_topic=made.command is not None,
    )
