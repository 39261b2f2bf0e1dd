"""Steps of the demo: three services claim the partitions of a topic, one is killed, the others take over,
and nothing stays unhandled.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import CreateTopic, TopicRole, TopicSpec
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.groups.announcements import GROUPS_TOPIC
from holdfast.dev.demo.beside import Beside
from holdfast.dev.demo.environment import DemoEnvironment
from holdfast.dev.demo.narrator import ClaimFindings, Teller
from holdfast.dev.demo.processes.procfile import Process
from holdfast.dev.waits import wait_until
from holdfast.errors import BrokerError, DemoError
from holdfast.kafka.clients import make_writer

logger = logging.getLogger(__name__)

TOPIC, GROUP, CLIENTS, PARTITIONS = "letters", "mail", ("anna", "ben", "cleo"), 6
LETTERS_A_SECOND = 120
SETTLE_DEADLINE_S = TAKEOVER_DEADLINE_S = HANDLED_DEADLINE_S = 120.0
STOP_GRACE_S = 20.0
LIMIT_FLUSH_S = 60.0
BROKER_TIME = {"message.timestamp.type": "LogAppendTime"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """One line of a service's book: a message it has handled, and when (monotonic)."""

    client: str
    partition: int
    offset: int
    at_s: float


class ClaimSteps:
    """Services that share a topic by claims, the topic they share, and the books they keep."""

    def __init__(self, stage: DemoEnvironment, teller: Teller) -> None:
        self._stage, self._teller = stage, teller
        self._settings = stage.service_settings
        self._services: dict[str, Process] = {}
        self.bound_s = 2 * self._settings.claim_interval_s + 1

    def play(self) -> ClaimFindings:
        """Run the steps; what does not hold is a HoldfastError. No service runs afterwards."""
        self._topics()
        with Letters(self._settings) as letters:
            share = self._start()
            letters.check()
            takeover_s = self._kill(letters, share)
            return self._reckon(letters, takeover_s)

    # -- steps

    def _topics(self) -> None:
        made: tuple[tuple[str, int, Mapping[str, str]], ...] = (
            (TOPIC, PARTITIONS, {}),
            (self._settings.coordination_topic, 2, BROKER_TIME),
            (GROUPS_TOPIC, 2, BROKER_TIME),
        )
        Admin(self._settings).apply([new_topic(*each) for each in made])

    def _start(self) -> Mapping[str, list[int]]:
        with self._teller.step(
            f"Start three services that share the {PARTITIONS} partitions of a topic by claims"
        ):
            self._teller.waiting("waiting until each handles its part")
            for client in CLIENTS:
                arguments = (
                    "holdfast.dev.demo.processes.consumer",
                    TOPIC,
                    GROUP,
                    client,
                    str(self._book(client)),
                )
                self._services[client] = self._stage.actor(client, *arguments)
            share = self._until(
                "each service handles its part of the partitions", self._shares, SETTLE_DEADLINE_S
            )
            heartbeat_s = self._settings.claim_interval_s
            self._teller.say(
                "Each is a ClaimConsumer in a process of its own: no worker of ours, no group of Kafka's,"
                f" only claims in a topic, said again every {heartbeat_s:g} s at most. Letters come at"
                f" {LETTERS_A_SECOND} a second. `holdfast groups describe {GROUP}` says:"
            )
            self._describe()
        return share

    def _kill(self, letters: Letters, share: Mapping[str, list[int]]) -> float:
        victim = max(CLIENTS, key=lambda client: len(share[client]))
        lost = set(share[victim])
        with self._teller.step(f"Kill {victim} with SIGKILL"):
            self._teller.waiting(f"waiting for letters of {_words(lost)}")
            process, killed_s = self._services.pop(victim), system_clock.monotonic_s()
            process.kill()
            self._teller.say(
                f"pid {process.pid} is gone. Nobody says so for it; its claims of {_words(lost)} only stop"
                " being repeated."
            )
            first_s = self._until(
                f"{_words(lost)} to be taken over from {victim}",
                lambda: self._taken(lost, victim, killed_s),
                TAKEOVER_DEADLINE_S,
            )
            takeover_s = max(first_s.values()) - killed_s
            # A promise for a machine that runs: while this process itself was frozen, others may have been
            # frozen too.
            if takeover_s > self.bound_s + letters.stalled_s:
                raise DemoError(
                    f"the takeover from {victim} took {takeover_s:.1f} s; {self.bound_s:g} s are promised: is"
                    " the machine overloaded?"
                )
            self._teller.say(
                f"The others handle letters of all of {_words(lost)} after {takeover_s:.1f} s; two heartbeats"
                f" and a second, {self.bound_s:g} s, are promised."
            )
            self._describe()
        return takeover_s

    def _reckon(self, letters: Letters, takeover_s: float) -> ClaimFindings:
        with self._teller.step("Hold the services' books against the topic"):
            self._teller.waiting("waiting until the last letter is handled")
            letters.finish()
            wanted = letters.written
            self._until(
                "every letter to be handled",
                lambda: wanted <= {(each.partition, each.offset) for each in self._books()},
                HANDLED_DEADLINE_S,
            )
            for process in self._services.values():
                process.stop(grace_s=STOP_GRACE_S)
            times = Counter((each.partition, each.offset) for each in self._books())
            if strange := times.keys() - wanted:
                raise DemoError(
                    f"{len(strange)} letters were handled that nobody wrote, among them {min(strange)}"
                )
            again = sum(count - 1 for count in times.values())
            self._teller.say(
                f"All {len(wanted):,} letters were handled; {again:,} of them twice, which the killed one had"
                " handled and not yet said so: at least once, as agreed."
            )
        return ClaimFindings(messages=len(wanted), again=again, takeover_s=takeover_s, bound_s=self.bound_s)

    # -- within

    def _shares(self) -> dict[str, list[int]] | None:
        """Return each client's partitions, once all clients have equally many."""
        last: dict[int, str] = {}
        for each in sorted(self._books(), key=lambda each: each.at_s):
            last[each.partition] = each.client
        share = {
            client: sorted(place for place, owner in last.items() if owner == client) for client in CLIENTS
        }
        return share if all(len(places) == PARTITIONS // len(CLIENTS) for places in share.values()) else None

    def _taken(self, lost: Collection[int], victim: str, killed_s: float) -> dict[int, float] | None:
        """Return when another client first handled a letter of each lost partition, once that is so for
        all.
        """
        first: dict[int, float] = {}
        for each in self._books():
            if each.client != victim and each.partition in lost and each.at_s > killed_s:
                first[each.partition] = min(each.at_s, first.get(each.partition, each.at_s))
        return first if first.keys() == set(lost) else None

    def _describe(self) -> None:
        """Show what an operator would see: the very command, in a process of its own."""
        self._teller.show(self._stage.command("groups", "describe", GROUP))

    def _until(self, what: str, found: Callable[[], T | None], within_s: float) -> T:
        return wait_until(what, found, within_s, check=self._check)

    def _check(self) -> None:
        for process in self._services.values():
            process.check()

    def _book(self, client: str) -> Path:
        return self._stage.folder / f"{client}.book"

    def _books(self) -> Iterator[Handled]:
        """Yield what all services have handled so far, each in its own order."""
        for client in CLIENTS:
            path = self._book(client)
            for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
                if not line.endswith(b"\n"):
                    break  # it is being written
                partition, offset, at_s = line.split()
                yield Handled(client=client, partition=int(partition), offset=int(offset), at_s=float(at_s))


class Letters(Beside):
    """Writes letters to the topic, to each partition in turn. After `finish` every letter is in the topic."""

    def __init__(self, settings: Settings, *, clock: Clock = system_clock) -> None:
        super().__init__(f"letters cannot be written to {TOPIC}", within_s=2 * LIMIT_FLUSH_S)
        self._clock = clock
        self._producer = make_writer(
            settings.producer(**{"enable.idempotence": True, "linger.ms": 2}), logger=logger
        )
        self.written: set[tuple[int, int]] = set()
        """Partition and offset of every letter that is in the topic; complete after `finish`."""
        self.stalled_s = 0.0
        """The longest that the machine kept this thread from running."""

    def work(self) -> None:
        number, due_s = 0, self._clock.monotonic_s()
        while not self.stopping.is_set() and self.failed is None:
            self._producer.produce(
                TOPIC, b"letter %d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            number += 1
            self.stalled_s = max(self.stalled_s, self._clock.monotonic_s() - due_s)
            due_s = max(due_s + 1 / LETTERS_A_SECOND, self._clock.monotonic_s() - 1.0)
            self._producer.poll(max(0.0, due_s - self._clock.monotonic_s()))
            self.stopping.wait(max(0.0, due_s - self._clock.monotonic_s()))
        if left := self._producer.flush(LIMIT_FLUSH_S):
            raise BrokerError(f"{left} letters were not acknowledged within {LIMIT_FLUSH_S:g} s")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.failed = self.failed or (
                KafkaException(error) if error else BrokerError("a letter without an offset")
            )
            return
        self.written.add((partition, offset))


def new_topic(name: str, partitions: int, config: Mapping[str, str]) -> CreateTopic:
    """Return the action that creates a topic of one replica."""
    spec = TopicSpec(
        name=name, partitions=partitions, config=config, replication_factor=1, role=TopicRole.SOURCE
    )
    return CreateTopic(spec=spec, partitions=partitions)


def _words(places: Collection[int]) -> str:
    """Return partitions as words.

    >>> _words({4}), _words([3, 1])
    ('partition 4', 'partitions 1 and 3')
    """
    shown = sorted(map(str, places))
    return (
        f"partition {shown[0]}" if len(shown) == 1 else f"partitions {', '.join(shown[:-1])} and {shown[-1]}"
    )
