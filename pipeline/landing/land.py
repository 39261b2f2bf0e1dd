"""Landing topics: one, or many at once in one process, each in a table of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.errors import SparkError
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.bronze.landed_notes import LandedNotes
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandOptions, LandReport, Progress, chosen_engine
from holdfast.pipeline.spark.session import SparkOptions, open_session
from holdfast.pipeline.topic import TopicLog

logger = logging.getLogger(__name__)

MakeTable = Callable[[str], LocalTable]


@contextmanager
def tables_of(
    settings: Settings, lake: str, options: LandOptions, spark: SparkOptions | None
) -> Iterator[MakeTable]:
    """Give what opens bronze tables by their paths, with the engine that lands in *lake*; a Spark session
    ends with the block.
    """
    engine, _ = chosen_engine(options.engine, lake, spark)
    if engine == "local":
        yield partial(LocalTable, settings)
        return
    from holdfast.pipeline.landing.task_table import TaskTable

    with open_session(spark) as session:
        yield partial(TaskTable, session, settings)


def land(
    settings: Settings,
    topic: str,
    lake: str,
    *,
    options: LandOptions | None = None,
    spark: SparkOptions | None = None,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> LandReport:
    """Land *topic* in *lake* and return a report; *progress* is called after each commit, *stop* ends a
    following landing.

    Raises LostRecordsError when the topic no longer holds what comes next, LakeError when the table does not
    end where a landing left it or another landing extends it, TopicError and BrokerError for the topic's
    side, SparkError for a failed job.
    """
    options, stop = options or LandOptions(), stop or threading.Event()
    with TopicLog(settings, topic) as log:
        log.partitions()  # a missing topic is an error before a JVM starts
        with tables_of(settings, lake, options, spark) as table_at:
            notes = LandedNotes(settings)
            landing = Landing(table_at(bronze_path(lake, topic)), settings, log, options, notes)
            run(landing, options, stop, progress)
            return landing.report


def run(
    landing: Landing,
    options: LandOptions,
    stop: threading.Event,
    progress: Progress | None = None,
    slot: AbstractContextManager[object] | None = None,
) -> None:
    """Land all committed records, and with `follow` later ones too, until *stop*; each commit is made inside
    *slot*.
    """
    slot = slot or nullcontext()
    ends = landing.ends()
    while not stop.is_set():
        started_s = system_clock.monotonic_s()
        try:
            with slot:
                if stop.is_set():
                    return
                landed = landing.step(ends)
        except SparkError:
            if (
                stop.is_set()
            ):  # a supervisor that ends all processes of a service at once ended the JVM as well
                logger.warning("the landing into %(path)s ends with its JVM", {"path": landing.path})
                return
            raise
        if landed is not None and progress is not None:
            progress(landed)
        if options.follow:
            ends = landing.wait_for_more(stop, started_s)
        elif landed is None:
            return
