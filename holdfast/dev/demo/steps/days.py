"""Steps of the demo: windows downstream of a step count a day as it happens, and count it again from its
backlog, read by two workers of which one is killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clock import system_clock
from holdfast.dev.demo.environment import BACKLOG_RUN, LIVE_RUN, DemoEnvironment
from holdfast.dev.demo.narrator import DayFindings, Teller
from holdfast.dev.demo.processes.reading_day import PageView, day, hours_of, reading_day
from holdfast.dev.demo.steps.claims import BROKER_TIME, new_topic
from holdfast.dev.demo.steps.joins import ResultReader
from holdfast.dev.waits import wait_until
from holdfast.errors import DemoError
from holdfast.kafka.clients import make_writer
from holdfast.pipeline.topic import TopicLog
from holdfast.streams import WindowResult

PARTITIONS, PAGES, HOURS, VIEWS_AN_HOUR = 4, 10, 24, 500
HOUR_MS = 3_600_000
DEADLINE_S, FLUSH_S, STOP_GRACE_S = 120.0, 60.0, 20.0
MODULE = "holdfast.dev.demo.processes.reading_day"
Counts = dict[tuple[str, int], int]
"""The number of views of each page in the hour that begins at a time in ms."""


class DaySteps:
    """One application, run twice: live, and over the backlog."""

    def __init__(self, stage: DemoEnvironment, teller: Teller) -> None:
        self._stage, self._teller = stage, teller

    def play(self) -> DayFindings:
        """Run the steps; what does not hold is a HoldfastError. No worker runs afterwards."""
        for run in (LIVE_RUN, BACKLOG_RUN):
            settings = self._stage.day_settings(f"{run}-1")
            admin = Admin(settings)
            missing = [hours_of(run)] if run == BACKLOG_RUN else [day.topic, hours_of(run)]
            admin.apply([new_topic(str(topic), PARTITIONS, BROKER_TIME) for topic in missing])
            create_topics(settings, reading_day(run), partitions=PARTITIONS, admin=admin)
        expected, live = self._live()
        again, read, seconds = self._again(len(expected))
        if wrong := [*differing(expected, live, "live"), *differing(live, again, "from the backlog")]:
            raise DemoError(f"{len(wrong)} windows differ: {'; '.join(islice(wrong, 5))}")
        views = sum(expected.values())
        self._teller.say(
            f"All {len(again):,} windows are those of the live run, and hold all {views:,} views. The worker"
            f" was killed when {read:,} offsets lay between the step and the windows."
        )
        return DayFindings(views=views, windows=len(again), read=read, seconds=seconds)

    # -- steps

    def _live(self) -> tuple[Counts, Counts]:
        with self._teller.step("Count the views of pages in each hour of a day, as it happens"):
            self._teller.waiting("waiting for the day to end")
            settings = self._stage.day_settings(f"{LIVE_RUN}-1")
            producer, expected, found = make_writer(settings.producer()), Counts(), Counts()
            with ResultReader(settings, hours_of(LIVE_RUN), PARTITIONS) as reader:
                worker = self._stage.day_reader(f"{LIVE_RUN}-1", MODULE)
                for hour in range(HOURS + 1):
                    for number in range(VIEWS_AN_HOUR if hour < HOURS else PARTITIONS):
                        at_ms = hour * HOUR_MS + number * HOUR_MS // VIEWS_AN_HOUR
                        # Partitions are as far as each other, and pages are in each.
                        view = PageView(f"page-{number * 7 % PAGES}" if hour < HOURS else "night", at_ms)
                        producer.produce(day.topic, day.serde.encode(view), partition=number % PARTITIONS)
                        if hour < HOURS:
                            window = view.page, hour * HOUR_MS
                            expected[window] = expected.get(window, 0) + 1
                    if left := producer.flush(FLUSH_S):
                        raise DemoError(f"{left} records were not written in {FLUSH_S:g} s")
                    if hour % 12 == 0:
                        self._until(reader, found, hour * PAGES, worker.check)
            worker.stop(grace_s=STOP_GRACE_S)
            self._teller.say(
                f"{len(expected):,} windows behind a step, of {PAGES} pages and {HOURS} hours, without grace."
            )
        return expected, found

    def _again(self, windows: int) -> tuple[Counts, int, float]:
        with self._teller.step(
            "Count the day again: two workers read its backlog, and one of them is killed"
        ):
            self._teller.waiting("waiting for the windows")
            settings, began_s = self._stage.day_settings(f"{BACKLOG_RUN}-1"), system_clock.monotonic_s()
            found, total = Counts(), HOURS * VIEWS_AN_HOUR
            with (
                ResultReader(settings, hours_of(BACKLOG_RUN), PARTITIONS) as reader,
                TopicLog(settings, str(reading_day(BACKLOG_RUN)[0].emits[0])) as sent,
            ):
                workers = [self._stage.day_reader(f"{BACKLOG_RUN}-{at}", MODULE) for at in (1, 2)]

                def check() -> None:
                    for each in workers:
                        each.check()

                wait_until(
                    "the first views",
                    lambda: sum(sent.ends(range(PARTITIONS)).values()) > total // 5,
                    DEADLINE_S,
                    check=check,
                )
                workers[0].kill()
                read = sum(sent.ends(range(PARTITIONS)).values())
                workers[0].start()
                self._until(reader, found, windows, check)
                seconds = system_clock.monotonic_s() - began_s
            for each in workers:
                each.stop(grace_s=STOP_GRACE_S)
        return found, read, seconds

    def _until(
        self, reader: ResultReader[WindowResult[int]], found: Counts, count: int, check: object
    ) -> None:
        def is_complete() -> bool:
            for each in reader.take():
                window = each.key, each.start_ms
                if window in found:
                    raise DemoError(f"{named(window)} was sent twice")
                found[window] = each.value
            return len(found) >= count

        wait_until(f"{count} windows", is_complete, DEADLINE_S, check=check)  # type: ignore[arg-type]


def named(window: tuple[str, int]) -> str:
    """Return a window in words.

    >>> named(("page-3", 8 * HOUR_MS))
    'page-3 at 08:00'
    """
    return f"{window[0]} at {window[1] // HOUR_MS:02}:00"


def differing(
    wanted: Mapping[tuple[str, int], int], found: Mapping[tuple[str, int], int], whose: str
) -> list[str]:
    """Return in words which windows of *found* are not as *wanted*.

    >>> differing({("a", 0): 3, ("b", 0): 1}, {("a", 0): 2, ("c", 0): 1}, "live")
    ['a at 00:00: 3, 2 live', 'b at 00:00: 1, none live', 'c at 00:00: none, 1 live']
    """
    return [
        f"{named(window)}: {wanted.get(window, 'none')}, {found.get(window, 'none')} {whose}"
        for window in sorted({*wanted, *found})
        if wanted.get(window) != found.get(window)
    ]
