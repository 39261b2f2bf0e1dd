"""Steps of the demo: a worker joins two streams within an interval, is killed and resumes, and the join is
folded again from the logs and from the choices that were recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Generic, Self, TypeVar

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.dev.demo.beside import Beside
from holdfast.dev.demo.environment import DemoEnvironment
from holdfast.dev.demo.narrator import HASH_SHOWN, JoinFindings, Teller
from holdfast.dev.demo.processes.advertising import (
    WITHIN_MS,
    AdOutcome,
    Shown,
    clicks,
    impressions,
    joined,
    outcomes,
)
from holdfast.dev.demo.processes.procfile import Process
from holdfast.dev.demo.steps.claims import BROKER_TIME, new_topic
from holdfast.dev.waits import wait_until
from holdfast.errors import DemoError
from holdfast.kafka.clients import make_reader, make_writer, reader_options
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.pipeline.verify.table import verify

T = TypeVar("T")

PARTITIONS = 2
SHOWN_A_SECOND = 200
TOLD_BEFORE_KILL = 200
TOLD_AFTER_KILL = 200
TOLD_DEADLINE_S = 120.0
STOP_GRACE_S = 20.0
FLUSH_S = 60.0
READ_RECORDS = 1_000


class JoinSteps:
    """An application that joins, its input records, and its output."""

    def __init__(self, stage: DemoEnvironment, teller: Teller) -> None:
        self._stage, self._teller = stage, teller
        self._settings = stage.join_settings
        self._results: list[AdOutcome] = []

    def play(self) -> JoinFindings:
        """Run the steps; what does not hold is a HoldfastError. The worker does not run afterwards."""
        admin = Admin(self._settings)
        admin.apply([new_topic(topic, PARTITIONS, BROKER_TIME) for topic in (*joined.topics, str(outcomes))])
        create_topics(self._settings, [joined], partitions=PARTITIONS, admin=admin)
        with (
            Audience(self._settings) as audience,
            ResultReader(self._settings, outcomes, PARTITIONS) as reader,
        ):
            worker = self._start(audience, reader)
            away_s = self._kill(worker, audience, reader)
            expected = audience.stop()
            self._hold(expected, reader)
        worker.stop(grace_s=STOP_GRACE_S)
        return self._again(len(expected), away_s)

    # -- steps

    def _start(self, audience: Audience, reader: ResultReader[AdOutcome]) -> Process:
        with self._teller.step("Join impressions of advertisements with the clicks on them"):
            self._teller.waiting("waiting for the first results")
            worker = self._stage.joiner("joiner", "holdfast.dev.demo.processes.advertising")
            self._until("results", reader, worker, audience, TOLD_BEFORE_KILL)
            self._teller.say(
                f"{SHOWN_A_SECOND} impressions a second in one topic, clicks in another. A click counts for"
                f" {WITHIN_MS // 1000} s of event time; an impression without one is told when none can come"
                " any more."
            )
        return worker

    def _kill(self, worker: Process, audience: Audience, reader: ResultReader[AdOutcome]) -> float:
        with self._teller.step("Kill the worker that joins, and start it again"):
            self._teller.waiting("waiting until it goes on")
            worker.kill()
            while last := reader.take(0.2):  # what it had committed before
                self._results += last
            killed_s, before = system_clock.monotonic_s(), len(self._results)
            worker.start()
            self._until("results after the kill", reader, worker, audience, before + 1)
            away_s = system_clock.monotonic_s() - killed_s
            self._until("results after the kill", reader, worker, audience, before + TOLD_AFTER_KILL)
            self._teller.say(
                f"Its next result comes {away_s:.1f} s after the SIGKILL. It is a static member of its group,"
                " so its partitions were still its own; its table and its position are those of its last"
                " transaction."
            )
        return away_s

    def _hold(self, expected: Mapping[int, int | None], reader: ResultReader[AdOutcome]) -> None:
        with self._teller.step("Stop the audience, and hold every result against what it did"):
            self._teller.waiting("waiting until the last impressions are told, by ticks")

            def is_complete() -> bool:
                self._results += reader.take()
                return len(self._results) >= len(expected)

            wait_until(f"{len(expected)} results", is_complete, TOLD_DEADLINE_S)
            self._results += reader.take(0.5)
            wrong = flaws(expected, self._results)
            if wrong:
                raise DemoError(f"{len(wrong)} results are wrong: {'; '.join(wrong[:5])}")
            alone = sum(after is None for after in expected.values())
            self._teller.say(
                f"{len(expected):,} impressions, each told once: {len(expected) - alone:,} with their click,"
                f" {alone:,} without. No record came to say the last of these; the worker's clock did, as a"
                " choice in the log."
            )

    def _again(self, results: int, away_s: float) -> JoinFindings:
        with self._teller.step("Fold both topics again, in the recorded order, and compare"):
            self._teller.waiting("folding")
            verdict = verify(joined, self._settings)
            if not verdict.equal:
                differences = "; ".join(each.explain() for each in verdict.partitions if not each.equal)
                raise DemoError(f"the table of {joined.name} is not what its logs give: {differences}")
            digest = verdict.replayed_digest
            self._teller.say(
                f"{verdict.records:,} records of two topics, in the order and with the ticks that the worker"
                f" recorded, give its state: {digest[:HASH_SHOWN]}"
            )
        return JoinFindings(results=results, away_s=away_s, digest=digest)

    # -- within

    def _until(
        self, what: str, reader: ResultReader[AdOutcome], worker: Process, audience: Audience, count: int
    ) -> None:
        def is_complete() -> bool:
            self._results += reader.take()
            return len(self._results) >= count

        def check() -> None:
            worker.check()
            audience.check()

        wait_until(what, is_complete, TOLD_DEADLINE_S, check=check)


def flaws(expected: Mapping[int, int | None], results: list[AdOutcome]) -> list[str]:
    """Return the faults of *results*, of which the *expected* ones should be there, by number of the
    impression.

    >>> flaws({1: 40, 2: None, 3: None}, [AdOutcome(1, 40), AdOutcome(2, 7), AdOutcome(2, None)])
    ['impression 2 was told 2 times', 'impression 2: 7 ms, not None', 'impression 3 was not told']
    """
    times = Counter(each.number for each in results)
    return [
        *(f"impression {number} was told {count} times" for number, count in times.items() if count > 1),
        *(
            f"impression {each.number}: {each.after_ms} ms, not {expected.get(each.number)}"
            for each in results
            if each.number not in expected or expected[each.number] != each.after_ms
        ),
        *(f"impression {number} was not told" for number in expected if number not in times),
    ]


class ResultReader(Generic[T]):
    """Reads the records of a stream that are committed, from its beginning."""

    def __init__(self, settings: Settings, stream: Stream[T], partitions: int) -> None:
        config = settings.consumer(**reader_options(f"{settings.app}-reader", committed=True, wait_ms=10))
        self._reader, self._stream = LogReader(make_reader(config), limit=READ_RECORDS), stream
        self._reader.assign({(str(stream), partition): 0 for partition in range(partitions)})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    def take(self, wait_s: float = 0.02) -> list[T]:
        """Return the values that have arrived, waiting up to *wait_s* for them."""
        return [self._stream.serde.decode(each.value() or b"") for each in self._reader.read(wait_s)]


class Audience(Beside):
    """Shows advertisements and clicks on two of three."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("the audience has failed", within_s=2 * FLUSH_S)
        self._producer = make_writer(settings.producer(partitioner="murmur2_random"))
        self._expected: dict[int, int | None] = {}
        self._due: list[tuple[int, int]] = []

    def stop(self) -> Mapping[int, int | None]:
        """Let the last clicks come, and return after how many ms each impression was clicked, or None."""
        self.finish()
        return self._expected

    def work(self) -> None:
        number, began_s = 0, system_clock.monotonic_s()
        while not self.stopping.is_set():
            self._step(number)
            number += 1
            self.stopping.wait(max(0.0, began_s + number / SHOWN_A_SECOND - system_clock.monotonic_s()))
        for at_ms, each in sorted(self._due):
            self._send(clicks, Shown(each, at_ms))
        if left := self._producer.flush(FLUSH_S):
            raise DemoError(f"{left} records were not written in {FLUSH_S:g} s")

    def _step(self, number: int) -> None:
        """Show one advertisement and make the clicks that are due, in the order of their event times."""
        at_ms = 1_000 * number // SHOWN_A_SECOND
        after_ms = number * 37 % WITHIN_MS if number % 3 else None
        self._expected[number] = after_ms
        if after_ms is not None:
            self._due.append((at_ms + after_ms, number))
        for due in [each for each in self._due if each[0] <= at_ms]:
            self._due.remove(due)
            self._send(clicks, Shown(due[1], due[0]))
        self._send(impressions, Shown(number, at_ms))
        self._producer.poll(0)

    def _send(self, source: Source[Shown], record: Shown) -> None:
        self._producer.produce(source.topic, source.serde.encode(record), key=f"ad-{record.number}".encode())
