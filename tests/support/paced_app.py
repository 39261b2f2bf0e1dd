"""An application of `tests.chaos.pacing` on real workers: a backlog in order of event time in each partition,
its expected results, and the actual ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Message, Producer

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import ROW, RowCodec
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.topic import TopicLog
from tests.agents.fleet import environment_of
from tests.chaos import pacing
from tests.chaos.pacing import Fare
from tests.support.harness import TIMES, Worker, module_command, wait_for
from tests.support.own_topics import ending
from tests.support.patience import SCENARIO_S
from tests.support.proof import read_topic

HOUR_MS, BEGIN_MS, DAY_MS = 3_600_000, 1_577_880_000_000, 86_400_000
DRIVERS = 50
LAST = "zz-last"
"""The driver of the records that close all windows."""
ORDERED = {"linger.ms": 50, "batch.size": 16_384, "enable.idempotence": True}
"""A producer without idempotence writes a batch that it tries again after later ones."""
Window = tuple[str, int]


class PacedApplication:
    """The windows after a re-key, or after a fold that emits, or the join: *of* is "windows", "emits" or
    "join". Each source has *partitions*.
    """

    def __init__(
        self,
        broker: SessionBroker,
        folder: Path,
        *,
        of: str = "windows",
        partitions: int = 4,
        name: str = "",
        **settings: Any,
    ) -> None:
        self.broker, self.folder, self.of, self.partitions = broker, folder, of, partitions
        self.name = name or f"paced-{ending()}"
        kafka = {key: str(value) for key, value in broker.config.items()}
        self.settings = Settings(app=self.name, kafka=kafka, data_dir=folder / "data", **settings)
        self.sources = ("left", "right") if of == "join" else ("fares",)
        for source in self.sources:
            broker.create_topic(f"{self.name}-{source}", partitions=partitions, exact=True)
        self.environment: dict[str, str] = {
            **environment_of(self.settings),
            **{f"HOLDFAST_{key.upper()}": str(value) for key, value in {**TIMES, **settings}.items()},
            "PACED_PREFIX": self.name,
            "PACED_OF": of,
        }
        self.workers: list[Worker] = []
        self.declare()

    def declare(self, step: int = 1, done: int = 1) -> None:
        """Let workers and commands that are made from here on run these versions; their topics are made."""
        self.done = done
        self.processors: Sequence[Processor[Any, Any]] = (
            pacing.joined(self.name, done)
            if self.of == "join"
            else pacing.windows(self.name, step, done, emitted=self.of == "emits")
        )
        self.environment |= {"PACED_STEP_VERSION": str(step), "PACED_DONE_VERSION": str(done)}
        create_topics(self.settings, self.processors, partitions=self.partitions)

    def worker(self, command: Sequence[str] = (), **environment: str) -> Worker:
        """Return a new worker, not yet started."""
        found = Worker(
            f"w{len(self.workers) + 1}",
            self.folder,
            {**self.environment, **environment},
            command or module_command("tests.chaos.pacing"),
        )
        self.workers.append(found)
        return found

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def tails(self) -> str:
        return "\n".join(worker.tail() for worker in self.workers)

    # -- input

    def write(self, fares: Iterable[tuple[str, Fare, int]]) -> None:
        """Append (source, fare, partition) in this order."""
        producer = Producer(self.broker.client_config(**ORDERED))
        for source, fare, partition in fares:
            value, key = msgspec.json.encode(fare), fare.driver.encode()
            while True:
                try:
                    producer.produce(f"{self.name}-{source}", value, key=key, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(SCENARIO_S) == 0

    def write_day(self, records: int) -> Counter[Window]:
        """Write a day of fares, each partition in order of event time, and records that close all windows;
        return the number of fares in each window.
        """
        fares = [
            Fare(str(number * 7 % DRIVERS), BEGIN_MS + number * DAY_MS // records, number)
            for number in range(records)
        ]
        self.write(("fares", fare, fare.number % self.partitions) for fare in fares)
        self.write_last()
        return Counter((each.driver, each.at_ms // HOUR_MS * HOUR_MS) for each in fares)

    def write_pairs(self, records: int, run: int) -> Counter[tuple[int, int]]:
        """Write a day of both sides of the join, *records* of each, in turns of *run* of a side, each topic
        in order of event time; return the pairs.
        """
        left, right = (
            [
                Fare(str(number * 7 % DRIVERS), BEGIN_MS + number * DAY_MS // records + apart_ms, number)
                for number in range(records)
            ]
            for apart_ms in (0, 5_000)
        )
        for first in range(0, records, run):
            self.write(
                (side, fare, of_key(fare.driver.encode(), self.partitions))
                for side, fares in (("left", left), ("right", right))
                for fare in fares[first : first + run]
            )
        return paired(left, right)

    def write_last(self) -> None:
        last_ms = BEGIN_MS + 1_000 * HOUR_MS
        self.write(("fares", Fare(LAST, last_ms, -1), at) for at in range(self.partitions))

    # -- output

    def values(self, topic: str) -> list[bytes]:
        """Return the committed values of a topic of the application, without marks."""
        found: Mapping[int, list[Message]] = read_topic(self.broker, topic)
        return [value for each in found.values() for message in each if (value := message.value())]

    @property
    def internal(self) -> str:
        """Return the topic between step and windows."""
        return str(self.processors[0].emits[0])

    def windows(self) -> Counter[Window]:
        """Return the final windows; AssertionError for one that was emitted twice."""
        found = Counter[Window]()
        for value in self.values(self._results):
            result = msgspec.json.decode(value)
            window = result["key"], result["start_ms"]
            assert window not in found, f"{window} is final twice"
            found[window] = result["value"]
        return found

    def wait_windows(self, wanted: Counter[Window], what: str) -> None:
        """Return when the windows are exactly those that are wanted; say which differ if they are not in
        time, or are too many.
        """
        self._wait(
            lambda: (
                None if self._are_few(wanted) or (found := self.windows()).keys() < wanted.keys() else found
            ),
            lambda found: _apart(found, wanted),
            wanted,
            what,
        )

    def pairs(self) -> Counter[tuple[int, int]]:
        return Counter(map(_pair, self.values(self._results)))

    def wait_pairs(self, wanted: Counter[tuple[int, int]], what: str) -> None:
        """Return when the pairs are exactly those that are wanted."""
        self._wait(
            lambda: (
                None if self._are_few(wanted) or (found := self.pairs()).total() < wanted.total() else found
            ),
            lambda found: _apart(found, wanted),
            wanted,
            what,
        )

    def _wait(self, look: Any, apart: Any, wanted: Counter[Any], what: str) -> None:
        topic = "pairs" if self.of == "join" else "windows"
        try:
            found = wait_for(f"{len(wanted)} {topic}", look, SCENARIO_S, self.tails)
        except AssertionError as error:
            found = self.pairs() if self.of == "join" else self.windows()
            raise AssertionError(f"{what}: {apart(found)}\n{error}") from error
        assert found == wanted, f"{what}: {apart(found)}"

    def wait_read(self, part: float, of: int) -> None:
        """Return when the step has sent a *part* of all records on, or the join as much of its pairs."""
        topic = self._results if self.of == "join" else self.internal
        wait_for(f"{part} of {topic}", lambda: self._ends(topic) >= part * of, SCENARIO_S, self.tails)

    @property
    def _results(self) -> str:
        return f"{self.name}-{'pairs' if self.of == 'join' else 'done'}.v{self.done}"

    def _are_few(self, wanted: Counter[Any]) -> bool:
        """Return whether the results cannot be complete: to read them takes long, where there are many."""
        return self._ends(self._results) < len(wanted)

    def _ends(self, topic: str) -> int:
        """Return the sum of the end offsets of a topic's partitions."""
        with TopicLog(self.settings, topic) as log:
            return sum(span.end for span in log.spans().values())

    def late(self) -> Counter[str]:
        """Return the late records counted in the windows' changelog, by origin and in total."""
        done, found = self.processors[-1], Counter[str]()
        codec: RowCodec[Any] = RowCodec(done.row)
        for messages in read_topic(self.broker, done.changelog(self.name)).values():
            rows = {each.key(): each.value() for each in messages}
            for key, value in rows.items():
                if key and value and key[:1] == ROW:
                    row = codec.decode(value)
                    if type(row).__name__ in ("OriginRow", "StreamRow", "JoinStreamRow"):
                        found[type(row).__name__] += row.late
                        found["after idle"] += getattr(row, "late_after_idle", 0)
        return found


def paired(left: Iterable[Fare], right: Iterable[Fare]) -> Counter[tuple[int, int]]:
    """Return the pairs within ten seconds of one driver, each looked for by time."""
    found = Counter[tuple[int, int]]()
    by_second: dict[tuple[str, int], list[Fare]] = {}
    for each in right:
        by_second.setdefault((each.driver, each.at_ms // 10_000), []).append(each)
    for one in left:
        for second in range(one.at_ms // 10_000 - 1, one.at_ms // 10_000 + 2):
            for other in by_second.get((one.driver, second), ()):
                if abs(other.at_ms - one.at_ms) <= 10_000:
                    found[one.number, other.number] += 1
    return found


def _pair(value: bytes) -> tuple[int, int]:
    left, right = msgspec.json.decode(value)
    return left, right


def _apart(found: Counter[Any], wanted: Counter[Any]) -> str:
    """Return in words which results differ."""
    lacking, extra = (sorted(each.items())[:5] for each in (wanted - found, found - wanted))
    return (
        f"{found.total()} of {wanted.total()} counted, {sum(found[each] == wanted[each] for each in wanted)}"
        f" of {len(wanted)} right; lacking {lacking}, too many {extra}"
    )
