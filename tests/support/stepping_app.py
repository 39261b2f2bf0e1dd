"""An application of stateless steps on real workers, and the proof that each record went through once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer

from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import position_format
from holdfast.core.engine.state.codec import APPLIED, ROW, RowCodec, text_key
from holdfast.core.engine.state.source_ids import SOURCE_IDS
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.verify.table import verify
from tests.chaos.stepping import is_named, steps
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import State, read_topic

WORDS = ("to", "be", "the", "question", "whether", "mind", "or")
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


class StepsApplication(Application):
    """An application of `tests.chaos.stepping`, with topics of its own."""

    def __init__(
        self,
        broker: SessionBroker,
        folder: Path,
        *,
        partitions: int = 2,
        standbys: int = 0,
        **settings: str | float,
    ) -> None:
        super().__init__(
            broker,
            folder,
            partitions=partitions,
            standbys=standbys,
            module="tests.chaos.stepping",
            **settings,  # type: ignore[arg-type]
        )
        self._environment |= {
            "STEPS_PREFIX": self.name,
            "STEPS_LINES": self.source,
            "STEPS_OUT": self.out,
        }
        self._producer = Producer(broker.client_config(**{"linger.ms": 1, "enable.idempotence": True}))
        self.sent = Counter[str]()
        self.declare()

    def declare(self, version: int = 1, counts_version: int = 1) -> None:
        """Let workers and commands that are made from here on run these versions, and send to a topic of
        theirs.
        """
        self.out = f"{self.name}-out-{counts_version}"
        self.processors = steps(self.name, self.source, self.out, version, counts_version)
        self._environment |= {
            "STEPS_VERSION": str(version),
            "STEPS_COUNTS_VERSION": str(counts_version),
            "STEPS_OUT": self.out,
        }

    @property
    def counts(self) -> Processor[Any, Any]:
        return self.processors[-1]

    def create_topics(self, source: Mapping[str, str] | None = None) -> Self:
        self.broker.create_topic(
            self.source, partitions=self.partitions, config={**APPEND_TIME, **(source or {})}, exact=True
        )
        create_topics(self.settings, self.processors)
        return self

    # -- load

    def send(self, line: str, partition: int = 0) -> None:
        self._producer.produce(self.source, line.encode(), partition=partition)
        if "raise" not in line:
            self.sent.update(line.split())

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0

    def write(self, lines: int, *, seed: int, rest_s: float = 0.0) -> None:
        """Write lines of no meaning; some of them must be refused."""
        chance = random.Random(seed)
        for at in range(lines):
            line = " ".join(chance.choices(WORDS, k=chance.randrange(5)))
            self.send("raise" if chance.random() < 0.03 else line, chance.randrange(self.partitions))
            if at % 50 == 49:
                self._producer.poll(0)
                time.sleep(rest_s)
        self.flush()

    # -- proof

    def states(self, processor: Processor[Any, Any]) -> dict[int, State]:
        """Return the state in a processor's changelog, by partition."""
        out: dict[int, State] = {}
        for number, messages in read_topic(self.broker, processor.changelog(self.name)).items():
            state = out[number] = {}
            for message in messages:
                key, value = message.key() or b"", message.value()
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        return out

    def _is_through(self, processor: Processor[Any, Any]) -> bool:
        logs = [read_topic(self.broker, topic) for topic in processor.topics]
        for number, state in self.states(processor).items():
            ends = tuple((log[number][-1].offset() or 0) if log[number] else None for log in logs)
            form = position_format(processor)
            marker = form.decode(state[APPLIED]) if APPLIED in state else form.start
            if any(end not in (None, at) for end, at in zip(ends, marker.applied, strict=True)):
                return False
        return True

    def wait_through(self) -> None:
        """Wait until every processor has all that those before it sent."""

        def condition() -> bool:
            assert self.live, f"no worker runs\n{self.tails()}"
            return all(map(self._is_through, self.processors))

        wait_for("every step to be at its source's end", condition, DEADLINE_S, self.tails)

    def counted(self) -> dict[str, int]:
        """Return the committed rows of the table downstream of the steps."""
        codec: RowCodec[int] = RowCodec(int)
        return {
            text_key(key): codec.decode(value)
            for state in self.states(self.counts).values()
            for key, value in state.items()
            if key[:1] == ROW
        }

    def prove(self) -> None:
        """Compare the output and the counts with the input; no step kept more than its position and its
        sources' ids. Replays give the same.
        """
        self.prove_what_is_counted()
        for each in self.processors:
            assert verify(each, self.settings).equal, each.name

    def prove_what_is_counted(self) -> None:
        """Compare the output and the counts with the input; no step kept more than its position and its
        sources' ids.
        """
        self.wait_through()
        out = read_topic(self.broker, self.out)
        told = Counter((message.key() or b"", message.value()) for each in out.values() for message in each)
        named = {word: number for word, number in self.sent.items() if is_named(word)}
        assert told == {(word.encode(), b"%d" % len(word)): number for word, number in named.items()}
        assert self.counted() == dict(self.sent)
        for step in self.processors[:-1]:
            assert all(set(state) <= {APPLIED, SOURCE_IDS} for state in self.states(step).values()), step.name
