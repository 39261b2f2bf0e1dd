"""The content of a lake by topic, and its faults. Asked in a process of its own: it reads the history of
tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import HoldfastError, LakeError

LIMIT_FAULTS = 50
LIMIT_TOPICS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePartitionLine:
    """One partition of a bronze table: its rows are of offsets from *begin* to before *end*; *topic_end* is
    the end of the topic, None if Kafka did not answer.
    """

    partition: int
    begin: int
    end: int
    topic_end: int | None
    rows: int | None
    files: int
    size_bytes: int
    landed_ms: float | None

    @property
    def behind(self) -> int | None:
        """Return how many offsets of the topic are not landed."""
        return None if self.topic_end is None else max(0, self.topic_end - self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTopicLine:
    """A topic's bronze table; *trouble* is why it could not be read, and *faults* are its faults by a cheap
    check, the first LIMIT_FAULTS of *faults_count*.
    """

    topic: str
    table: str
    trouble: str | None = None
    version: int = 0
    commits: int = 0
    partitions: Sequence[LakePartitionLine] = ()
    faults: Sequence[str] = ()
    faults_count: int = 0

    @property
    def rows(self) -> int | None:
        return _sum([each.rows for each in self.partitions])

    @property
    def behind(self) -> int | None:
        return _sum([each.behind for each in self.partitions])

    @property
    def files(self) -> int:
        return sum(each.files for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    @property
    def landed_ms(self) -> float | None:
        """Return when rows were landed last."""
        return max((each.landed_ms for each in self.partitions if each.landed_ms is not None), default=None)


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [each for each in parts if each is not None]
    return sum(known) if len(known) == len(parts) else None


def lake_topics(processors: Iterable[Processor[Any, Any]]) -> list[str]:
    """Return the topics whose bronze tables an application's lake would have: those that it folds."""
    return sorted({str(topic) for each in processors for topic in each.topics})


def answer_landed(settings: Settings, lake: str, topics: Sequence[str]) -> list[LakeTopicLine]:
    """Return the bronze table of each of *topics*, checked without opening its files."""
    return [_landed(settings, lake, topic) for topic in topics]


def _landed(settings: Settings, lake: str, topic: str) -> LakeTopicLine:
    from holdfast.pipeline.bronze.commits import history_of, last_landing, listed_files
    from holdfast.pipeline.bronze.lake import bronze_path, open_table
    from holdfast.pipeline.checks.check import check_table

    where = bronze_path(lake, topic)
    try:
        verdict = check_table(settings, topic, lake)
        if verdict.version is None:
            return LakeTopicLine(topic=topic, table=where, trouble=verdict.faults[0].told)
        table = open_table(where)
        newest = last_landing(where, history_of(table, verdict.version + 1))
    except LakeError as error:
        return LakeTopicLine(topic=topic, table=where, trouble=str(error))
    return LakeTopicLine(
        topic=topic,
        table=where,
        version=verdict.version,
        commits=verdict.commits,
        partitions=[]
        if newest is None
        else _partitions(newest.landed, listed_files(table), _ends(settings, topic)),
        faults=[each.told for each in verdict.faults[:LIMIT_FAULTS]],
        faults_count=len(verdict.faults),
    )


def _ends(settings: Settings, topic: str) -> Mapping[int, int]:
    """Return the ends of a topic's partitions, nothing if Kafka does not answer."""
    from holdfast.pipeline.topic import TopicLog

    try:
        with TopicLog(settings, topic) as log:
            return log.ends(log.partitions())
    except HoldfastError:
        return {}


def _partitions(
    landed: Any, files: Mapping[int, Sequence[Any]], ends: Mapping[int, int]
) -> list[LakePartitionLine]:
    return [
        LakePartitionLine(
            partition=partition,
            begin=landed.begins.get(partition, 0),
            end=end,
            topic_end=ends.get(partition),
            rows=_sum([each.rows for each in files.get(partition, ())]),
            files=len(files.get(partition, ())),
            size_bytes=sum(each.size_bytes or 0 for each in files.get(partition, ())),
            landed_ms=max(
                (each.landed_ms for each in files.get(partition, ()) if each.landed_ms is not None),
                default=None,
            ),
        )
        for partition, end in sorted(landed.end.items())
    ]
