"""Landing a processor of several sources: a table for each source and one for the choices, so that the lake
alone records how they were folded.

Each round notes where the sources end, then reads the choices: whatever was folded of the sources by then is
in the order of these. The sources are landed as far as noted, then the choices. The last commit of the
choices says how far the sources are, and a replay reads no further: so it never finds records whose order is
still to be landed. It has the position of the table before all that was read as well: records that a worker
had folded keep their order for ever.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.chain_state import last_positions
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.choices import decode_choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, counted, decode_position
from holdfast.core.engine.upgrades import in_version, versions_on
from holdfast.errors import ChangelogError, SparkError
from holdfast.pipeline.bronze.lake import Cut, TablePosition, bronze_path
from holdfast.pipeline.bronze.landed_notes import LandedNotes
from holdfast.pipeline.folds.extent import check_partitions
from holdfast.pipeline.landing.land import land, tables_of
from holdfast.pipeline.landing.landing import POLL_S, Landing
from holdfast.pipeline.landing.options import LandOptions, LandReport, Progress
from holdfast.pipeline.spark.session import SparkOptions
from holdfast.pipeline.topic import Span, TopicLog, TopicReader, settled

logger = logging.getLogger(__name__)

SETTLE_S = 5.0
"""The time for which a round waits for transactions to end. One that is open then was not folded: the next
round includes it.
"""
POSITIONS_S = 10.0
"""The interval at which a following landing looks up the table's position, when nothing else is new."""
_LOOK_BACK = 64


def land_processor(
    settings: Settings,
    processor: Processor[Any, Any],
    lake: str,
    *,
    options: LandOptions | None = None,
    spark: SparkOptions | None = None,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> list[LandReport]:
    """Land every source of *processor* and, where there are several, its choices; return a report on each
    topic.

    Otherwise as `land`.
    """
    options, stop = options or LandOptions(), stop or threading.Event()
    if not processor.choices_topics(settings.app):
        return [
            land(settings, processor.source, lake, options=options, spark=spark, stop=stop, progress=progress)
        ]
    with ExitStack() as stack:
        tables = (each.topic for each in processor.reads)
        topics = (*dict.fromkeys((*processor.topics, *tables)), processor.choices(settings.app))
        logs = [stack.enter_context(TopicLog(settings, topic)) for topic in topics]
        for log in logs:
            log.partitions()  # a missing topic is an error before a JVM starts
        table_at = stack.enter_context(tables_of(settings, lake, options, spark))
        notes = LandedNotes(settings)
        landings = [
            Landing(table_at(bronze_path(lake, log.topic)), settings, log, options, notes) for log in logs
        ]
        numbers = ChoiceNumbers(stack.enter_context(TopicReader(settings, topics[-1])))
        rounds = _Rounds(settings, landings, logs, numbers, processor)
        while not stop.is_set():
            started_s = system_clock.monotonic_s()
            try:
                rounds.land(stop, progress)
            except SparkError:
                if stop.is_set():  # see land()
                    logger.warning("the landing of %(name)s ends with its JVM", {"name": processor.name})
                    break
                raise
            if not options.follow:
                break
            _wait(landings, stop, started_s + options.every_s)
        return [landing.report for landing in landings]


def _wait(landings: list[Landing], stop: threading.Event, until_s: float) -> None:
    """Wait for the time between two rounds, and for something to land; not for long, since the table may have
    gone on.
    """
    latest_s = until_s + POSITIONS_S
    while not stop.wait(max(POLL_S, until_s - system_clock.monotonic_s())):
        if system_clock.monotonic_s() >= latest_s or any(each.is_behind(each.ends()) for each in landings):
            return


class _Rounds:
    """Lands the sources and, last, the choices: each time as far as all of them were at once; of the topics
    of globals, as far as those choices can name.
    """

    def __init__(
        self,
        settings: Settings,
        landings: list[Landing],
        logs: list[TopicLog],
        numbers: ChoiceNumbers,
        processor: Processor[Any, Any],
    ) -> None:
        self._settings, self._processor = settings, processor
        (*self._sources, self._choices), self._log, self._numbers = landings, logs[-1], numbers
        self._topics = [log.topic for log in logs[:-1]]
        self._folded, self._tables = set(processor.topics), {each.topic for each in processor.reads}

    def land(self, stop: threading.Event, progress: Progress | None) -> None:
        found = dict(zip(self._topics, self._sources, strict=True))
        positions = table_positions(self._settings, self._processor)  # before the ends, which are later
        ends = {topic: each.ends() for topic, each in found.items() if topic in self._folded}
        settled(self._log, SETTLE_S)
        spans = self._log.spans()
        check_partitions(spans, ends, self._log.topic)
        tables = {topic: found[topic].ends() for topic in self._tables}  # after all that the choices name
        for topic, each in found.items():
            if not _reach(each, tables.get(topic) or ends[topic], None, stop, progress):
                return
        numbered = {at: self._numbers.up_to(at, span) for at, span in spans.items()}
        cut = Cut(sources=ends, numbers=numbered, positions=positions)
        _reach(self._choices, {at: span.end for at, span in spans.items()}, cut, stop, progress)


def table_positions(settings: Settings, processor: Processor[Any, Any]) -> dict[int, TablePosition]:
    """Return the position of each partition of the table of a processor of several sources, of the version
    that has come furthest of those that obey the same choices; none for a missing table, or one with other
    sources.
    """
    app, counts = settings.app, Admin(settings).partition_counts()
    choices = processor.choices(app)
    found: dict[int, Position] = {}
    for version in sorted(
        {processor.version, *versions_on(app, processor.name, counts, counts.get(choices, 0))}
    ):
        each = in_version(processor, version)
        changelog = each.changelog(app)
        places = [(changelog, at) for at in range(counts.get(changelog, 0))]
        for (_, at), value in last_positions(
            settings, places if each.choices(app) == choices else ()
        ).items():
            position = None if value is None else _vector(value)
            if position is None or position.sources != processor.signature:
                continue
            if at not in found or counted(position.applied) > counted(found[at].applied):
                found[at] = position
    return {
        at: TablePosition(dict(zip(processor.topics, each.applied, strict=True)), each.choices)
        for at, each in found.items()
    }


def _vector(value: bytes) -> Position | None:
    try:
        return decode_position(value)
    except ChangelogError:  # of one source
        return None


def _reach(
    landing: Landing,
    ends: dict[int, int],
    cut: Cut | None,
    stop: threading.Event,
    progress: Progress | None,
) -> bool:
    """Land up to *ends*, in as many commits as it takes; return whether they were reached."""
    while not stop.is_set():
        landed = landing.step(ends, cut)
        if landed is None:
            return True
        if progress is not None:
            progress(landed)
    return False


class ChoiceNumbers:
    """Finds how many choices a partition holds up to an offset, by the number of the last one."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader, self._known = reader, dict[int, tuple[int, int]]()

    def up_to(self, partition: int, span: Span) -> int:
        """Return the number of the choice after *span*."""
        end, number = self._known.get(partition, (span.first, 0))
        back = _LOOK_BACK  # an offset may be the end of a transaction
        while end < span.end:
            first = max(end, span.end - back)
            values = [
                value
                for records, _ in self._reader.records(partition, Span(first=first, end=span.end))
                for value in records.values
            ]
            if values:
                number = decode_choice(values[-1]).number + 1
            if values or first == end:
                break
            back *= _LOOK_BACK
        self._known[partition] = span.end, number
        return number
