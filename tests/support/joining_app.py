"""An application of two sources on real workers, and the proof of its results: logs and choices folded again,
by the test's own reading of them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from confluent_kafka import Message, Producer

from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice, decode_choice
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.global_copies import GlobalLog, GlobalReplay
from holdfast.core.engine.merge.merging import replayed
from holdfast.core.engine.positions import Position, decode_position, start_of
from holdfast.core.engine.state.codec import APPLIED, digest
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.dev.fixtures import SessionBroker
from holdfast.kafka.fetching.records import Records
from holdfast.pipeline.replay import replay
from holdfast.pipeline.verify.table import verify
from tests.chaos.joining import joined, windowed
from tests.support.columns import take
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import State, read_topic

RATES_PARTITIONS = 3
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


@dataclass(slots=True)
class JoinOutcome:
    """Result of one partition: live, and folded again."""

    marker: Position
    choices: list[Choice]
    emits: list[bytes] = field(default_factory=list)


class JoinApplication(Application):
    """An application of `tests.chaos.joining`, with topics of its own."""

    def __init__(
        self,
        broker: SessionBroker,
        folder: Path,
        *,
        partitions: int = 2,
        standbys: int = 0,
        alone: bool = False,
        windows: bool = False,
        rates: bool = False,
        environment: Mapping[str, str] | None = None,
        **settings: str | float,
    ) -> None:
        super().__init__(
            broker,
            folder,
            partitions=partitions,
            standbys=standbys,
            module="tests.chaos.joining",
            environment=environment,
            **settings,
        )
        self.customers, self.orders = "" if alone else f"{self.name}-customers", f"{self.name}-orders"
        self.rates = f"{self.name}-rates" if rates else ""
        self._held = folder / f"{self.name}-held"
        self.joined = (
            windowed(self.orders, self.out)
            if windows
            else joined(self.customers, self.orders, self.out, rates=self.rates)
        )
        self.processors = [self.joined]
        self._environment |= {
            **({"JOIN_WINDOWS": "1"} if windows else {}),
            "JOIN_CUSTOMERS": self.customers,
            "JOIN_ORDERS": self.orders,
            "JOIN_RATES": self.rates,
            "JOIN_OUT": self.out,
            "JOIN_HELD": str(self._held),
        }
        self._producer = Producer(broker.client_config(**{"linger.ms": 1, "enable.idempotence": True}))
        self._sent = 0

    def create_topics(self, source: Mapping[str, str] | None = None) -> Self:
        for topic in self.joined.topics:
            self.broker.create_topic(
                topic, partitions=self.partitions, config={**APPEND_TIME, **(source or {})}, exact=True
            )
        if self.rates:
            kept = {**APPEND_TIME, "retention.ms": "-1"}
            self.broker.create_topic(self.rates, partitions=RATES_PARTITIONS, config=kept, exact=True)
        create_topics(self.settings, self.processors, partitions=self.partitions)
        return self

    def raise_version(self, version: int, *, handover: bool = False) -> None:
        """Let workers that are made from here on run another version, which emits to a topic of its own or,
        by *handover*, continues the topic of the previous version.
        """
        self.out = self.out if handover else f"{self.name}-out-{version}"
        self.joined = joined(self.customers, self.orders, self.out, version, self.rates, handover=handover)
        self.processors = [self.joined]
        self._environment |= {"JOIN_VERSION": str(version), "JOIN_OUT": self.out}
        if handover:
            self._environment["JOIN_HANDOVER"] = "1"
        create_topics(self.settings, self.processors, partitions=self.partitions)

    # -- load

    def send(self, topic: str, text: str, partition: int = 0) -> None:
        self._producer.produce(topic, text.encode(), partition=partition)
        self._sent += 1

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0

    def write(self, records: int, *, seed: int, rest_s: float = 0.0) -> None:
        """Write to both sources in turns of no meaning; some records must be refused, some set tick
        timers.
        """
        chance = random.Random(seed)
        for at in range(records):
            topic = chance.choice(self.joined.topics)
            op = chance.choices(("add", "later", "raise"), (90, 7, 3))[0]
            self.send(topic, f"{op} k{chance.randrange(20)} {at}", chance.randrange(self.partitions))
            if self.rates and at % 3 == 0:
                key = chance.randrange(20)
                self.send(self.rates, f"k{key} {at}", key % RATES_PARTITIONS)
            if at % 50 == 49:
                self._producer.poll(0)
                time.sleep(rest_s)
        self.flush()

    def write_late_orders(self, rounds: int) -> None:
        """Write a customer and then an order, again and again; a worker that lies folds the order first each
        time, and records a choice.
        """
        for at in range(rounds):
            self.wait_folded()
            self._held.touch()
            for topic in (self.customers, self.orders):
                self.send(topic, f"add k1 {at}")
                self.flush()
                time.sleep(0.01)
            _, order = self.ends()[0]
            wait_for(
                "the order",
                lambda order=order: self.states()[0][1].applied[1] == order,  # type: ignore[misc]
                DEADLINE_S,
                self.tails,
            )
            self._held.unlink()
        self.wait_folded()

    # -- proof

    def ends(self) -> dict[int, tuple[int, ...]]:
        """Return the last offset of each source, by partition."""
        logs = [read_topic(self.broker, topic) for topic in self.joined.topics]
        return {number: tuple(_last(log[number]) for log in logs) for number in range(self.partitions)}

    def states(self) -> dict[int, tuple[State, Position]]:
        """Return the state in the changelog, by partition."""
        out: dict[int, tuple[State, Position]] = {}
        for number, messages in read_topic(self.broker, self.joined.changelog(self.name)).items():
            state: State = {}
            for message in messages:
                key, value = message.key() or b"", message.value()
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
            marker = state.pop(APPLIED, None)
            found = start_of(self.joined) if marker is None else decode_position(marker)
            out[number] = state, found
        return out

    def wait_folded(self) -> None:
        """Wait until all that was written is in the committed state, and no tick timer is left."""
        ends = self.ends()

        def condition() -> bool:
            assert self.live, f"no worker runs\n{self.tails()}"
            return all(
                marker.applied == ends[number] and not any(key[:1] == b"\x03" for key in state)
                for number, (state, marker) in self.states().items()
            )

        wait_for(f"positions {ends}", condition, DEADLINE_S, self.tails)

    def prove(self) -> dict[int, JoinOutcome]:
        """Hold live state, position and emits against the logs folded again by the choices."""
        self.wait_folded()
        logs = [read_topic(self.broker, topic) for topic in self.joined.topics]
        choices = read_topic(self.broker, self.joined.choices(self.name))
        emitted, live, out = read_topic(self.broker, self.out), self.states(), dict[int, JoinOutcome]()
        for number, (state, marker) in live.items():
            recorded = [decode_choice(message.value()) for message in choices[number]]
            assert [choice.number for choice in recorded] == list(range(len(recorded)))
            store = DictStore()
            folder = Folder(self.joined, store, views=GlobalReplay(self.joined.reads, self._open_logs))
            batches = [
                [batch] if (batch := _batch(log[number], number, fold.inputs)) is not None else []
                for log, fold in zip(logs, self.joined.folds, strict=True)
            ]
            changes = folder.fold(replayed(folder.marker, batches, recorded, order=folder.order))
            emits: list[bytes] = []
            if changes is not None:
                store.apply(changes.puts)
                emits = [emit.value or b"" for emit in changes.emits]
                folder.commit()
            assert digest(sorted(state.items())) == digest(store.everything()), f"partition {number}"
            assert marker == folder.marker, f"partition {number}"
            out[number] = JoinOutcome(marker, recorded, emits)
        verdict = verify(self.joined, self.settings)
        assert verdict.equal, [each.explain() for each in verdict.partitions]
        assert replay(self.joined, self.settings).digest == verdict.live_digest
        told = Counter(message.value() or b"" for messages in emitted.values() for message in messages)
        wanted = Counter(value for each in out.values() for value in each.emits)
        assert told == wanted, f"{told - wanted} too much, {wanted - told} missing"
        return out

    def _open_logs(self, number: int) -> dict[int, GlobalLog]:
        """Return the log of the global, read by the test itself."""
        out: dict[int, GlobalLog] = {}
        for partition, messages in read_topic(self.broker, self.rates).items():
            batch = _batch(messages, partition, ("value",))
            out[partition] = GlobalLog([] if batch is None else [batch], _last(messages) + 1)
        return out


def _last(messages: list[Message]) -> int:
    return (messages[-1].offset() or 0) if messages else -1


def _batch(messages: list[Message], partition: int, inputs: tuple[str, ...]) -> Batch | None:
    if not messages:
        return None
    records = Records()
    take(records, messages)
    return records.batch(partition, inputs)  # type: ignore[arg-type]
